"""A calib.db whose columns hold what calib never wrote: one line that names the column, no traceback."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from tests.calib.inside import calib
from tests.calib.running import refused
from tests.reports.history_entries import entry

from calib.foundation.errors import FileError
from calib.reports.history.store import History

NIGHTS = 4


@pytest.fixture
def where(tmp_path: Path) -> Path:
    path = tmp_path / "calib.db"
    with History.open(str(path)) as history:
        for night in range(1, NIGHTS + 1):
            history.record(entry(night))
    return path


def damage(path: Path, table: str, column: str, value: object, loose: bool = False) -> None:
    """Put a value into a column of all rows; `loose`: also where the schema forbids it."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        if loose:
            connection.execute("PRAGMA writable_schema = ON")
            connection.execute(
                "UPDATE sqlite_master SET sql = replace(sql, ? , ?) WHERE name = ?",
                (" NOT NULL", "", table),
            )
            connection.execute("PRAGMA writable_schema = RESET")
        connection.execute(f"UPDATE {table} SET {column} = ?", (value,))


@pytest.mark.parametrize(
    ("table", "column", "value"),
    [
        ("points", "measured_s", "fast"),
        ("points", "measured_s", 9e307),
        ("points", "measured_s", float("inf")),
        ("points", "measured_s", 5e-324),
        ("points", "predicted_s", b"\x00\xff"),
        ("points", "predicted_s", 1e-300),
        ("points", "batch_per_rank", 0.0),
        ("points", "batch_per_rank", "eight"),
        ("points", "p", -2),
        ("points", "p", 2.5),
        ("points", "oversubscribed", "perhaps"),
        ("points", "memory_predicted_bytes", -1.0),
        ("points", "memory_measured_bytes", "much"),
        ("points", "work", "{"),
        ("points", "work", "[" * 50_000),
        ("points", "work", '{"model": {"a": 1}}'),
        ("points", "work", '{"boundaries": [1, [2]]}'),
        ("points", "model", b"\xff"),
        ("phases", "measured_s", "x"),
        ("phases", "predicted_s", -1e300),
        ("phases", "phase", b"halo"),
        ("checks", "measured_s", 1e30),
        ("checks", "expected_s", "none"),
        ("checks", "kind", "weather"),
        ("nights", "started", "yesterday"),
        ("nights", "started_unix_s", "soon"),
        ("nights", "started_unix_s", 1e300),
        ("nights", "planned_points", -1),
        ("nights", "nightly", 7),
        ("nights", "machine", b"\x01"),
        ("versions", "value", b"6.1"),
        ("missing", "why", b"\x80"),
    ],
)
def test_what_no_column_holds(where: Path, table: str, column: str, value: object) -> None:
    damage(where, table, column, value)
    before = where.read_bytes()
    with pytest.raises(FileError) as error, History.open(str(where), read_only=True) as history:
        history.machines()
        history.past("a" * 16)
    message = str(error.value)
    assert "\n" not in message and len(message) < 400
    assert f"{table}.{column}" in message and message.endswith("it is damaged"), message
    for more in (("--json",), ("--openmetrics", "-"), ()):
        line = refused(calib(where.parent, "history", "--history", "calib.db", *more))
        assert column in line
    assert where.read_bytes() == before


@pytest.mark.parametrize(
    ("table", "column"),
    [("points", "measured_s"), ("nights", "started"), ("checks", "kind"), ("phases", "phase")],
)
def test_a_value_that_is_missing(where: Path, table: str, column: str) -> None:
    damage(where, table, column, None, loose=True)
    message = f"{table}.{column} of a row is None"
    with History.open(str(where), read_only=True) as h, pytest.raises(FileError, match=message):
        h.machines()
        h.past("a" * 16)


def test_extremes_that_a_column_may_hold(where: Path) -> None:
    """The least and the largest time: bars, steps and metrics of them are still numbers."""
    with closing(sqlite3.connect(where, isolation_level=None)) as connection:
        connection.execute("UPDATE points SET measured_s = 1e-15, predicted_s = 1e9")
    for more in (("--json",), ("--openmetrics", "-"), ("--csv", "-"), ()):
        done = calib(where.parent, "history", "--history", "calib.db", *more)
        assert done.returncode == 0, done.stderr
        assert "Warning" not in done.stderr
