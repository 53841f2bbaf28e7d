"""The points of a page's table: rows as text, and all of them as columns for the page's script.

With a history they are all its points, without one those of the runs; runs that the history does not
hold are a night of their own. The page holds a column of numbers per quantity, and every case,
prediction and night once: 21,900 points are about 1 MB.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

from calib.foundation.text import plain
from calib.foundation.words import percent, with_interval
from calib.oracle.projection import Basis
from calib.reports.figures.basics import significant
from calib.reports.findings import Findings
from calib.reports.history.records import Past, PastPoint
from calib.reports.scoring.accuracy import Accuracy, score
from calib.reports.tables.table import Table, in_columns
from calib.reports.words import BASIS_MARKS, LEGEND, samples_words, strategy_text

DIGITS = 6  # of a time; three or four are shown
MOST_ROWS = 200  # without JavaScript
WORDS = {"model", "strategy", "overlap", "night"}
Case = tuple[
    str, str, str, int, float, bool
]  # the fields of a PointRow from model to oversubscribed


class PointRow(NamedTuple):
    """A point; seconds (value, low, high). `night` is an index into the nights of the table."""

    night: int
    model: str
    strategy: str
    layout: str
    p: int
    batch_per_rank: float
    oversubscribed: bool
    predicted: tuple[float, float, float]
    basis: Basis | None  # None where it is not known
    measured: tuple[float, float, float]
    at_speed: float | None  # accuracy at the speed of the calibration
    memory: float | None

    @property
    def case(self) -> Case:
        """What was trained, and how."""
        return self[1:7]

    @property
    def accuracy(self) -> float | None:
        """1 - |predicted - measured| / measured."""
        return score(self.predicted[0], self.measured[0])

    @property
    def overlap(self) -> bool:
        """Whether the two intervals have a point in common."""
        return self.predicted[1] <= self.measured[2] and self.measured[1] <= self.predicted[2]


class PointTable(NamedTuple):
    """All rows, the names of their nights, and the night that is shown first (None: all).

    `foreign`: whether none of them is of the runs of this page.
    """

    rows: list[PointRow]
    nights: list[str]
    chosen: int | None
    foreign: bool = False


def points_of(findings: Findings) -> PointTable:
    """The rows of a page's table: of the history, or, without one, of the runs.

    Where the history does not hold every run of the page, these runs are a last night of their own.
    """
    accuracies, past = findings.accuracies, findings.past
    if past is None or not past.points:
        nights = sorted({of.started[:10] for of in accuracies})
        rows = [_of_accuracy(of, nights.index(of.started[:10])) for of in accuracies]
        return PointTable(rows, nights, None)
    bases = {of.run_id: of.total.predicted.basis for of in accuracies if of.run_id}
    names = _night_names(past)
    held = {of.run_id for of in past.points}
    if not all(of.run_id in held for of in accuracies):
        others = [_of_point(of, None) for of in past.points if of.run_id not in bases]
        own = len(names)
        name = "this run" if len(findings.runs) == 1 else "these runs"
        return PointTable(
            [*others, *(_of_accuracy(of, own) for of in accuracies)], [*names, name], own
        )
    rows = [_of_point(of, bases.get(of.run_id)) for of in past.points]
    mine = [of.night for of in past.points if of.run_id in bases]
    return PointTable(rows, names, max(mine, default=rows[-1].night), foreign=not mine)


def _night_names(past: Past) -> list[str]:
    """The dates of the nights, with the time where two are of one date, and of one minute the run."""
    dates = Counter(night.started[:10] for night in past.nights)
    minutes = Counter(night.started[:16] for night in past.nights)
    return [
        night.started[:10]
        if dates[night.started[:10]] == 1
        else night.started[:16].replace("T", " ")
        + (f" {plain(night.run)}" if minutes[night.started[:16]] > 1 else "")
        for night in past.nights
    ]


def _of_accuracy(of: Accuracy, night: int) -> PointRow:
    predicted, memory = of.total.predicted, of.memory.accuracy if of.memory else None
    times = predicted.numbers, predicted.basis, of.total.measured.numbers
    at_speed = of.at_speed.accuracy if of.at_speed else None
    return PointRow(night, *_case(of), *times, at_speed, memory)


def _of_point(of: PastPoint, basis: Basis | None) -> PointRow:
    memory = None
    if of.memory_predicted_bytes is not None and of.memory_measured_bytes:
        memory = score(of.memory_predicted_bytes, of.memory_measured_bytes)
    predicted = of.predicted_s, of.predicted_low_s, of.predicted_high_s
    measured = of.measured_s, of.measured_low_s, of.measured_high_s
    times = predicted, basis, measured
    return PointRow(of.night, *_case(of), *times, of.accuracy_at_speed, memory)


def _case(of: Accuracy | PastPoint) -> Case:
    return of.model, of.strategy, of.layout, of.p, of.batch_per_rank, of.oversubscribed


def first_rows(points: PointTable) -> Table:
    """The rows of the chosen night as the page's script writes them too: of numbers as it has them."""
    shown = [row for row in points.rows if points.chosen in (None, row.night)]
    rows = (
        {  # what tells a point and its accuracy first: a phone shows no more at once
            "model": row.model,
            "strategy": strategy_text(row.strategy, row.layout, row.oversubscribed),
            "p": str(row.p),
            "accuracy": percent(row.accuracy),
            "batch per rank": samples_words(row.batch_per_rank),
            "predicted (ms)": mark_of(row.basis) + with_interval(*_ms(row.predicted)),
            "measured (ms)": with_interval(*_ms(row.measured)),
            "overlap": "yes" if row.overlap else "no",
            "at speed": percent(row.at_speed),
            "memory": percent(row.memory),
            "night": points.nights[row.night],
        }
        for row in shown[:MOST_ROWS]
    )
    legend = "; ".join(f"{mark} {meaning}" for mark, meaning in LEGEND.items())
    about = (
        "Time of one iteration in ms, with 95% intervals, and whether the two overlap; accuracy of the "
        f"time, also at the speed of the calibration, and of the peak memory. {legend}."
    )
    if points.chosen is not None:
        about += " Marks ~ and !: only of the runs of this page, the history does not keep them."
    names, cells = in_columns(rows)
    return Table("Points", names, cells, numbers={*names} - WORDS, remarks=[about])


def mark_of(basis: Basis | None) -> str:
    """Empty where it is not known."""
    return BASIS_MARKS[basis] if basis else ""


def columns(points: PointTable) -> dict[str, Any]:
    """All points for the page's script: times in ms; `case` and `prediction` are indices.

    A case is model, strategy, strategy with its layout, p, batch per rank and that in words; a
    prediction value, low, high and the mark of its basis.
    """
    cases: dict[Case, int] = {}
    predictions: dict[tuple[tuple[float, float, float], str], int] = {}
    of_case, of_prediction, measured = [], [], []
    for row in points.rows:
        guess = row.predicted, mark_of(row.basis)
        of_case.append(cases.setdefault(row.case, len(cases)))
        of_prediction.append(predictions.setdefault(guess, len(predictions)))
        measured.append(_ms(row.measured))
    return {
        "nights": points.nights,
        "chosen": points.chosen,
        "cases": [_case_texts(*case) for case in cases],
        "predictions": [(*_ms(times), mark) for times, mark in predictions],
        "night": [row.night for row in points.rows],
        "case": of_case,
        "prediction": of_prediction,
        "measured": [value for value, _, _ in measured],
        "low": [low for _, low, _ in measured],
        "high": [high for _, _, high in measured],
        "at_speed": [
            None if row.at_speed is None else significant(row.at_speed) for row in points.rows
        ],
        "memory": [None if row.memory is None else significant(row.memory) for row in points.rows],
    }


def _case_texts(
    model: str, strategy: str, layout: str, p: int, batch_per_rank: float, oversubscribed: bool
) -> tuple[str, str, str, int, float, str]:
    return (
        plain(model),
        plain(strategy),
        strategy_text(strategy, layout, oversubscribed),
        p,
        batch_per_rank,
        samples_words(batch_per_rank),
    )


def _ms(times: tuple[float, float, float]) -> tuple[float, float, float]:
    value, low, high = times
    return (
        significant(1e3 * value, DIGITS),
        significant(1e3 * low, DIGITS),
        significant(1e3 * high, DIGITS),
    )
