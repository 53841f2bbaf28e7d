"""The trend of a history as JSON and CSV: SI units, accuracies from 0 to 1."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any

from pydantic import Field

from calib.foundation.names import Fingerprint, MachineHash, ProgramVersion, UtcTime
from calib.foundation.quantities import CountOrNone, FiniteOrNull
from calib.foundation.text import Cell
from calib.reports.drift.records import Drift, Of, Step
from calib.reports.drift.trend import Trend, steps_at, strategies
from calib.reports.history.reading import MachineNights
from calib.reports.history.records import Acceptance, Past, PastPoint
from calib.reports.scoring.accuracy import Missing
from calib.reports.scoring.summary import Worst
from calib.reports.writers.csv import written
from calib.reports.writers.json import values

COLUMNS = (
    "id",
    "run",
    "started",
    "nightly",
    "planned",
    "scored",
    "mean_of_strategy_means",
    "worst_accuracy",
    "worst_model",
    "worst_strategy",
    "worst_layout",
    "worst_p",
    "worst_batch_per_rank",
    "missing",
    "steps_begin",
    "steps_open",
    "coverage",
    "half_width",
    "interval_score",
    "disturbed",
    "mean_at_speed",
)


@dataclass(frozen=True)
class TrendNight:
    """A night of a history: means over the points that count."""

    id: Annotated[str, Field(description="of the run")]
    run: Annotated[str, Field(description="name of the run directory")]
    started: UtcTime
    nightly: Annotated[bool, Field(description="false: a report of another run")]
    program_version: ProgramVersion
    parameters_id: Annotated[str, Field(description="16 hex digits of parameters.json")]
    cluster_fingerprint: Fingerprint
    planned: Annotated[CountOrNone, Field(description="points that it was to hold")]
    scored: Annotated[CountOrNone, Field(description="points that have an accuracy")]
    strategy_means: Annotated[
        dict[str, float], Field(description="mean accuracy over a strategy's points")
    ]
    mean_of_strategy_means: Annotated[float | None, Field(description="null where no point counts")]
    worst: Annotated[
        Worst | None, Field(description="the point with the lowest accuracy; null without any")
    ]
    missing: Annotated[
        Sequence[Missing], Field(description="what was planned and is not there or not scored")
    ]
    steps_begin: Annotated[Sequence[str], Field(description="series that change their level here")]
    steps_open: Annotated[
        Sequence[str], Field(description="series with a step that is still open here")
    ]
    coverage: Annotated[
        float | None, Field(description="share of measured medians inside the 95% interval")
    ]
    half_width: Annotated[
        float | None, Field(description="mean half-width of the 95% interval, relative")
    ]
    interval_score: Annotated[
        float | None,
        Field(description="mean interval score, of logarithms; null: an interval reaches to 0"),
    ]
    disturbed: Annotated[
        CountOrNone, Field(description="points that others disturbed: drift leaves them out")
    ]
    mean_at_speed: Annotated[
        float | None,
        Field(description="mean of strategy means at the calibration's speed; null: not known"),
    ]


@dataclass(frozen=True)
class TrendStep:
    """The level of a series changed (reports/drift/records.py, Step); nights by their id."""

    series: Annotated[str, Field(description="name of the series")]
    of: Annotated[Of, Field(description="what has drifted")]
    first: Annotated[str, Field(description="id of the first night of the new level")]
    seen: Annotated[str, Field(description="id of the night on which it was found")]
    change: Annotated[FiniteOrNull, Field(description="relative: 0.05 is 5% more")]
    low: Annotated[FiniteOrNull, Field(description="lower end of the 95% interval of the change")]
    high: Annotated[FiniteOrNull, Field(description="upper end of the 95% interval of the change")]
    noise: Annotated[
        FiniteOrNull,
        Field(description="relative spread from night to night, one standard deviation"),
    ]
    accepted: Annotated[str, Field(description='the reason where somebody accepted it, else ""')]
    undone: Annotated[bool, Field(description="whether the level came back")]
    closed: Annotated[str, Field(description='why else it does not count, or ""')]
    open: Annotated[
        bool, Field(description="whether it is there, counts and nobody has accepted it")
    ]


@dataclass(frozen=True)
class TrendDocument:
    """How accuracy went from night to night on one machine."""

    machine: MachineHash
    cluster_name: Annotated[str, Field(description="its newest name")]
    nights: Annotated[
        Sequence[TrendNight], Field(description="those that were asked for, the oldest first")
    ]
    steps: Annotated[Sequence[TrendStep], Field(description="all steps of the history")]
    words: Annotated[Sequence[str], Field(description="the steps in sentences")]
    accepted: Annotated[
        Sequence[Acceptance], Field(description="steps that somebody took as they are")
    ]
    machines: Annotated[Sequence[MachineNights], Field(description="all machines of the history")]


def in_json(
    past: Past, nights: Sequence[Trend], drift: Drift, machines: Sequence[MachineNights]
) -> dict[str, Any]:
    """The nights that are shown, all steps, and which machines the history has: `TrendDocument`."""
    newest = past.nights[-1]
    document = TrendDocument(
        machine=newest.machine,
        cluster_name=newest.cluster_name,
        nights=[_night(night, drift) for night in nights],
        steps=[_step(step, past) for step in drift.steps],
        words=drift.words,
        accepted=past.accepted,
        machines=machines,
    )
    found: dict[str, Any] = values(document)
    return found


def _step(step: Step, past: Past) -> TrendStep:
    first, seen = past.nights[step.first].id, past.nights[step.seen].id
    return TrendStep(**{**asdict(step), "first": first, "seen": seen, "open": step.is_open})


def _night(night: Trend, drift: Drift) -> TrendNight:
    of = night.of
    begin, still = steps_at(night.night, drift)
    return TrendNight(
        id=of.id,
        run=of.run,
        started=of.started,
        nightly=of.nightly,
        program_version=of.program_version,
        parameters_id=of.parameters_id,
        cluster_fingerprint=of.cluster_fingerprint,
        planned=of.planned,
        scored=night.scored,
        strategy_means=night.strategy_means,
        mean_of_strategy_means=night.mean_of_strategy_means,
        worst=_worst(night.worst) if night.worst else None,
        missing=of.missing,
        steps_begin=[step.series for step in begin],
        steps_open=[step.series for step in still],
        coverage=night.coverage,
        half_width=night.half_width,
        interval_score=night.interval_score,
        disturbed=night.disturbed,
        mean_at_speed=night.mean_at_speed,
    )


def _worst(point: PastPoint) -> Worst:
    assert point.accuracy is not None  # it is the worst of those that count
    return Worst(
        model=point.model,
        strategy=point.strategy,
        layout=point.layout,
        p=point.p,
        batch_per_rank=point.batch_per_rank,
        accuracy=point.accuracy,
    )


def csv_text(nights: Sequence[Trend], drift: Drift) -> str:
    """The table of `rows_of`."""
    return written(columns_of(nights), rows_of(nights, drift), "\n")


def columns_of(nights: Sequence[Trend]) -> list[str]:
    """COLUMNS, then the mean accuracy of each strategy."""
    return [*COLUMNS, *(f"accuracy_{name}" for name in strategies(nights))]


def rows_of(nights: Sequence[Trend], drift: Drift) -> Iterator[list[Cell]]:
    """One row a night: the values of `columns_of`; None where there is none."""
    names = strategies(nights)
    for night in nights:
        of, worst = night.of, night.worst
        begin, still = steps_at(night.night, drift)
        yield [
            of.id,
            of.run,
            of.started,
            of.nightly,
            of.planned,
            night.scored,
            night.mean_of_strategy_means,
            *(
                (
                    worst.accuracy,
                    worst.model,
                    worst.strategy,
                    worst.layout,
                    worst.p,
                    worst.batch_per_rank,
                )
                if worst
                else (None,) * 6
            ),
            len(of.missing),
            len(begin),
            len(still),
            night.coverage,
            night.half_width,
            night.interval_score,
            night.disturbed,
            night.mean_at_speed,
            *(night.strategy_means.get(name) for name in names),
        ]
