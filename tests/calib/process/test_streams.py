"""stdout and stderr that are closed, full or read by nobody; and other poor surroundings of a verb."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.calib import inside
from tests.calib.running import calib, refused
from tests.helpers.words import words_of
from tests.oracle.handmade import machine, mlp
from tests.training.launching import completed

from calib.app import VERBS, built, starts_ranks
from calib.foundation.errors import MachineError
from calib.foundation.text import Cell
from calib.oracle.projection import Projection
from calib.predicting.rows import row_of
from calib.process.streams import Outlet
from calib.process.surroundings import MIB, AddressSpace, used_bytes

FULL = Path("/dev/full")
needs_full = pytest.mark.skipif(not FULL.exists(), reason="no /dev/full here")
NET = mlp([12, 8, 3])
PREDICT = tuple(
    words_of(
        "predict --model model.json --strategy data --parameters parameters.json --batch-per-rank 4"
    )
)
PRINTING = [
    ("show", "parameters.json"),
    ("show", "parameters.json", "--json"),
    PREDICT,
    (*PREDICT, "-p", "1:64", "--csv", "-"),
    ("diff", "parameters.json", "parameters.json"),
    ("schema", "--list"),
    ("search", "--list"),
    ("export", "--list"),
    ("sweep", "--models", "model.json", *PREDICT[-4:]),
    ("--version",),
    ("--help",),
    ("model", "--help"),
]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    machine().write(tmp_path / "parameters.json")
    NET.write(tmp_path / "model.json")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def in_shell(cwd: Path, streams: str, *words: str) -> subprocess.CompletedProcess[str]:
    """A verb with its streams as a shell redirects them."""
    line = ["bash", "-c", f'exec "$@" {streams}', "bash", sys.executable, "-m", "calib", *words]
    return completed(line, cwd)


@needs_full
@pytest.mark.parametrize("words", [*PRINTING, *((verb, "--help") for verb in VERBS)])
def test_a_full_disk_is_told(here: Path, words: Sequence[str], tmp_path: Path) -> None:
    with FULL.open("w") as full, (tmp_path / "said").open("w+") as said:
        assert inside.ended(tuple(words), full, said) == 2
    text = (tmp_path / "said").read_text()
    assert "Traceback" not in text
    last = "calib: error: not all of the result was printed: stdout: No space left on device\n"
    assert text.endswith(last) and text.count("calib: error") == 1


@needs_full
def test_what_people_are_told_may_be_lost(here: Path, tmp_path: Path) -> None:
    """Notes on stderr; the result is whole."""
    with FULL.open("w") as full, (tmp_path / "out").open("w+") as out:
        assert inside.ended((*PREDICT, "--json"), out, full) == 0
    assert json.loads((tmp_path / "out").read_text())[0]["division"]["p"] == 1


@pytest.mark.parametrize("streams", [">&-", "<&- >&-", "<&- >&- 2>&-"])
def test_closed_from_the_start(here: Path, streams: str) -> None:
    """The files that a verb opens must not become its stdout."""
    done = in_shell(here, streams, *PREDICT, "-o", "found.json")
    assert done.returncode == 2 and done.stdout == ""
    if "2>&-" in streams:
        assert done.stderr == ""
    else:
        last = done.stderr.splitlines()[-1].removeprefix("calib: error: ")
        assert last == "not all of the result was printed: stdout: Bad file descriptor"
        assert done.stderr.count("error") == 1
    assert json.loads((here / "found.json").read_text())[0]["division"]["p"] == 1


def test_nothing_to_print_needs_no_stdout(here: Path) -> None:
    assert in_shell(here, ">&-", "sweep", *PRINTING[-4][1:], "-o", "t.json").returncode == 0
    assert json.loads((here / "t.json").read_text())


def test_a_name_that_the_encoding_does_not_have(here: Path) -> None:
    NET.model_copy(update={"name": "n\N{LATIN SMALL LETTER E WITH ACUTE}t"}).write(
        here / "model.json"
    )
    done = calib(here, *PREDICT, PYTHONIOENCODING="koi8-r:strict")
    assert done.returncode == 0 and "n\\xe9t" in done.stdout, done.stderr


def test_a_sweep_that_nobody_reads_ends(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would go on for a million rows."""
    counted = 0

    def row(of: Projection) -> list[Cell]:
        nonlocal counted
        counted += 1
        return row_of(of)

    monkeypatch.setattr("calib.predicting.rows.row_of", row)
    reader, writer = os.pipe()
    os.close(reader)
    options = ("-p", "1:200", "--strategies", "all", "--batch-per-rank", "4")
    with os.fdopen(writer, "w") as gone, (here / "said").open("w") as said:
        words = ("sweep", "--models", "model.json", "--parameters", "parameters.json", *options)
        assert inside.ended(words, gone, said) == 0
    assert 0 < counted < 1000


def test_an_outlet_writes_all_of_it(tmp_path: Path) -> None:
    """Also where the descriptor does not wait, as a terminal that is set so."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    data = os.urandom(1 << 20)
    child = os.fork()
    if child == 0:
        os.close(reader)
        os._exit(Outlet(writer, "w", closefd=False).write(data) != len(data))
    os.close(writer)
    with os.fdopen(reader, "rb") as stream:
        assert stream.read() == data
    assert os.waitpid(child, 0)[1] == 0


def test_the_verbs_that_measure() -> None:
    """Those may not end with 0 where nobody read their result."""
    group = built()
    assert [verb for verb in VERBS if starts_ranks(group, verb)] == words_of(
        "doctor probe measure train calibrate nightly"
    )


@pytest.mark.parametrize(("verb", "code"), [("measure", 2), ("train", 2), ("show", 0)])
def test_a_result_that_nobody_reads(here: Path, verb: str, code: int) -> None:
    """Success of a verb that only prints; of one that measures it is none."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as gone, (here / "said").open("w") as said:
        assert inside.ended((verb, "--help"), gone, said) == code


# a working directory that is gone, little address space


@pytest.mark.parametrize("verb", VERBS)
def test_a_working_directory_that_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with (tmp_path / "out").open("w") as out, (tmp_path / "said").open("w") as said:
        assert inside.ended((verb, "x"), out, said) == 2
    assert (tmp_path / "out").read_text() == ""
    (line,) = (tmp_path / "said").read_text().splitlines()
    assert line.startswith("calib: error: the working directory cannot be used")


@pytest.mark.parametrize(
    "words", [("fit", "."), ("history", "."), ("plan", "--models", "cosmoflow-mini")]
)
@pytest.mark.parametrize("kib", [200_000, 300_000])
def test_little_address_space(here: Path, words: Sequence[str], kib: int) -> None:
    """Without a word beforehand OpenBLAS aborts, or tries again and again for ever."""
    (here / "calib.db").write_bytes(b"")
    limit = kib * 1024
    done = completed(
        [sys.executable, "-m", "calib", *words],
        here,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
    )
    said = refused(done)
    assert "ulimit -v" in said or words[0] == "fit"  # it finds no samples before it needs NumPy


def test_the_address_space_that_a_library_needs() -> None:
    free = AddressSpace(used_bytes() + 2**40)
    assert free.find_spec("numpy", None) is None
    little = AddressSpace(used_bytes() + 100 * MIB)
    assert little.find_spec("json", None) is None
    with pytest.raises(MachineError, match=r"^torch needs \d+ MiB .* leaves \d+: raise it"):
        little.find_spec("torch", None)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (MemoryError(), "not enough memory"),
        (OSError(28, "No space left on device", "x.json"), "x.json: No space left on device"),
        (ImportError("libx.so: failed to map", name="x"), "cannot load x: libx.so: failed to map;"),
    ],
)
def test_what_the_machine_lacks_is_one_line(
    here: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, said: str
) -> None:
    def fails() -> None:
        raise error

    monkeypatch.setattr("calib.app.run", fails)
    assert refused(inside.calib(here, "show")).startswith(said)
