"""Rows in Parquet: they come back as they were; what is wrong with a file is one line."""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from foundation.errors import FileError
from microbench.samples import (
    PARTS_DIRECTORY,
    SAMPLES_FILE,
    SAMPLES_FORMAT,
    Sample,
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
    device=text, dtype=text, groups=whole, stride=whole, nodes=whole, cold=st.booleans(),
    background_nbytes=whole, start=text, mode=text, late_seconds=real, host_seconds=real, marks=text,
)  # fmt: skip


def one_line(error: BaseException) -> str:
    assert len(str(error).splitlines()) == 1
    return str(error)


def rows(case_id: str, launch: int = 0, n: int = 3) -> list[Sample]:
    """n repetitions of one case."""
    return [
        sample(case_id=case_id, launch=launch, repetition=i, seconds=0.1 * i, late_seconds=0.0,
               host_seconds=0.0)
        for i in range(n)
    ]  # fmt: skip


@settings(
    max_examples=50,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(content=st.lists(random_samples, max_size=5))
def test_rows_come_back_as_they_were(tmp_path: Path, content: list[Sample]) -> None:
    """Every bit of every number, whatever the text."""
    write_samples(tmp_path / SAMPLES_FILE, content)
    assert read_samples(tmp_path) == content


def test_what_is_not_known_stays_unknown(tmp_path: Path) -> None:
    """NaN is no null, and no zero."""
    write_samples(tmp_path / SAMPLES_FILE, [sample()])
    (row,) = read_samples(tmp_path)
    assert math.isnan(row.late_seconds) and math.isnan(row.host_seconds)
    assert replace(row, late_seconds=0.0, host_seconds=0.0) == sample(
        late_seconds=0.0, host_seconds=0.0
    )


def test_metadata_of_a_file_is_kept_beside_its_format(tmp_path: Path) -> None:
    path = tmp_path / SAMPLES_FILE
    write_samples(path, rows("a"), {"key": "größer"})
    found = pq.read_schema(path).metadata
    assert found[b"key"].decode() == "größer"
    assert found[b"calib_samples_format"] == str(SAMPLES_FORMAT).encode()
    assert read_samples(tmp_path) == rows("a")


def test_parts_are_rows_too(tmp_path: Path) -> None:
    """The rows of an unfinished measurement: samples.parquet first, then the parts by name."""
    for path, content in {
        PARTS_DIRECTORY + "/01-a.parquet": rows("a", 1),
        PARTS_DIRECTORY + "/00-b.parquet": rows("b"),
        SAMPLES_FILE: rows("a"),
    }.items():
        write_samples(tmp_path / path, content)
    assert read_samples(tmp_path) == rows("a") + rows("b") + rows("a", 1)


def test_the_path_of_a_run_is_not_data(tmp_path: Path) -> None:
    """Arrow takes `launch=7` in a path for a column of a partitioned table."""
    run = tmp_path / "launch=7" / "level=rack"
    write_samples(run / SAMPLES_FILE, rows("a", 1))
    assert read_run_table(run).column("launch").to_pylist() == [1, 1, 1]
    assert {(s.launch, s.level) for s in read_samples(run)} == {(1, "node")}


def test_the_columns_are_the_fields() -> None:
    assert schema().names == list(asdict(sample()))


def test_a_run_that_holds_nothing(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="holds no samples; run `calib measure") as caught:
        read_samples(tmp_path)
    one_line(caught.value)


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


@pytest.mark.parametrize("version", ["1", "3", "one", None])
def test_another_format_is_refused(tmp_path: Path, version: str | None) -> None:
    metadata = {} if version is None else {"calib_samples_format": version}
    table = pa.Table.from_pylist([asdict(sample())], schema=schema())
    write_table(tmp_path / SAMPLES_FILE, table.replace_schema_metadata(metadata))
    with pytest.raises(FileError, match=f"has format {str(version).lower()}; this .* reads 2") as e:
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
    (row,) = read_samples(tmp_path)
    assert asdict(row).keys() == asdict(sample()).keys() and row.case_id == sample().case_id


def test_a_column_of_another_type_is_one_line(tmp_path: Path) -> None:
    table = pa.Table.from_pylist([{**asdict(sample()), "seconds": "fast"}])
    metadata = {"calib_samples_format": str(SAMPLES_FORMAT)}
    write_table(tmp_path / SAMPLES_FILE, table.replace_schema_metadata(metadata))
    with pytest.raises(FileError) as caught:
        read_samples(tmp_path)
    one_line(caught.value)


@pytest.mark.parametrize(
    ("fields", "spoiled"),
    [
        ({}, False),
        ({"oversubscribed": True}, True),
        ({"marks": "throttled"}, True),
        ({"marks": "power_capped"}, False),
        ({"marks": "power_capped,shared_gpu"}, True),
        ({"marks": "ranks_share_gpu"}, True),
    ],
)
def test_what_must_not_calibrate(fields: dict[str, Any], spoiled: bool) -> None:
    """A power cap is how a loaded GPU works, in training too; heat and company are not."""
    assert sample(**fields).spoiled is spoiled
