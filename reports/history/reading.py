"""From the tables to a Past."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field
from sqlalchemy import Column, ColumnElement, Connection, Table, and_, select, type_coerce
from sqlalchemy.types import NullType

from calib.foundation.errors import InputError
from calib.foundation.names import MachineHash
from calib.foundation.quantities import Count
from calib.reports.history.address import DamagedRow
from calib.reports.history.records import Acceptance, Past, PastCheck, PastNight, PastPoint
from calib.reports.history.rows import moment
from calib.reports.history.schema import (
    HOLDS,
    accepted,
    checks,
    missing,
    nights,
    phases,
    points,
    versions,
)
from calib.reports.scoring.accuracy import Missing

POINT = (
    "run_id",
    "work",
    "model",
    "strategy",
    "layout",
    "execution",
    "p",
    "batch_per_rank",
    "predicted_s",
    "predicted_low_s",
    "predicted_high_s",
    "measured_s",
    "measured_low_s",
    "measured_high_s",
    "oversubscribed",
    "memory_predicted_bytes",
    "memory_measured_bytes",
    "disturbed",
    "waited",
    "slowdown",
    "at_speed_s",
)
CHECK = ("kind", "what", "case_name", "expected_s", "measured_s", "disturbed")


@dataclass(frozen=True)
class MachineNights:
    """A machine of a history."""

    machine: MachineHash
    cluster_name: Annotated[str, Field(description="its newest name")]
    nights: Annotated[Count, Field(description="how many")]
    first: Annotated[str, Field(description="start of its first night, UTC, ISO 8601")]
    last: Annotated[str, Field(description="start of its newest night, UTC, ISO 8601")]


def machines_in(connection: Connection) -> list[MachineNights]:
    """The machines of a history, that of the newest night first."""
    columns = [
        nights.c.started_unix_s,
        nights.c.id,
        nights.c.machine,
        nights.c.cluster_name,
        nights.c.started,
    ]
    found: dict[str, list[tuple[str, str]]] = {}
    rows = _checked(connection, columns)
    for _, _, machine, name, started in sorted(map(tuple, rows), reverse=True):
        found.setdefault(machine, []).append((name, started))
    return [
        MachineNights(machine, of[0][0], len(of), of[-1][1], of[0][1])
        for machine, of in found.items()
    ]


def past_of(
    connection: Connection, machine: str, cluster: str | None, since: float, until: float
) -> Past:
    """The nights of a machine that started in [since, until) (Unix seconds), and all of them.

    To be called inside one transaction that sees one state of the database.
    """
    chosen = and_(
        nights.c.machine == machine,
        *([nights.c.started_unix_s >= since] if since > float("-inf") else []),
        *([nights.c.started_unix_s < until] if until < float("inf") else []),
        *([nights.c.cluster_name == cluster] if cluster is not None else []),
    )
    heads = _checked(connection, list(nights.c), lambda rows: rows.where(chosen))
    # not by the database, whose order of texts is that of its locale
    heads = sorted(heads, key=lambda head: (head.started_unix_s, head.id))
    place = {head.night: index for index, head in enumerate(heads)}

    def parts(table: Table, columns: Sequence[str]) -> list[list[tuple[Any, ...]]]:
        return _by_night(connection, table, columns, chosen, place)

    named, lacking = parts(versions, ("name", "value")), parts(missing, ("what", "why"))
    of_nights = tuple(
        PastNight(
            id=head.id,
            run=head.run,
            started=_time_of(head),
            nightly=bool(head.nightly),
            cluster_name=head.cluster_name,
            cluster_fingerprint=head.cluster_fingerprint,
            machine=head.machine,
            program_version=head.program_version,
            parameters_id=head.parameters_id,
            planned=head.planned_points,
            versions=dict(named[index]),
            missing=tuple(Missing(what=what, why=why) for what, why in lacking[index]),
        )
        for index, head in enumerate(heads)
    )
    of_checks = parts(checks, CHECK)
    return Past(
        nights=of_nights,
        points=_points(connection, chosen, place),
        checks=[
            PastCheck(index, *values) for index, found in enumerate(of_checks) for values in found
        ],
        accepted=[
            Acceptance(night=head.id, series=series, reason=reason, who=who, accepted=when)
            for head, found in zip(
                of_nights, parts(accepted, ("series", "reason", "who", "accepted")), strict=True
            )
            for series, reason, who, when in found
        ],
    )


def _by_night(
    connection: Connection,
    table: Table,
    columns: Sequence[str],
    chosen: ColumnElement[bool],
    place: dict[int, int],
) -> list[list[tuple[Any, ...]]]:
    """The rows of a table by night, in the order in which they were recorded."""
    found: list[list[tuple[Any, ...]]] = [[] for _ in place]
    rows = _checked(
        connection,
        [table.c.night, *(table.c[name] for name in columns)],
        lambda wanted: wanted.join(nights).where(chosen).order_by(*table.primary_key),
    )
    for night, *values in rows:
        found[place[night]].append(tuple(values))
    return found


def _points(
    connection: Connection, chosen: ColumnElement[bool], place: dict[int, int]
) -> list[PastPoint]:
    times: dict[tuple[int, int], dict[str, tuple[float, float]]] = {}
    of = phases.c
    rows = _checked(
        connection,
        [of.night, of.point, of.phase, of.predicted_s, of.measured_s],
        lambda wanted: (
            wanted.join(nights, of.night == nights.c.night)
            .where(chosen)
            .order_by(of.night, of.point, of.place)
        ),
    )
    for night, point, phase, predicted, measured in rows:
        times.setdefault((night, point), {})[phase] = (predicted, measured)
    found = _by_night(connection, points, ("night", "point", *POINT), chosen, place)
    return [
        PastPoint._make((index, *values[2:], times.get(values[:2], {})))
        for index, of_night in enumerate(found)
        for values in of_night
    ]


def _checked(
    connection: Connection,
    columns: Sequence[Column[Any]],
    how: Callable[[Any], Any] = lambda rows: rows,
) -> Sequence[Any]:
    """The rows of these columns, as the database has them. Raises DamagedRow.

    SQLite takes any value into any column, whatever type it was declared with.
    """
    raw = [type_coerce(column, NullType()).label(column.name) for column in columns]
    rows = connection.execute(how(select(*raw))).all()
    for place, column in enumerate(columns):
        holds = column.info[HOLDS]
        for row in rows:
            value = row[place]
            if not holds(value) and not (value is None and column.nullable):
                raise DamagedRow(
                    f"{column.table.name}.{column.name} of a row is {value!r:.40}, which calib "
                    "never wrote"
                )
    return rows


def _time_of(head: Any) -> str:
    """When a night started, as it was written. Raises DamagedRow."""
    started: str = head.started
    try:
        moment(started, "nights.started of a row")
    except InputError as error:
        raise DamagedRow(str(error)) from error
    return started
