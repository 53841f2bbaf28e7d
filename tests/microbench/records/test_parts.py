"""Parts: no row is lost or doubled, and every case has one end, whenever the program is killed."""

from __future__ import annotations

import math
import os
import shutil
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.helpers.rows import listed, repetitions, rows_in, sample, table_of, write_rows
from tests.helpers.runs import new_manifest

import calib.microbench.records.parts
from calib.foundation.errors import FileError
from calib.foundation.run_files import MANIFEST_FILE, PARTS_DIRECTORY, SAMPLES_FILE
from calib.microbench.records.looks import Look
from calib.microbench.records.manifest import CaseEnd, LaunchRecord, Manifest
from calib.microbench.records.parts import (
    OUT_OF_TIME,
    cases_done,
    consolidate,
    finish_launch,
    part_path,
    part_paths,
    read_end,
    read_ends,
    remove_unfinished,
    write_part,
)
from calib.microbench.records.samples import Sample, read_table, write_table

FAILED = "failed: rank 1 does not answer"


@pytest.fixture(autouse=True, scope="module")
def no_fsync() -> Iterator[None]:
    """Processes are killed here, and no machine: what was written is read without it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        yield


class Killed(BaseException):
    """Stands for the end of the process."""


def end_of(case_id: str, launch: int = 0, stopped_by: str = "interval") -> CaseEnd:
    return CaseEnd(
        case_id=case_id,
        launch=launch,
        label=f"case {case_id}",
        purpose="",
        repetitions=3,
        half_width=0.01,
        stopped_by=stopped_by,
        elapsed_s=0.5,
        memory={"peak": 7},
    )


def write(run: Path, case_id: str, launch: int = 0, n: int = 3) -> list[Sample]:
    """A case that was measured."""
    content = repetitions(case_id, launch, n)
    write_part(run, end_of(case_id, launch), table_of(content))
    return content


def begin(run: Path) -> Path:
    """A run directory as a session leaves it when it begins."""
    new_manifest().write(run)
    return run


def ends_of(run: Path) -> dict[tuple[str, int], str]:
    """(case, launch) -> how it ended, of the manifest, in which each may stand once."""
    cases = Manifest.read(run).cases
    assert max(Counter((end.case_id, end.launch) for end in cases).values(), default=1) == 1
    return {(end.case_id, end.launch): end.stopped_by for end in cases}


def key(row: Sample) -> tuple[int, str, int]:
    return row.launch, row.case_id, row.repetition


@contextmanager
def killed_at(step: int) -> Iterator[list[str]]:
    """Die instead of the given file system call (a rename or a removal) of foundation or parts.

    Gives the calls that were made before.
    """
    made: list[str] = []
    real: dict[str, Any] = {"replace": os.replace, "unlink": os.unlink, "rmdir": os.rmdir}

    def dying(name: str) -> Any:
        def call(*arguments: Any, **more: Any) -> Any:
            if len(made) == step:
                raise Killed
            made.append(name)
            return real[name](*arguments, **more)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in real:
            patch.setattr(os, name, dying(name))
        yield made


def test_a_part_holds_rows_and_end(tmp_path: Path) -> None:
    content = write(tmp_path, "a", 2)
    path = part_path(tmp_path, "a", 2)
    assert part_paths(tmp_path) == [path]
    assert read_end(path) == end_of("a", 2)
    assert rows_in(tmp_path) == content
    assert cases_done(tmp_path) == {("a", 2)} and cases_done(tmp_path, parts=False) == set()


def test_a_failed_case_is_done_for_the_command_that_met_it(tmp_path: Path) -> None:
    """The next one consolidates first, and tries it again; then it has one end, the last."""
    begin(tmp_path)
    write_part(tmp_path, end_of("a", 0, FAILED))
    assert cases_done(tmp_path) == {("a", 0)}
    assert consolidate(tmp_path) == 0
    assert cases_done(tmp_path) == set() and not (tmp_path / SAMPLES_FILE).exists()
    assert ends_of(tmp_path) == {("a", 0): FAILED}
    write(tmp_path, "a")
    assert consolidate(tmp_path) == 3
    assert cases_done(tmp_path) == {("a", 0)}
    assert ends_of(tmp_path) == {("a", 0): "interval"}


def test_what_the_time_left_out_stays_left_out(tmp_path: Path) -> None:
    begin(tmp_path)
    write_part(tmp_path, end_of("a", 0, f"{OUT_OF_TIME}; another -o"))
    write_part(tmp_path, end_of("b", 0, "skipped: it ended the ranks twice"))
    consolidate(tmp_path)
    assert cases_done(tmp_path) == {("a", 0)}
    assert cases_done(tmp_path, parts=False) == set()


def test_consolidate_keeps_all_rows_once(tmp_path: Path) -> None:
    begin(tmp_path)
    content = write(tmp_path, "a") + write(tmp_path, "a", 1) + write(tmp_path, "b")
    assert sorted(rows_in(tmp_path), key=key) == sorted(content, key=key)
    assert consolidate(tmp_path) == 9
    assert not (tmp_path / PARTS_DIRECTORY).exists()
    assert sorted(rows_in(tmp_path), key=key) == sorted(content, key=key)
    assert set(ends_of(tmp_path)) == {("a", 0), ("a", 1), ("b", 0)}
    before = (tmp_path / SAMPLES_FILE).read_bytes()
    assert consolidate(tmp_path) == 0
    assert (tmp_path / SAMPLES_FILE).read_bytes() == before
    content += write(tmp_path, "c", 2)
    assert consolidate(tmp_path) == 12
    assert sorted(rows_in(tmp_path), key=key) == sorted(content, key=key)


def test_a_checksum_of_before_does_not_stand_for_rows_of_after(tmp_path: Path) -> None:
    manifest = Manifest.read(begin(tmp_path))
    manifest.samples_sha256 = "0" * 64
    manifest.write(tmp_path)
    assert consolidate(tmp_path) == 0
    assert Manifest.read(tmp_path).samples_sha256 == "0" * 64
    write(tmp_path, "a")
    consolidate(tmp_path)
    assert Manifest.read(tmp_path).samples_sha256 == ""


def test_looks_of_ranks_that_died_are_kept(tmp_path: Path) -> None:
    """Of a launch that has finished, manifest.json has all; another one's looks are in its parts."""
    begun = {
        "command": "",
        "places": [],
        "oversubscribed": False,
        "timer": {},
        "load_average": None,
    }
    done, died = (
        LaunchRecord(launch=n, ranks=2, started=f"2026-11-27T10:0{n}:00Z", **begun) for n in (0, 1)
    )
    new_manifest(launches=[done, died]).write(tmp_path)
    finish_launch(tmp_path, done.model_copy(update={"finished": "2026-11-27T10:01:00Z"}))
    looks = [Look(unix_s=100.0 + n, window_s=1.0, disturbed=["slow"]) for n in range(4)]
    end = end_of("a").model_copy(update={"started_unix_s": 99.5, "elapsed_s": 0.4})
    write_part(tmp_path, end, seen=done.seen(looks[:1]))
    write_part(tmp_path, end_of("a", 1), seen=died.seen(looks[1:2]))
    consolidate(tmp_path)
    # in the order of their files, not of time
    write_part(tmp_path, end_of("c", 1), seen=died.seen(looks[2:3]))
    write_part(tmp_path, end_of("b", 1), seen=died.seen(looks[3:]))
    write_part(tmp_path, end_of("d", 1), seen=died.seen([]))
    consolidate(tmp_path)
    assert [launch.looks for launch in Manifest.read(tmp_path).launches] == [[], looks[1:]]


def test_cases_done(tmp_path: Path) -> None:
    """From samples.parquet, from parts, or from both; a launch is part of it."""
    write(tmp_path, "a", 0)
    write(tmp_path, "b", 12)
    consolidate(tmp_path)
    write(tmp_path, "a", 1)
    write(tmp_path, "c", 123)
    assert cases_done(tmp_path) == {("a", 0), ("a", 1), ("b", 12), ("c", 123)}
    assert cases_done(tmp_path, parts=False) == {("a", 0), ("b", 12)}


def test_nothing_is_written_where_nothing_is(tmp_path: Path) -> None:
    assert consolidate(tmp_path) == 0 and cases_done(tmp_path) == set()
    assert list(tmp_path.iterdir()) == []


def test_half_written_parts_are_none(tmp_path: Path) -> None:
    """SIGKILL in write_whole leaves `.NAME.RANDOM` beside the parts."""
    half = tmp_path / PARTS_DIRECTORY / ".00-b.parquet.k1ll3d"
    content = write(tmp_path, "a")
    half.write_bytes(b"PAR1")
    assert cases_done(tmp_path) == {("a", 0)}
    assert consolidate(tmp_path) == 3
    assert rows_in(tmp_path) == content
    assert half.exists(), "another process may still be writing it"
    remove_unfinished(tmp_path)
    assert not (tmp_path / PARTS_DIRECTORY).exists()
    remove_unfinished(tmp_path)


def test_a_part_that_is_written_meanwhile_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`calib fit` consolidates while the ranks still measure."""
    begin(tmp_path)
    content = write(tmp_path, "a")
    real = write_table

    def slow(path: Path, *arguments: Any) -> None:
        if path.name == SAMPLES_FILE:
            content.extend(write(tmp_path, "b"))
        real(path, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(calib.microbench.records.parts, "write_table", slow)
        consolidate(tmp_path)
    assert cases_done(tmp_path) == {("a", 0), ("b", 0)}
    assert sorted(rows_in(tmp_path), key=key) == content
    consolidate(tmp_path)
    assert sorted(rows_in(tmp_path), key=key) == content


def test_two_that_consolidate_at_once(tmp_path: Path) -> None:
    """While one merges, others write parts and merge them too."""
    begin(tmp_path)
    content = [row for number in range(12) for row in repetitions(f"{number:02d}")]

    def work(first: int) -> None:
        for number in range(first, 12, 3):
            write(tmp_path, f"{number:02d}")
            consolidate(tmp_path)

    threads = [threading.Thread(target=work, args=(first,)) for first in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(rows_in(tmp_path), key=key) == content
    assert len(ends_of(tmp_path)) == 12


@pytest.mark.parametrize("content", [b"", b"PAR1", None])
def test_a_part_that_does_not_say_how_its_case_ended(tmp_path: Path, content: bytes | None) -> None:
    path = part_path(tmp_path, "a", 0)
    if content is None:
        write_rows(path, repetitions("a"))
    else:
        path.parent.mkdir()
        path.write_bytes(content)
    with pytest.raises(FileError, match=r"00-a.parquet does not say how") as caught:
        read_ends(tmp_path)
    assert len(str(caught.value).splitlines()) == 1


@settings(max_examples=25)
@given(
    before=st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=3),
    parts=st.lists(
        st.tuples(st.sampled_from("abcd"), st.integers(0, 2), st.booleans()),
        min_size=1,
        max_size=5,
        unique_by=lambda part: part[:2],
    ),
)
def test_killed_at_every_step(
    before: list[tuple[str, bool]], parts: list[tuple[str, int, bool]]
) -> None:
    """Of one consolidation over any earlier state, die at each rename and each removal in turn.

    Then the next command consolidates: rows and ends are as if nothing had happened.
    """
    step, finished = 0, False
    with tempfile.TemporaryDirectory() as name:
        begun = Path(name) / "begun"
        begun.mkdir()
        begin(begun)
        expected: dict[tuple[str, int], str] = {}
        for case_id, fails in before:  # of earlier commands, in launches that are their own
            launch = 10 + len(expected)
            expected[case_id, launch] = _one(begun, case_id, launch, fails)
        consolidate(begun)
        for case_id, launch, fails in parts:
            expected[case_id, launch] = _one(begun, case_id, launch, fails)
        measured = {pair for pair, how in expected.items() if how != FAILED}
        wanted = sorted((row for pair in measured for row in repetitions(*pair)), key=key)
        while not finished:
            run = Path(shutil.copytree(begun, Path(name) / f"step{step}"))
            finished = True
            with killed_at(step):
                try:
                    consolidate(run)
                except Killed:
                    finished = False
            assert measured <= cases_done(run) <= set(expected)
            consolidate(run)
            if measured:
                assert sorted(rows_in(run), key=key) == wanted
            assert ends_of(run) == expected
            assert cases_done(run) == measured
            assert part_paths(run) == []
            step += 1
    assert step > len(parts)  # every part was removed once


def _one(run: Path, case_id: str, launch: int, fails: bool) -> str:
    """Write the part of a case; how it ended."""
    if fails:
        write_part(run, end_of(case_id, launch, FAILED))
        return FAILED
    write(run, case_id, launch)
    return "interval"


class Commands(RuleBasedStateMachine):
    """Commands that measure what is missing, and are killed: as driver and ranks use the parts."""

    CASES = tuple((case_id, launch) for case_id in "abc" for launch in range(2))

    def __init__(self) -> None:
        super().__init__()
        self._directory = tempfile.TemporaryDirectory()
        self.run = Path(self._directory.name)
        self.measured: set[tuple[str, int]] = set()

    @initialize()
    def begins(self) -> None:
        begin(self.run)

    @rule(n=st.integers(0, 6), fails=st.sets(st.integers(0, 5)), step=st.integers(0, 12))
    def command(self, n: int, fails: set[int], step: int) -> None:
        """One command: consolidate, measure up to n cases, consolidate; killed at a step."""
        with killed_at(step):
            try:
                consolidate(self.run)
                for index, pair in enumerate(self.CASES[:n]):
                    if pair in cases_done(self.run):
                        continue
                    if _one(self.run, *pair, index in fails) != FAILED:
                        self.measured.add(pair)
                consolidate(self.run)
            except Killed:
                # the part may have been renamed into place before the call that died
                self.measured |= {
                    (end.case_id, end.launch)
                    for end in read_ends(self.run)
                    if end.stopped_by != FAILED
                }

    @invariant()
    def every_row_once(self) -> None:
        if not (self.run / MANIFEST_FILE).exists():
            return
        assert self.measured <= cases_done(self.run)
        rows_of_done = sorted(
            (row for pair in self.measured for row in repetitions(*pair)), key=key
        )
        consolidated = cases_done(self.run, parts=False)
        found: list[Sample] = []
        if (self.run / SAMPLES_FILE).exists():
            found += listed(read_table(self.run / SAMPLES_FILE))
        for path in part_paths(self.run):
            end = read_end(path)
            if (end.case_id, end.launch) not in consolidated and end.stopped_by != FAILED:
                found += repetitions(end.case_id, end.launch)
        assert sorted(found, key=key) == rows_of_done

    def teardown(self) -> None:
        consolidate(self.run)
        ends = ends_of(self.run) if (self.run / MANIFEST_FILE).exists() else {}
        assert {pair for pair, how in ends.items() if how == "interval"} == self.measured
        self._directory.cleanup()


TestCommands = Commands.TestCase
TestCommands.settings = settings(max_examples=15, stateful_step_count=8)


def test_the_killed_calls_are_those_that_are_made(tmp_path: Path) -> None:
    """The tests above must die where the program really renames and removes."""
    begin(tmp_path)
    write(tmp_path, "a")
    write(tmp_path, "b")
    with killed_at(1000) as made:
        consolidate(tmp_path)
    assert made == ["replace", "replace", "unlink", "unlink", "rmdir"]


def test_a_part_that_is_damaged_is_kept(tmp_path: Path) -> None:
    """Merged, it would spoil the rows of all others, and be gone."""
    good, bad = "a" * 16, "b" * 16
    write_part(tmp_path, end_of(good), table_of([sample(case_id=good)]))
    write_part(tmp_path, end_of(bad), table_of([sample(case_id=bad, seconds=math.inf)]))
    with pytest.raises(FileError, match=f"{bad}.parquet: column seconds is wrong in 1 of 1 rows"):
        consolidate(tmp_path)
    assert len(part_paths(tmp_path)) == 2 and not (tmp_path / SAMPLES_FILE).exists()


def test_a_file_among_the_parts_that_is_none(tmp_path: Path) -> None:
    write_part(tmp_path, end_of("a" * 16), table_of([sample(case_id="a" * 16)]))
    part_paths(tmp_path)[0].rename(part_paths(tmp_path)[0].with_name("mine.parquet"))
    with pytest.raises(FileError, match=r"mine\.parquet is no part of a measurement; remove it"):
        cases_done(tmp_path)
