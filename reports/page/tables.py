"""Tables that only report.html has: steps of the history, cases of the check, layers in place."""

from __future__ import annotations

from collections.abc import Sequence

from calib.foundation.words import counted, estimate_words, number, percent, signed_percent
from calib.reports.drift.records import Step
from calib.reports.figures.check import CheckedCases, off, ratio_of
from calib.reports.figures.history_lines import StepMark, change_words, state_of, what_drifted
from calib.reports.figures.layers import DirectionInPlace
from calib.reports.history.records import Past
from calib.reports.tables.table import Table, in_columns

MOST_LAYERS = 15
MOST_STEPS = 12  # more are folded away


def steps(past: Past, found: Sequence[StepMark]) -> Table:
    """Every step: numbered as in the figure, with its night, series, change and state."""
    rows = [
        {
            "mark": str(mark.number),
            "since": past.nights[step.first].started[:10],
            "what": what_drifted(step),
            "series": step.series,
            "change": f"{signed_percent(step.change)} "
            f"[{signed_percent(step.low)}, {signed_percent(step.high)}]",
            "noise": percent(step.noise),
            "found": past.nights[step.seen].started[:10],
            "state": _state_words(step),
            "versions changed": "; ".join(map(change_words, mark.versions)) or "none known",
        }
        for mark in found
        for step in mark.steps
    ]
    return Table(
        "Steps",
        *in_columns(rows),
        numbers=("change", "noise"),
        remarks=[
            "The number is that of the mark in the figure: steps that begin together have one. Change: "
            "of the measured over the expected time, with its 95% interval; noise: one standard "
            "deviation from night to night."
        ],
        folded=len(rows) > MOST_STEPS,
    )


def _state_words(step: Step) -> str:
    state = state_of(step)
    reason = step.accepted or step.closed if state != "undone" else ""
    return f"{state}: {reason}" if reason else state


def step_sentences(found: Sequence[StepMark]) -> Table:
    """Every group of steps in words."""
    columns = ["mark", "state", "what changed"]
    rows = [[str(mark.number), mark.state, mark.sentence] for mark in found]
    return Table("Every change in words", columns, rows, folded=True)


def checked_cases(found: Sequence[CheckedCases]) -> Table:
    """Every case of tonight's check: microseconds with 95% intervals."""
    rows = (
        {
            "what": check.what,
            "case": check.case,
            "kind": check.kind,
            "expected (µs)": estimate_words(check.expected, 1e6),
            "tonight (µs)": estimate_words(check.measured, 1e6),
            "change": off(ratio_of(check)),
        }
        for of in found
        for check in of.cases
    )
    return Table(
        "Every case of the check",
        *in_columns(rows),
        numbers=("expected (µs)", "tonight (µs)", "change"),
        remarks=["Times in µs with 95% intervals; change is measured against expected."],
        folded=True,
    )


def farthest_layers(times: Sequence[DirectionInPlace]) -> Table:
    """The layers whose prediction in place is off by the most time."""
    shown = sorted(times, key=lambda one: -abs(one.predicted_s - one.measured_s))[:MOST_LAYERS]
    rows = (
        {
            "layer": one.pair.name,
            "model": one.pair.model,
            "kind": one.pair.kind,
            "direction": one.direction,
            "ranks": str(one.pair.ranks),
            "predicted (ms)": number(1e3 * one.predicted_s),
            "measured in place (ms)": number(1e3 * one.measured_s),
            "off (ms)": ("+" if one.ratio > 1 else "-")
            + number(1e3 * abs(one.predicted_s - one.measured_s)),
            "predicted / measured": f"{one.ratio:.2f}",
        }
        for one in shown
    )
    columns, cells = in_columns(rows)
    return Table(
        "Layers that are farthest off",
        columns,
        cells,
        numbers=columns[4:],
        remarks=[
            f"{len(shown)} of {counted(len(times), 'time')} of layers, by the time that they are off. "
            "Predicted: measured alone, and its part of what a model in place takes beside its layers; "
            "predictions take the time in place where there is one."
        ],
    )
