"""Rows in Parquet: they come back as they were; what is wrong with a file is one line."""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.helpers.rows import as_samples, listed, repetitions, rows_in, sample, write_rows

from calib.foundation.errors import FileError
from calib.foundation.run_files import PARTS_DIRECTORY, SAMPLES_FILE
from calib.microbench.records.samples import (
    SAMPLES_FORMAT,
    Sample,
    Samples,
    make_table,
    read_run_table,
    read_samples,
    read_table,
    schema,
    write_table,
)

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
whole = st.integers(0, 2**62)
count = st.integers(0, 10**9)
positive = st.integers(1, 10**9)
times = st.just(0.0) | st.floats(1e-15, 1e9)
BY_TYPE = {str: text, int: count, float: st.floats(allow_nan=False), bool: st.booleans()}
random_samples = st.builds(
    Sample,
    **{name: BY_TYPE[of] for name, of in get_type_hints(Sample).items() if of in BY_TYPE}
    | {"seconds": times, "rank_seconds": st.lists(times, max_size=4), "ranks": st.just(10**9)}
    | {name: positive for name in ("active_ranks", "groups", "stride", "nodes")}
    | {name: whole for name in ("nbytes", "repetition", "calls")},
)


def one_line(error: BaseException) -> str:
    assert len(str(error).splitlines()) == 1
    return str(error)


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.lists(random_samples, max_size=5))
def test_rows_come_back_as_they_were(tmp_path: Path, content: list[Sample]) -> None:
    """Every bit of every number, whatever the text."""
    write_rows(tmp_path / SAMPLES_FILE, content)
    assert rows_in(tmp_path) == content


def test_what_is_not_known_stays_unknown(tmp_path: Path) -> None:
    """NaN is no null, and no zero."""
    write_rows(tmp_path / SAMPLES_FILE, [sample()])
    (row,) = rows_in(tmp_path)
    assert math.isnan(row.late_seconds) and math.isnan(row.host_seconds)
    known = dict.fromkeys(("late_seconds", "host_seconds", "resolution_s"), 0.0)
    assert replace(row, **known) == sample(**known)


def test_parts_are_rows_too(tmp_path: Path) -> None:
    """The rows of an unfinished measurement: samples.parquet first, then the parts by name."""
    for path, content in {
        PARTS_DIRECTORY + "/01-a.parquet": repetitions("a", 1),
        PARTS_DIRECTORY + "/00-b.parquet": repetitions("b"),
        SAMPLES_FILE: repetitions("a"),
    }.items():
        write_rows(tmp_path / path, content)
    assert rows_in(tmp_path) == repetitions("a") + repetitions("b") + repetitions("a", 1)


def test_the_path_of_a_run_is_not_data(tmp_path: Path) -> None:
    """Arrow takes `launch=7` in a path for a column of a partitioned table."""
    run = tmp_path / "launch=7" / "level=rack"
    write_rows(run / SAMPLES_FILE, repetitions("a", 1))
    assert read_run_table(run).column("launch").to_pylist() == [1, 1, 1]
    assert {(s.launch, s.level) for s in rows_in(run)} == {(1, "node")}


def test_the_columns_are_the_fields() -> None:
    assert schema().names == list(asdict(sample()))


@pytest.mark.parametrize("name", ["plan.json", "cluster.json", "manifest.json"])
def test_a_run_that_holds_nothing(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("{}")
    with pytest.raises(FileError, match="holds no samples: nothing was measured") as caught:
        read_samples(tmp_path)
    one_line(caught.value)


def test_a_folder_that_is_no_run(tmp_path: Path) -> None:
    """To measure into a folder of logs is no good advice."""
    (tmp_path / "log.txt").write_text("# nccl-tests")
    with pytest.raises(FileError, match="is no run directory: ") as caught:
        read_samples(tmp_path)
    assert one_line(caught.value) and caught.value.wants == "run of logs"


def test_every_kind_of_damage_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / SAMPLES_FILE
    write_rows(path, repetitions("a", n=50))
    whole_file = path.read_bytes()
    for length in (0, 1, 4, 100, len(whole_file) // 2, len(whole_file) - 1):
        path.write_bytes(whole_file[:length])
        with pytest.raises(FileError, match="truncated or not Parquet") as caught:
            rows_in(tmp_path)
        assert str(path) in one_line(caught.value)
    path.write_text("case_id,seconds\na,1\n")
    with pytest.raises(FileError, match="truncated or not Parquet"):
        read_table(path)
    with pytest.raises(FileError, match="does not exist"):
        read_table(tmp_path / "missing.parquet")


@pytest.mark.parametrize("version", ["0", "2", "one", None])
def test_another_format_is_refused(tmp_path: Path, version: str | None) -> None:
    metadata = {} if version is None else {"calib_samples_format": version}
    table = pa.Table.from_pylist([asdict(sample())], schema=schema())
    write_table(tmp_path / SAMPLES_FILE, table.replace_schema_metadata(metadata))
    with pytest.raises(FileError, match=f"has format {str(version).lower()}; this .* reads 1") as e:
        rows_in(tmp_path)
    one_line(e.value)


def test_columns_that_are_missing_are_named(tmp_path: Path) -> None:
    table = pa.Table.from_pylist([asdict(sample())], schema=schema())
    write_table(tmp_path / SAMPLES_FILE, table.drop_columns(["nbytes", "calls"]))
    with pytest.raises(FileError, match="has no column calls, nbytes"):
        rows_in(tmp_path)


def test_columns_of_a_later_writer_are_left_out(tmp_path: Path) -> None:
    table = pa.Table.from_pylist([asdict(sample())], schema=schema())
    more = table.append_column("colour", pa.array(["red"]))
    pq.write_table(more, tmp_path / SAMPLES_FILE)
    (row,) = rows_in(tmp_path)
    assert asdict(row).keys() == asdict(sample()).keys() and row.case_id == sample().case_id


def test_a_column_of_another_type_is_one_line(tmp_path: Path) -> None:
    table = pa.Table.from_pylist([{**asdict(sample()), "seconds": "fast"}])
    metadata = {"calib_samples_format": str(SAMPLES_FORMAT)}
    write_table(tmp_path / SAMPLES_FILE, table.replace_schema_metadata(metadata))
    with pytest.raises(FileError) as caught:
        rows_in(tmp_path)
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
    one = as_samples([sample(**fields)])
    assert one.spoiled.tolist() == [spoiled] and len(one.usable) == (not spoiled)


@settings(max_examples=100)
@given(
    content=st.lists(random_samples, max_size=12),
    names=st.lists(
        st.sampled_from(["kind", "operation", "launch", "warmup", "seconds"]), min_size=1
    ),
)
def test_groups_are_the_rows_that_agree(content: list[Sample], names: list[str]) -> None:
    """Also of a selection of a selection: as a dictionary of rows, made one by one, has them."""
    expected: dict[Any, list[Sample]] = {}
    kept = [replace(row, kind=row.kind[:1], launch=row.launch % 3) for row in content]
    found = as_samples(kept)
    found = found.where(found["launch"] < 2)
    found = found.where(found.mask("operation", "m".__ge__), oversubscribed=False)
    kept = [
        row for row in kept if row.launch < 2 and row.operation <= "m" and not row.oversubscribed
    ]
    for row in kept:
        expected.setdefault(tuple(getattr(row, name) for name in names), []).append(row)
    groups = found.groups(*names)
    assert {key: listed(rows.table) for key, rows in groups.items()} == expected
    assert list(groups) == list(expected), "in the order of their first rows"
    assert [rows.first for rows in groups.values()] == [rows[0] for rows in expected.values()]
    for name in names:
        assert found[name].tolist() == [getattr(row, name) for row in kept]
        assert found.distinct(name) == sorted({getattr(row, name) for row in kept})


def test_groups_by_more_values_than_a_number_holds() -> None:
    """10,000 different values of each of six columns could be 10^24 groups; these are 10,000."""
    names = ["ranks", "nbytes", "batch", "launch", "repetition", "calls"]
    numbers = np.random.default_rng(0).permuted(np.tile(np.arange(10_000), (6, 1)), axis=1)
    content = {name: numbers[i] for i, name in enumerate(names)}
    about = {name: getattr(sample(), name) for name in schema().names} | content
    lists = pa.array([[1.0]] * 10_000)
    groups = Samples(make_table(10_000, **about | {"rank_seconds": lists})).groups(*names)
    assert list(groups) == list(zip(*(numbers[i].tolist() for i in range(6)), strict=True))


def test_times_of_the_ranks_that_every_row_has() -> None:
    rows = as_samples([sample(rank_seconds=each) for each in ([1.0, 2.0], [], [3.0, 4.0, 5.0])])
    assert rows.where(np.array([True, False, True])).rank_seconds.tolist() == [[1, 2], [3, 4]]
    assert rows.rank_seconds.shape == (3, 0)


def test_other_values_in_a_column_leave_the_whole_as_it_was() -> None:
    whole = as_samples([sample(nbytes=size) for size in (1, 2, 3)])
    small = whole.where(whole["nbytes"] < 3)
    changed = small.with_column("nbytes", 10 * small["nbytes"])
    assert changed["nbytes"].tolist() == [10, 20] == changed.table["nbytes"].to_pylist()
    assert list(changed.groups("nbytes")) == [(10,), (20,)]
    assert whole["nbytes"].tolist() == [1, 2, 3] and list(small.groups("nbytes")) == [(1,), (2,)]
    apart = [whole.where(nbytes=3), whole.where(nbytes=1)]
    assert apart[0].joined(apart[1:])["nbytes"].tolist() == [3, 1]


# rows that no measurement gives: an edited file


def edited(path: Path, column: str, values: list[Any], **fields: Any) -> str:
    """What a file of the rows `fields` is refused with, where `column` holds `values`."""
    table = pa.Table.from_pylist([asdict(sample(**fields)) for _ in values], schema=schema())
    at = table.schema.get_field_index(column)
    field = table.schema.field(at)
    write_table(path / SAMPLES_FILE, table.set_column(at, field, pa.array(values, field.type)))
    with pytest.raises(FileError) as caught:
        rows_in(path)
    assert str(path / SAMPLES_FILE) in one_line(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("column", "bad"),
    [
        *[("seconds", x) for x in (-1.0, 1e-320, 1e300, math.inf, math.nan, None)],
        *[("rank_seconds", [1.0, x]) for x in (-1.0, 1e-320, math.inf, math.nan)],
        ("rank_seconds", None),
        *[(name, 0) for name in ("ranks", "active_ranks", "nodes", "groups", "stride")],
        *[(name, -1) for name in ("ranks", "nbytes", "ntensors", "batch")],
        *[("launch", x) for x in (-5, 2**62, None)],
        ("nbytes", 2**63 - 1),
        ("nodes", 3),
        ("kind", None),
    ],
)
def test_a_row_that_cannot_be(tmp_path: Path, column: str, bad: Any) -> None:
    """The file, the column, how many rows and the first bad value are in the line."""
    good = asdict(sample())[column]
    message = edited(tmp_path, column, [good, bad, bad, good, good])
    assert f"column {column} is wrong in 2 of 5 rows, first in row 1 (from 0): {bad!r}" in message


@pytest.mark.parametrize("kind", ["layer", "tensors", "in_place"])
def test_times_of_each_rank_are_needed_of_a_layer(tmp_path: Path, kind: str) -> None:
    message = edited(tmp_path, "rank_seconds", [[1.0], [], [1.0]], kind=kind)
    assert "column rank_seconds is wrong in 1 of 3 rows, first in row 1 (from 0): []" in message


@pytest.mark.parametrize("key", ["", "2", "inner=", "inner=x", "inner=0", "inner=-2", "inner=2 "])
def test_the_groups_of_a_hierarchy(tmp_path: Path, key: str) -> None:
    message = edited(tmp_path, "key", ["inner=2", key], operation="hierarchical_allreduce")
    assert f"column key is wrong in 1 of 2 rows, first in row 1 (from 0): {key!r}" in message
    name = "hierarchical_allreduce inner=x"
    assert repr(name) in edited(tmp_path, "operation", ["allreduce", name])


@pytest.mark.parametrize(
    "fields",
    [
        {"late_seconds": math.nan, "host_seconds": math.nan, "skew_seconds": math.nan},
        {"seconds": 0.0, "rank_seconds": [0.0, 1e-9]},
        {"rank_seconds": []},  # a log says nothing of each rank
        {"nbytes": 0, "calls": 1000, "ranks": 144, "nodes": 144, "groups": 32},
        {"operation": "hierarchical_allreduce", "key": "inner=2", "ranks": 4},
        {"kind": "layer", "ranks": 1, "active_ranks": 1, "rank_seconds": [1.0]},
    ],
)
def test_what_runs_and_imports_write_is_read(tmp_path: Path, fields: dict[str, Any]) -> None:
    write_rows(tmp_path / SAMPLES_FILE, [sample(**fields)] * 2)
    assert repr(rows_in(tmp_path)) == repr([sample(**fields)] * 2)  # NaN is not itself


def test_a_bad_row_of_a_part_names_the_part(tmp_path: Path) -> None:
    write_rows(tmp_path / SAMPLES_FILE, repetitions("a"))
    write_rows(tmp_path / PARTS_DIRECTORY / "00-b.parquet", [sample(seconds=-1.0)])
    with pytest.raises(FileError, match=r"00-b\.parquet: column seconds is wrong in 1 of 1 rows"):
        read_samples(tmp_path, kind="layer")


def test_a_column_whose_name_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "samples.parquet"
    write_rows(path, [sample()])
    table = pq.read_table(path)
    pq.write_table(table.rename_columns(["xxxx", *table.schema.names[1:]]), path)
    path.write_bytes(path.read_bytes().replace(b"xxxx", b"\xff\xfe\xfd\xfc"))
    with pytest.raises(FileError, match="the name of a column is not UTF-8"):
        read_table(path)


def test_a_format_that_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "samples.parquet"
    write_rows(path, [sample()])
    table = pq.read_table(path)
    for word in (b"\xff", b"[" * 50_000):
        pq.write_table(table.replace_schema_metadata({b"calib_samples_format": word}), path)
        with pytest.raises(FileError, match="has format ") as error:
            read_table(path)
        assert len(str(error.value)) < 2100
