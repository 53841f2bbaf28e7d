"""SIGINT and SIGTERM at the worst moments: in the middle of an import, twice, in a __del__."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.training.launching import python

BOTH = [signal.SIGINT, signal.SIGTERM]
# sends itself a signal as a module is looked for, and drops what that raises, as libraries do
AS_IMPORTED = """
import os, signal, sys, time
from calib.process import interrupts
class Finder:
    def find_spec(self, name, path, target=None):
        if name == {module!r}:
            try:
                for number in {numbers!r}:
                    os.kill(os.getpid(), number)
                    time.sleep(0)
                time.sleep({hangs})
            except BaseException:
                pass
sys.meta_path.insert(0, Finder())
{settings}
sys.argv = ["calib", *{words!r}]
from calib.cli import main
main()
"""
LIST = ("search", "--list")  # imports pydantic, and is quick


def run(
    cwd: Path,
    module: str,
    numbers: Sequence[int],
    words: Sequence[str] = LIST,
    hangs: float = 0,
    settings: str = "",
    **more: str,
) -> subprocess.CompletedProcess[str]:
    code = AS_IMPORTED.format(
        module=module,
        numbers=[int(n) for n in numbers],
        hangs=hangs,
        settings=settings,
        words=list(words),
    )
    return python(cwd, "-c", code, **more)


def is_interrupted(done: subprocess.CompletedProcess[str]) -> None:
    assert (done.returncode, done.stderr) == (2, "calib: error: interrupted\n")


@pytest.mark.parametrize("number", BOTH)
@pytest.mark.parametrize("module", ["typer", "calib.commands.search", "pydantic"])
def test_an_import_loses_no_signal(tmp_path: Path, number: int, module: str) -> None:
    """Python's own KeyboardInterrupt would be dropped by whoever imports."""
    done = run(tmp_path, module, [number])
    is_interrupted(done)


def test_a_second_one_does_not_wait(tmp_path: Path) -> None:
    """Nor for a module that hangs; but a terminal and a launcher may both send the same."""
    again = [signal.SIGINT, signal.SIGTERM]
    is_interrupted(run(tmp_path, "typer", again, hangs=600, settings="interrupts.SAME_S = 0"))
    is_interrupted(run(tmp_path, "typer", again))


def test_an_import_that_hangs_is_not_waited_for(tmp_path: Path) -> None:
    settings = "interrupts.PATIENCE_S = 0.1"
    is_interrupted(run(tmp_path, "typer", [signal.SIGTERM], hangs=600, settings=settings))


def test_a_rank_ends_at_once_and_says_nothing(tmp_path: Path) -> None:
    """Its launcher may be gone; rank 0 would import for seconds yet."""
    done = run(
        tmp_path, "mpi4py", [signal.SIGTERM], ("measure", "-o", "run"), hangs=600, PMI_RANK="0"
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_what_python_drops_is_raised_again(tmp_path: Path) -> None:
    """An exception in __del__ goes nowhere."""
    code = """
import os, signal, time
from calib.process.interrupts import INTERRUPTS
class Dropped:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0)
INTERRUPTS.listen()
try:
    Dropped()
    time.sleep(600)
except KeyboardInterrupt:
    print("raised")
"""
    done = python(tmp_path, "-c", code)
    assert (done.returncode, done.stdout, done.stderr) == (0, "raised\n", "")


def test_what_is_ignored_stays_so(tmp_path: Path) -> None:
    """nohup, and shells for what runs in the background."""
    settings = "signal.signal(signal.SIGINT, signal.SIG_IGN)"
    done = run(tmp_path, "typer", [signal.SIGINT], settings=settings)
    assert done.returncode == 0 and done.stdout and not done.stderr


def test_signals_are_heard_from_the_start(tmp_path: Path) -> None:
    """Until then Ctrl-C is a traceback: what comes before must be next to nothing."""
    code = (
        "import sys; sys.modules.pop('typing', None); before = {*sys.modules}; import calib.cli; "
        "print(*sorted({*sys.modules} - before))"
    )
    done = python(tmp_path, "-S", "-c", code)
    loaded = done.stdout.split()
    ours = [name for name in loaded if name.startswith("calib")]
    assert ours == ["calib", "calib.cli", "calib.process", "calib.process.interrupts"]
    assert not {"typing", "typer", "re", "pathlib", "subprocess"} & {*loaded}
