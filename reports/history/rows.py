"""An Entry as database rows; text and numbers that a database can hold."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from typing import Any, NamedTuple

from sqlalchemy import Table

from calib.foundation.errors import InputError
from calib.foundation.records import Estimate
from calib.microbench.records.looks import Disturbance
from calib.reports.history import schema
from calib.reports.history.records import Acceptance, Entry
from calib.reports.scoring.accuracy import Accuracy

DatabaseRow = dict[str, Any]
# PostgreSQL has no NUL in a text, and half a character (a lone surrogate) is no UTF-8
UNWRITABLE = re.compile("[\0\ud800-\udfff]")
KEYS = ("id", "run_id", "machine")  # looked up by an index
LONGEST_KEY = 200  # characters


class NightRows(NamedTuple):
    """A night's row, and those of its parts by table, without the number that the database gives it."""

    night: DatabaseRow
    parts: dict[Table, list[DatabaseRow]]


def text_of(value: str) -> str:
    """`value` as it is stored, with U+FFFD for characters that a database cannot hold."""
    return UNWRITABLE.sub("\N{REPLACEMENT CHARACTER}", value)


def work_of(accuracy: Accuracy) -> str:
    """What a point ran, without the versions: JSON that is equal where the work is.

    Other than `Accuracy.work`, it keeps the strategy on one rank: a series is of one strategy.
    """
    alone = accuracy.p == 1
    batch = float(accuracy.batch_per_rank)
    of = accuracy.division
    stages = {"boundaries": of.boundaries} if of.boundaries and not alone else {}
    until = {"split_until": of.split_until} if of.split_until and not alone else {}
    return json.dumps(
        {
            "model": accuracy.model,
            "p": accuracy.p,
            "batch_per_rank": int(batch) if batch.is_integer() else batch,
            "strategy": accuracy.strategy,
            "layout": "" if alone else accuracy.layout,
            "library": "" if alone else accuracy.library,
            "optimizer": accuracy.optimizer,
            "execution": accuracy.execution,
            "threads_per_rank": accuracy.threads_per_rank,
            **stages,
            **until,
        },
        separators=(",", ":"),
    )


def moment(text: str, what: str, end: bool = False) -> float:
    """Unix seconds of an ISO 8601 time (UTC where it names no zone) or of the start of a date.

    With `end`, a date counts to its end. Raises InputError; `what` names the text in it.
    """
    try:
        try:
            day = date.fromisoformat(text)
            found = datetime.combine(day, time(tzinfo=UTC))
            return (found + timedelta(days=1) if end else found).timestamp()
        except ValueError:
            found = datetime.fromisoformat(text)
            zoned = found if found.tzinfo else found.replace(tzinfo=UTC)
            return zoned.astimezone(UTC).timestamp()  # also refuses the year 0
    except (ValueError, OverflowError) as error:
        raise InputError(f"{what} {text!r} is not a date or time such as 2026-11-03") from error


def rows_of(entry: Entry) -> NightRows:
    """The rows of an entry. Raises InputError where a number is NaN or too large for a database.

    A training that stands in the entry twice (a copy of its file) counts once.
    """
    seen: set[str] = set()
    points: list[DatabaseRow] = []
    phases: list[DatabaseRow] = []
    for accuracy in entry.accuracies:
        if accuracy.run_id and accuracy.run_id in seen:
            continue
        seen.add(accuracy.run_id)
        number = len(points)
        points.append({"point": number, **_point(accuracy)})
        of = {text_of(name): each for name, each in accuracy.phases.items()}
        phases += [
            {
                "point": number,
                "place": place,
                "phase": name,
                **_times("predicted", each.predicted),
                **_times("measured", each.measured),
            }
            for place, (name, each) in enumerate(of.items())
        ]
    checks: list[DatabaseRow] = [
        {
            "kind": check.kind,
            "what": check.what,
            "case_name": check.case,
            **_times("expected", check.expected),
            **_times("measured", check.measured),
            "disturbed": disturbed_text(check.disturbed),
        }
        for check in entry.checks
    ]
    named = {text_of(name): value for name, value in entry.versions.items()}
    versions: list[DatabaseRow] = [{"name": name, "value": value} for name, value in named.items()]
    lacking: list[DatabaseRow] = [
        item.model_dump(include={"what", "why"}) for item in entry.missing
    ]
    parts = {
        schema.versions: _numbered(versions),
        schema.points: points,
        schema.phases: phases,
        schema.checks: _numbered(checks),
        schema.missing: _numbered(lacking),
    }
    return NightRows(
        night=_storable(_night(entry), entry.id, schema.nights),
        parts={of: [_storable(row, entry.id, of) for row in rows] for of, rows in parts.items()},
    )


def acceptance_row(acceptance: Acceptance) -> DatabaseRow:
    """The row of an acceptance, without its night."""
    row = acceptance.model_dump(include={"series", "reason", "who", "accepted"})
    return _storable(row, acceptance.night, schema.accepted)


def _night(entry: Entry) -> DatabaseRow:
    fields = {
        "id",
        "run",
        "started",
        "nightly",
        "cluster_name",
        "cluster_fingerprint",
        "machine",
        "program_version",
        "parameters_id",
    }
    return {
        **entry.model_dump(include=fields),
        "started_unix_s": moment(entry.started, "started"),
        "planned_points": entry.planned,
    }


def _point(of: Accuracy) -> DatabaseRow:
    memory = of.memory
    return {
        "run_id": of.run_id,
        "work": work_of(of),
        "model": of.model,
        "strategy": of.strategy,
        "layout": of.layout,
        "p": of.p,
        "batch_per_rank": float(of.batch_per_rank),
        **_times("predicted", of.total.predicted),
        **_times("measured", of.total.measured),
        "oversubscribed": of.oversubscribed,
        "memory_predicted_bytes": memory.predicted.value if memory else None,
        "memory_measured_bytes": memory.measured_bytes if memory else None,
        "iterations": of.n,
        "library": of.library,
        "optimizer": of.optimizer,
        "execution": of.execution,
        "threads_per_rank": of.threads_per_rank,
        "disturbed": disturbed_text(of.disturbed),
        "waited": of.waited,
        "slowdown": of.slowdown.value if of.slowdown else None,
        **_times("at_speed", of.at_speed.measured if of.at_speed else None),
    }


def disturbed_text(words: Sequence[Disturbance]) -> str:
    """`cores,stolen`; empty where nothing disturbed."""
    return ",".join(words)


def _times(name: str, of: Estimate | None) -> DatabaseRow:
    numbers = of.numbers if of else (None,) * 3
    return dict(zip(Estimate.columns(name, "s"), numbers, strict=True))


def _numbered(rows: list[DatabaseRow]) -> list[DatabaseRow]:
    return [{"place": place, **row} for place, row in enumerate(rows)]


def _storable(row: Mapping[str, Any], night: str, table: Table) -> DatabaseRow:
    """The row with its text as it is stored. Raises InputError for a number that cannot be."""
    where = f"night {night[:LONGEST_KEY]}"

    def storable(column: str, value: Any) -> Any:
        if value is None and table.c[column].nullable:
            return value
        if isinstance(value, str):
            if column in KEYS and len(value) > LONGEST_KEY:
                raise InputError(f"{where}: {column} is over {LONGEST_KEY} characters long")
            value = text_of(value)
        if not table.c[column].info[schema.HOLDS](value):
            raise InputError(f"{where}: {column} is {value}, which no history can hold")
        return value

    return {column: storable(column, value) for column, value in row.items()}
