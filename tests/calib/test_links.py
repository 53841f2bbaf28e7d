"""A run directory that others may write to: nothing is written through what they put into it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.calib.driving import allreduce
from tests.calib.inside import calib
from tests.oracle.handmade import machine

from calib.driver.lock import DRIVER_LOCK, RANKS_LOCK, only_driver
from calib.driver.ranks import run_ranks
from calib.foundation.errors import FileError
from calib.foundation.files import destination, open_own, write_json, write_whole
from calib.foundation.run_files import PARTS_DIRECTORY
from calib.microbench.records.parts import remove_unfinished, write_part
from calib.microbench.rows import case_end
from calib.night.steps import steps_in
from calib.predicting.rows import table_of
from calib.rundir import prepare_training

OF_VALUE = "of value"


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    path = tmp_path / "mine"
    path.write_text(OF_VALUE)
    return path


def lock(run: Path) -> None:
    with only_driver(run):
        pass


def ranks_log(run: Path) -> None:
    run_ranks("true {n}", 1, [], run / "ranks.log", print, "")


def night_log(run: Path) -> None:
    with steps_in(run / "night.log"):
        pass


def rows(run: Path) -> None:
    with table_of(run / "t.csv"):
        pass


IN_PLACE: list[tuple[str, Callable[[Path], None]]] = [
    (DRIVER_LOCK, lock),
    (RANKS_LOCK, lock),
    ("ranks.log", ranks_log),
    ("night.log", night_log),
]
REPLACED: list[tuple[str, Callable[[Path], None]]] = [
    ("manifest.json", lambda run: write_json(run / "manifest.json", {})),
    ("report.html", lambda run: write_whole(run / "report.html", "x")),
    ("run.jsonl", lambda run: os.close(open_own(run / "run.jsonl", fresh=True))),
]
PUT: list[Callable[[Path, Path], None]] = [
    lambda path, mine: path.symlink_to(mine),
    lambda path, mine: path.hardlink_to(mine),
]


@pytest.mark.parametrize(("name", "write"), IN_PLACE)
@pytest.mark.parametrize("put", [*PUT, lambda path, _: os.mkfifo(path)])
def test_what_is_written_in_place(
    tmp_path: Path,
    mine: Path,
    name: str,
    write: Callable[[Path], None],
    put: Callable[[Path, Path], None],
) -> None:
    """Refused: to remove what holds a lock would be to break it."""
    put(tmp_path / name, mine)
    with pytest.raises(FileError, match=f"cannot write .*{name}: it is (a link|no plain file)"):
        write(tmp_path)
    assert mine.read_text() == OF_VALUE


@pytest.mark.parametrize(("name", "write"), IN_PLACE[:-1])
def test_a_link_to_nowhere_makes_nothing(
    tmp_path: Path, name: str, write: Callable[[Path], None]
) -> None:
    (tmp_path / name).symlink_to("made")
    with pytest.raises(FileError):
        write(tmp_path)
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(("name", "write"), REPLACED)
@pytest.mark.parametrize("put", PUT)
def test_what_is_written_anew(
    tmp_path: Path,
    mine: Path,
    name: str,
    write: Callable[[Path], None],
    put: Callable[[Path, Path], None],
) -> None:
    put(tmp_path / name, mine)
    write(tmp_path)
    assert mine.read_text() == OF_VALUE
    assert not (tmp_path / name).is_symlink() and (tmp_path / name).read_text() != OF_VALUE


def test_no_pipe_and_no_device_is_removed(tmp_path: Path) -> None:
    """For a fresh file: as root, `-o /dev/null` would take it from the whole machine."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "null").symlink_to("/dev/null")
    for path in (tmp_path / "pipe", destination(tmp_path / "null")):
        with pytest.raises(FileError, match="no regular file"):
            open_own(path, fresh=True)
        assert path.exists()


def test_a_plain_file_is_written(tmp_path: Path) -> None:
    for _ in range(2):
        lock(tmp_path)
        ranks_log(tmp_path)
    assert (tmp_path / "ranks.log").read_text().count("$ ") == 2
    first, second = "first\n", "second\n"
    for text in (first, second):
        with os.fdopen(open_own(tmp_path / "log", append=True), "a") as stream:
            stream.write(text)
    assert (tmp_path / "log").read_text() == first + second
    with os.fdopen(open_own(tmp_path / "log", fresh=True), "w") as stream:
        stream.write(second)
    assert (tmp_path / "log").read_text() == second


def test_a_directory_of_ours_that_is_a_link(tmp_path: Path) -> None:
    """What a killed rank has half written is removed: not in somebody's home."""
    home = tmp_path / "home"
    home.mkdir()
    (home / ".profile").write_text(OF_VALUE)
    run = tmp_path / "run"
    run.mkdir()
    (run / PARTS_DIRECTORY).symlink_to(home)
    (run / "training").symlink_to(home)
    end = case_end(allreduce(8), 0, 0.0, stopped_by="skipped")
    for write in (
        lambda: remove_unfinished(run),
        lambda: write_part(run, end),
        lambda: prepare_training(run / "training" / "x.jsonl"),
    ):
        with pytest.raises(FileError, match="is a link"):
            write()
    assert os.listdir(home) == [".profile"]


def test_a_link_that_a_user_names_stays_one(tmp_path: Path, mine: Path) -> None:
    """It says where the result is to be, as `-o` of any verb."""
    machine().write(tmp_path / "parameters.json")
    link = tmp_path / "link.json"
    link.symlink_to(mine)
    done = calib(tmp_path, "schema", "parameters", "-o", "link.json")
    assert done.returncode == 0, done.stderr
    assert link.is_symlink() and mine.read_text().startswith("{")
    assert destination(Path("/dev/stdout")) == Path("/dev/stdout")


def test_the_temporary_file_of_a_table_is_nobodys_guess(tmp_path: Path, mine: Path) -> None:
    """It was .NAME.PID, which a link could wait at."""
    (tmp_path / f".t.csv.{os.getpid()}").symlink_to(mine)
    rows(tmp_path)
    assert mine.read_text() == OF_VALUE and (tmp_path / "t.csv").read_text().startswith("model,")
