"""`make test-gpu`: its file has what became of every test, whatever ended the run."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from time import sleep
from types import SimpleNamespace
from typing import Any

import pytest
from tests import gpu_stages
from tests.conftest import marks_said
from tests.gpu_stages import STAGES, STOP_S, main
from tests.stages import INTERRUPTED, Stage
from tests.test_stages import ALONE

ROOT = Path(__file__).parents[1]


def test_every_test_of_a_gpu_is_of_one_stage() -> None:
    paths = [path for stage in STAGES for path in stage.options]
    assert [path for path in paths if not (ROOT / path).exists()] == []
    marked = [str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*.py")]
    marked = [name for name in marked if "gpu" in marks_said(ROOT / name)]
    assert len(marked) > 5
    assert {name: sum(name.startswith(path) for path in paths) for name in marked} == dict.fromkeys(
        marked, 1
    )


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the tests of the stages are, which know nothing of this project's configuration."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'src'}:{ROOT}")
    monkeypatch.setattr(gpu_stages, "CHOSEN", (*ALONE, f"--rootdir={tmp_path}"))
    return tmp_path


def staged(monkeypatch: pytest.MonkeyPatch, folder: Path, **files: str) -> None:
    """A stage for each file, which holds this text."""
    for name, text in files.items():
        (folder / f"test_{name}.py").write_text(text)
    stages = tuple(Stage(name, (f"test_{name}.py",)) for name in files)
    monkeypatch.setattr(gpu_stages, "STAGES", stages)


def written(folder: Path) -> dict[str, Any]:
    """The file, with its tests by name."""
    found = json.loads((folder / "out/test-gpu.json").read_text())
    return {**found, "tests": {test["name"].split("::")[-1]: test for test in found["tests"]}}


BASICS = """
import pytest

def test_says(record_property):
    record_property("gb_per_s", 3.5)
    record_property("spread", float("nan"))
    record_property("where", [pytest, (1, None)])

@pytest.mark.skip("no such link")
def test_skipped():
    pass
"""
FAILING = """
import pytest

@pytest.fixture
def breaks():
    yield
    raise OSError("lost")

def test_after(breaks):
    pass

def test_wrong(record_property):
    record_property("ns", 7)
    assert 1 == 2
"""


def test_the_file_has_every_test(
    here: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    staged(monkeypatch, here, basics=BASICS, failing=FAILING, broken="import nowhere_at_all\n")
    assert main(["out"]) == 1
    *lines, _, total, where = capfd.readouterr().out.splitlines()
    assert total == "1 passed, 3 failed, 1 skipped" and where == "out/test-gpu.json"
    assert "FAILED test_failing.py::test_after" in lines
    found = written(here)
    assert found["counts"] == {"passed": 1, "failed": 3, "skipped": 1}
    assert found["machine"]["torch"] and found["machine"]["host"]["versions"]["python"]
    tests = found["tests"]
    says = tests["test_says"]
    assert says["outcome"] == "passed" and says["seconds"] >= 0
    assert says["properties"]["gb_per_s"] == 3.5 and says["properties"]["spread"] == "nan"
    assert says["properties"]["where"][1] == [1, None]
    assert "no such link" in tests["test_skipped"]["message"]
    assert "OSError: lost" in tests["test_after"]["message"]
    assert "assert 1 == 2" in tests["test_wrong"]["message"]
    assert tests["test_wrong"]["properties"] == {"ns": 7}
    assert "nowhere_at_all" in tests["test_broken.py"]["message"]


def test_a_choice_leaves_other_tests_out(
    here: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    staged(monkeypatch, here, basics=BASICS, failing=FAILING)
    assert main(["out", "-k", "says"]) == 0
    assert list(written(here)["tests"]) == ["test_says"]
    assert main(["out", "-k", "nothing_like_it"]) == 1
    assert "no test was chosen" in capfd.readouterr().out


HANGING = """
import os, time

def test_hangs():
    time.sleep(600)

def test_dies():
    os._exit(9)

def test_good():
    pass
"""


def test_another_process_goes_on_after_a_test_that_hangs_or_dies(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged(monkeypatch, here, hanging=HANGING)
    monkeypatch.setattr(gpu_stages, "TEST_S", 3)
    assert main(["out"]) == 1
    tests = written(here)["tests"]
    assert {name: test["outcome"] for name, test in tests.items()} == {
        "test_hangs": "failed",
        "test_dies": "failed",
        "test_good": "passed",
    }
    assert tests["test_dies"]["message"] == "pytest ended with status 9 in this test"


SLOW = """
import os, time
from pathlib import Path

def test_quick():
    pass

def test_slow():
    Path("begun").write_text(str(os.getpid()))
    Path("begun").rename("slow")
    time.sleep(600)

def test_later():
    pass
"""


def ended_by(what: type[BaseException], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wait for a process ends so once test_slow has begun, and then the time is over."""
    seen = folder / "slow"

    class Process(subprocess.Popen[bytes]):
        def wait(self, timeout: float | None = None) -> int:
            while timeout is not None and timeout > STOP_S and self.poll() is None:
                if seen.exists():
                    raise what(self.args, timeout)
                sleep(0.02)
            return super().wait(timeout)

    monkeypatch.setattr(gpu_stages.subprocess, "Popen", Process)
    clock = SimpleNamespace(monotonic=lambda: 1000.0 if seen.exists() else 0.0)
    monkeypatch.setattr(gpu_stages, "time", clock)


OUTCOMES = {
    "test_quick": "passed",
    "test_slow": "unfinished",
    "test_later": "not run",
    "test_says": "not run",
    "test_skipped": "not run",
}


def test_what_the_time_was_not_enough_for_is_neither_passed_nor_failed(
    here: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    staged(monkeypatch, here, slow=SLOW, basics=BASICS)
    ended_by(subprocess.TimeoutExpired, here, monkeypatch)
    assert main(["out"]) == 0
    *_, slow, basics, total, _ = capfd.readouterr().out.splitlines()
    assert slow.endswith("2 not run") and basics.endswith("2 not run")
    assert total == "1 passed, 0 failed, 0 skipped, 4 not run"
    found = written(here)
    assert {name: test["outcome"] for name, test in found["tests"].items()} == OUTCOMES
    assert found["counts"] == {"passed": 1, "unfinished": 1, "not run": 3}


def test_an_interrupted_run_leaves_its_file_and_no_process(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged(monkeypatch, here, slow=SLOW, basics=BASICS)
    ended_by(KeyboardInterrupt, here, monkeypatch)
    assert main(["out"]) == INTERRUPTED
    found = written(here)
    assert {name: test["outcome"] for name, test in found["tests"].items()} == OUTCOMES
    with pytest.raises(ProcessLookupError):
        os.kill(int((here / "slow").read_text()), 0)
