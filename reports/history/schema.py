"""The tables of the history.

A key of all tables is `night`, a number that the database gives; `nights.id` is the name that calib
gives. Tables of a night go when it goes. docs/history.md has the columns for people.
"""

from __future__ import annotations

import json
from typing import Any, get_args

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    Double,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    inspect,
    select,
    text,
)

from calib.foundation.errors import FileError
from calib.foundation.quantities import (
    LEAST_SECONDS,
    MAX_BYTES,
    MAX_COUNT,
    MAX_FLOPS,
    MAX_RANKS,
    MAX_RATIO,
    MAX_SECONDS,
)
from calib.foundation.records import Estimate
from calib.microbench.records.looks import DISTURBANCES
from calib.reports.scoring.accuracy import CheckKind

SCHEMA = 1  # the version of the tables below
# of PostgreSQL's advisory locks: "calib" as a number
LOCK = int.from_bytes(b"calib", "big")

MAX_UNIX_S = 2.6e11  # as far as a date of Python goes
metadata = MetaData()
# in SQLite, only a column of the type INTEGER counts by itself
NUMBER = BigInteger().with_variant(Integer(), "sqlite")
HOLDS = "holds"  # in the info of a column: what a value of it must be, as a function


def _whole(least: int = 0, most: int = MAX_COUNT) -> dict[Any, Any]:
    return {HOLDS: lambda x: type(x) is int and least <= x <= most}


def _within(least: float, most: float) -> dict[Any, Any]:
    return {HOLDS: lambda x: type(x) in (int, float) and least <= x <= most}


def _time(most: float) -> dict[Any, Any]:
    return {
        HOLDS: lambda x: type(x) in (int, float) and (x == 0 or LEAST_SECONDS <= abs(x) <= most)
    }


def _is_work(value: Any) -> bool:
    """Whether it is what `work_of` (rows.py) writes: one JSON object of values or lists of numbers."""
    try:
        content = json.loads(value)
    except (TypeError, ValueError, RecursionError):
        return False
    if not isinstance(content, dict):
        return False
    parts = [part for value in content.values() for part in _parts(value)]
    return not any(isinstance(part, dict | list) for part in parts)


def _parts(value: Any) -> list[Any]:
    """The stages' boundaries of a pipeline, or a plain value."""
    return value if isinstance(value, list) and {type(part) for part in value} <= {int} else [value]


def _is_kind(value: Any) -> bool:
    return value in get_args(CheckKind)


def _is_disturbed(value: Any) -> bool:
    """Whether it is what `disturbed_text` (rows.py) writes: words of Disturbance between commas."""
    return type(value) is str and {*value.split(",")} <= {"", *DISTURBANCES}


A_TEXT: dict[Any, Any] = {HOLDS: lambda x: type(x) is str}
A_FLAG: dict[Any, Any] = {HOLDS: lambda x: type(x) in (bool, int) and x in (0, 1)}


def _number(name: str, least: int = 0, most: int = MAX_COUNT) -> Column[int]:
    return Column(name, NUMBER, nullable=False, info=_whole(least, most))


def _key(name: str) -> Column[int]:
    return Column(name, NUMBER, primary_key=True, autoincrement=False, info=_whole())


def _real(name: str, least: float, most: float, nullable: bool = False) -> Column[float]:
    return Column(name, Double(), nullable=nullable, info=_within(least, most))


def _text(name: str, unique: bool = False) -> Column[str]:
    return Column(name, Text(), nullable=False, unique=unique, info=A_TEXT)


def _flag(name: str) -> Column[bool]:
    return Column(name, Boolean(), nullable=False, info=A_FLAG)


def _night() -> Column[int]:
    owner = ForeignKey("nights.night", ondelete="CASCADE")
    return Column("night", NUMBER, owner, primary_key=True, autoincrement=False, info=_whole())


def _times(name: str, nullable: bool = False) -> tuple[Column[float], ...]:
    """Seconds with their 95% interval."""
    most = MAX_FLOPS if name == "predicted" else MAX_SECONDS  # oracle/projection.py, PhaseTime
    return tuple(
        Column(column, Double(), nullable=nullable, info=_time(most))
        for column in Estimate.columns(name, "s")
    )


def _part(name: str, *columns: Column[int] | Column[float] | Column[str] | Column[bool]) -> Table:
    """A table of what belongs to a night, in the order of its second column."""
    return Table(name, metadata, _night(), *columns, sqlite_with_rowid=False)


schema_version = Table(
    "calib_schema", metadata, Column("version", Integer(), primary_key=True, autoincrement=False)
)
nights = Table(
    "nights",
    metadata,
    Column("night", NUMBER, primary_key=True, autoincrement=True, info=_whole()),
    _text("id", unique=True),
    _text("run"),
    _text("started"),
    _real("started_unix_s", -MAX_UNIX_S, MAX_UNIX_S),
    _flag("nightly"),
    _text("cluster_name"),
    _text("cluster_fingerprint"),
    _text("machine"),
    _text("program_version"),
    _text("parameters_id"),
    _number("planned_points"),
    Index("nights_of_machine", "machine", "started_unix_s"),
)
versions = _part("versions", _key("place"), _text("name"), _text("value"))
points = _part(
    "points",
    _key("point"),
    _text("run_id"),
    Column("work", Text(), nullable=False, info={HOLDS: _is_work}),
    _text("model"),
    _text("strategy"),
    _text("layout"),
    _number("p", 1, MAX_RANKS),
    _real("batch_per_rank", 1 / MAX_RANKS, MAX_FLOPS),
    *_times("predicted"),
    *_times("measured"),
    _flag("oversubscribed"),
    _real("memory_predicted_bytes", 0, MAX_BYTES, nullable=True),
    Column("memory_measured_bytes", BigInteger(), info=_whole(0, MAX_BYTES)),
    _number("iterations"),
    _text("library"),
    _text("optimizer"),
    _text("execution"),
    _number("threads_per_rank"),
    Column("disturbed", Text(), nullable=False, info={HOLDS: _is_disturbed}),
    _real("waited", 0, MAX_RATIO, nullable=True),
    _real("slowdown", 0, MAX_RATIO, nullable=True),
    *_times("at_speed", nullable=True),
)
Index(
    "one_point_of_a_training",
    points.c.night,
    points.c.run_id,
    unique=True,
    sqlite_where=text("run_id != ''"),
    postgresql_where=text("run_id != ''"),
)
phases = Table(
    "phases",
    metadata,
    _key("night"),
    _key("point"),
    _key("place"),
    _text("phase"),
    *_times("predicted"),
    *_times("measured"),
    ForeignKeyConstraint(["night", "point"], ["points.night", "points.point"], ondelete="CASCADE"),
    sqlite_with_rowid=False,
)
checks = _part(
    "checks",
    _key("place"),
    Column("kind", Text(), nullable=False, info={HOLDS: _is_kind}),
    _text("what"),
    _text("case_name"),
    *_times("expected"),
    *_times("measured"),
    Column("disturbed", Text(), nullable=False, info={HOLDS: _is_disturbed}),
)
missing = _part("missing", _key("place"), _text("what"), _text("why"))
accepted = _part(
    "accepted", _key("place"), _text("series"), _text("reason"), _text("who"), _text("accepted")
)


def version_of(connection: Connection, label: str) -> int | None:
    """The schema of a history; None where the database holds none. Raises FileError if too new."""
    if not inspect(connection).has_table(schema_version.name):
        return None
    rows = connection.scalars(select(schema_version.c.version)).all()
    if len(rows) != 1:
        raise FileError(f"history {label}: its table {schema_version.name} has not one row")
    found = rows[0]
    if not isinstance(found, int) or found < 1:
        raise FileError(f"history {label}: its schema is not a version number; is it damaged?")
    if found > SCHEMA:
        raise FileError(
            f"history {label}: schema {found} is newer than this program (which reads up to "
            f"{SCHEMA}); update calib"
        )
    return found


def make_tables(connection: Connection, label: str) -> None:
    """Make the tables where there are none, inside a transaction that writes.

    Of several processes that open a history at once, the first does it and the others find it done.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": LOCK})
    if version_of(connection, label) is not None:
        return
    _refuse_others(connection, label)
    metadata.create_all(connection)
    connection.execute(schema_version.insert().values(version=SCHEMA))


def _refuse_others(connection: Connection, label: str) -> None:
    """A server may hold other things beside a history; a SQLite file is of one program."""
    there = set(inspect(connection).get_table_names())
    clash = sorted(there if connection.dialect.name == "sqlite" else there & set(metadata.tables))
    if clash:
        raise FileError(
            f"history {label}: it is the database of something else (its table {clash[0]} is not "
            "calib's); choose another"
        )
