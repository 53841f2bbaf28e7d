"""samples.parquet: rows come back as they were, and a crash neither loses nor doubles them."""

from __future__ import annotations

import os
import random
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import microbench.samples
from foundation.errors import FileError
from microbench.samples import (
    PARTS_DIRECTORY,
    SAMPLES_FILE,
    Sample,
    cases_done,
    consolidate,
    part_path,
    read_run_table,
    read_samples,
    read_table,
    schema,
    write_samples,
    write_table,
)
from tests.helpers.rows import sample

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
whole = st.integers(0, 2**62)
real = st.floats(allow_nan=False)
random_samples = st.builds(
    Sample, case_id=text, kind=text, operation=text, key=text, library=text, level=text,
    ranks=whole, active_ranks=whole, nbytes=whole, ntensors=whole, batch=whole, launch=whole,
    repetition=whole, warmup=st.booleans(), oversubscribed=st.booleans(), calls=whole,
    seconds=real, skew_seconds=real, rank_seconds=st.lists(real, max_size=4), started_unix_s=real,
)  # fmt: skip


def one_line(error: BaseException) -> str:
    assert len(str(error).splitlines()) == 1
    return str(error)


def rows(case_id: str, launch: int = 0, n: int = 3) -> list[Sample]:
    """n repetitions of one case."""
    return [sample(case_id=case_id, launch=launch, repetition=i, seconds=0.1 * i) for i in range(n)]


def write_part(run: Path, case_id: str, launch: int = 0, n: int = 3) -> list[Sample]:
    """The part file of a case, as a session writes it."""
    content = rows(case_id, launch, n)
    write_samples(part_path(run, case_id, launch), content)
    return content


@settings(
    max_examples=50,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(content=st.lists(random_samples, max_size=5))
def test_rows_come_back_as_they_were(tmp_path: Path, content: list[Sample]) -> None:
    """Every bit of every number, whatever the text."""
    write_samples(tmp_path / SAMPLES_FILE, content)
    assert read_samples(tmp_path) == content


def test_the_columns_are_the_fields() -> None:
    assert schema().names == list(asdict(sample()))


def test_consolidate_keeps_all_rows_once(tmp_path: Path) -> None:
    content = write_part(tmp_path, "a") + write_part(tmp_path, "a", 1) + write_part(tmp_path, "b")
    key = lambda s: (s.launch, s.case_id, s.repetition)  # noqa: E731
    assert sorted(read_samples(tmp_path), key=key) == sorted(content, key=key)
    assert consolidate(tmp_path) == 9
    assert not (tmp_path / PARTS_DIRECTORY).exists()
    assert sorted(read_samples(tmp_path), key=key) == sorted(content, key=key)
    before = (tmp_path / SAMPLES_FILE).read_bytes()
    consolidate(tmp_path)
    assert (tmp_path / SAMPLES_FILE).read_bytes() == before
    content += write_part(tmp_path, "c", 2)
    consolidate(tmp_path)
    assert sorted(read_samples(tmp_path), key=key) == sorted(content, key=key)


@pytest.mark.parametrize("removed", [0, 1])
def test_killed_between_rename_and_removal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, removed: int
) -> None:
    """None or one of two parts was removed when it died; the rows then stand in both places."""
    content = write_part(tmp_path, "a") + write_part(tmp_path, "b")
    unlink, seen = os.unlink, []

    def dies(path: Any, **where: Any) -> None:
        if len(seen) == removed:
            raise KeyboardInterrupt
        seen.append(path)
        unlink(path, **where)

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", dies)
        with pytest.raises(KeyboardInterrupt):
            consolidate(tmp_path)
    assert len(list((tmp_path / PARTS_DIRECTORY).iterdir())) == 2 - removed
    assert cases_done(tmp_path) == {("a", 0), ("b", 0)}
    content += write_part(tmp_path, "c")
    consolidate(tmp_path)
    assert sorted(read_samples(tmp_path), key=lambda s: (s.case_id, s.repetition)) == content


def test_killed_before_the_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = write_part(tmp_path, "a")

    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(microbench.samples, "write_whole", dies)
        with pytest.raises(KeyboardInterrupt):
            consolidate(tmp_path)
    assert read_samples(tmp_path) == content
    assert consolidate(tmp_path) == 3


@pytest.mark.parametrize("seed", range(5))
def test_any_order_of_writing_and_dying_keeps_each_row_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Thirty random steps: write a part, consolidate, or die after some removals."""
    dice, unlink = random.Random(seed), os.unlink
    expected: list[Sample] = []
    for step in range(30):
        action = dice.choice(["write", "write", "consolidate", "die"])
        if action == "write":
            expected += write_part(tmp_path, f"{step:02d}", dice.randrange(3), dice.randint(1, 4))
            continue
        left = dice.randrange(3) if action == "die" else 10**9

        def counted(path: Any, **where: Any) -> None:
            nonlocal left
            if left == 0:
                raise KeyboardInterrupt
            left -= 1
            unlink(path, **where)

        with monkeypatch.context() as patch:
            patch.setattr(os, "unlink", counted)
            try:
                consolidate(tmp_path)
            except KeyboardInterrupt:
                continue
    assert cases_done(tmp_path) == {(s.case_id, s.launch) for s in expected}
    consolidate(tmp_path)
    key = lambda s: (s.case_id, s.repetition)  # noqa: E731
    assert sorted(read_samples(tmp_path), key=key) == sorted(expected, key=key)


def test_a_run_that_holds_nothing(tmp_path: Path) -> None:
    assert consolidate(tmp_path) == 0
    assert list(tmp_path.iterdir()) == []
    assert cases_done(tmp_path) == set()
    with pytest.raises(FileError, match="holds no samples; run `calib measure") as caught:
        read_samples(tmp_path)
    one_line(caught.value)


def test_cases_done(tmp_path: Path) -> None:
    """From samples.parquet, from parts, or from both; a launch is part of it."""
    write_part(tmp_path, "a", 0)
    write_part(tmp_path, "b", 12)
    consolidate(tmp_path)
    write_part(tmp_path, "a", 1)
    write_part(tmp_path, "c", 123)
    assert cases_done(tmp_path) == {("a", 0), ("a", 1), ("b", 12), ("c", 123)}
    assert cases_done(tmp_path, parts=False) == {("a", 0), ("b", 12)}


def test_every_kind_of_damage_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / SAMPLES_FILE
    write_samples(path, rows("a", n=50))
    whole_file = path.read_bytes()
    for length in (0, 1, 4, 100, len(whole_file) // 2, len(whole_file) - 1):
        path.write_bytes(whole_file[:length])
        with pytest.raises(FileError, match="truncated or not Parquet") as caught:
            read_samples(tmp_path)
        assert str(path) in one_line(caught.value)
    path.write_text("case_id,seconds\na,1\n")
    with pytest.raises(FileError, match="truncated or not Parquet"):
        read_table(path)
    with pytest.raises(FileError, match="does not exist; `calib measure` makes one"):
        read_table(tmp_path / "missing.parquet")


@pytest.mark.parametrize("version", ["2", "0", "one", None])
def test_another_format_is_refused(tmp_path: Path, version: str | None) -> None:
    metadata = {} if version is None else {"calib_samples_format": version}
    table = pa.Table.from_pylist([asdict(sample())], schema=schema())
    write_table(tmp_path / SAMPLES_FILE, table.replace_schema_metadata(metadata))
    with pytest.raises(FileError, match=f"has format {str(version).lower()}; this .* reads 1") as e:
        read_samples(tmp_path)
    one_line(e.value)


def test_columns_that_are_missing_are_named(tmp_path: Path) -> None:
    table = pa.Table.from_pylist([asdict(sample())], schema=schema())
    write_table(tmp_path / SAMPLES_FILE, table.drop_columns(["nbytes", "calls"]))
    with pytest.raises(FileError, match="has no column calls, nbytes"):
        read_samples(tmp_path)


def test_columns_of_a_later_writer_are_left_out(tmp_path: Path) -> None:
    table = pa.Table.from_pylist([asdict(sample())], schema=schema())
    more = table.append_column("colour", pa.array(["red"]))
    pq.write_table(more, tmp_path / SAMPLES_FILE)
    assert read_samples(tmp_path) == [sample()]


def test_the_path_of_a_run_is_not_data(tmp_path: Path) -> None:
    """Arrow takes `launch=7` in a path for a column of a partitioned table."""
    run = tmp_path / "launch=7" / "level=rack"
    write_part(run, "a", 1)
    assert read_run_table(run).column("launch").to_pylist() == [1, 1, 1]
    consolidate(run)
    assert {(s.launch, s.level) for s in read_samples(run)} == {(1, "node")}


def test_a_write_that_was_killed_does_not_stop_consolidate(tmp_path: Path) -> None:
    """SIGKILL in write_whole leaves `.NAME.RANDOM` beside the parts."""
    content = write_part(tmp_path, "a")
    (tmp_path / PARTS_DIRECTORY / ".00-b.parquet.k1ll3d").write_bytes(b"PAR1")
    assert consolidate(tmp_path) == 3
    assert read_samples(tmp_path) == content


def test_a_column_of_another_type_is_one_line(tmp_path: Path) -> None:
    table = pa.Table.from_pylist([{**asdict(sample()), "seconds": "fast"}])
    write_table(
        tmp_path / SAMPLES_FILE, table.replace_schema_metadata({"calib_samples_format": "1"})
    )
    with pytest.raises(FileError):
        read_samples(tmp_path)
