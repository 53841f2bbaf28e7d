"""Figure and words of tonight's short check against the stored parameters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from calib.foundation.statistics import median
from calib.foundation.text import plain
from calib.foundation.words import seconds_words
from calib.reports.figures.basics import LEGEND_ABOVE, Figure, markers, significant, wrapped
from calib.reports.night import Check
from calib.reports.scoring.accuracy import CheckKind

COLOURS: dict[CheckKind, str] = {"network": "#3b82d0", "kernels": "#c76a14", "memory": "#2f8f63"}
SYMBOLS: dict[CheckKind, str] = {"network": "circle", "kernels": "square", "memory": "triangle-up"}
DISTURBED = "#9aa1a9"  # grey, as of disturbed nights in the history
LEAST_REACH = 10.0  # percent that the axis shows at least, to both sides
WRAPPED_AT = 26  # letters of a line of a label


@dataclass(frozen=True)
class CheckedCases:
    """The cases of one `what`, and the median of measured / expected over them."""

    kind: CheckKind
    what: str
    cases: Sequence[Check]
    ratio: float


def ratio_of(check: Check) -> float:
    """Measured / expected: 1 is as the parameters have it, 1.05 takes 5% more time."""
    return check.measured.value / check.expected.value


def checked(checks: Sequence[Check]) -> list[CheckedCases]:
    """The checks by what they are of, in their order; what has no expected time is left out."""
    found: dict[tuple[CheckKind, str], list[Check]] = {}
    for check in checks:
        if check.expected.value > 0 and check.measured.value > 0:
            found.setdefault((check.kind, check.what), []).append(check)
    return [
        CheckedCases(kind, what, of, median([ratio_of(check) for check in of]))
        for (kind, what), of in found.items()
    ]


def off(ratio: float) -> str:
    """+4.2%"""
    return f"{100 * (ratio - 1):+.1f}%"


def check_figure(found: Sequence[CheckedCases]) -> Figure:
    """A row for each `what`: every case, and their median, in % more time than the parameters have."""
    rows = {id(of): len(found) - 1 - i for i, of in enumerate(found)}  # the first one on top
    data = []
    for kind in dict.fromkeys(of.kind for of in found):
        mine = [of for of in found if of.kind == kind]
        cases = [(rows[id(of)], check) for of in mine for check in of.cases]
        data += [
            markers(
                kind,
                [significant(100 * (ratio_of(check) - 1)) for _, check in cases],
                [row for row, _ in cases],
                [_case_words(check) for _, check in cases],
                {
                    "size": 8,
                    "symbol": SYMBOLS[kind] + "-open",
                    "color": [
                        DISTURBED if check.disturbed_by_others else COLOURS[kind]
                        for _, check in cases
                    ],
                },
                hover="%{text}: %{x:+.1f}%",
                legendgroup=kind,
            ),
            markers(
                f"{kind}, median",
                [significant(100 * (of.ratio - 1)) for of in mine],
                [rows[id(of)] for of in mine],
                [f"{of.what}, median of {len(of.cases)}" for of in mine],
                {"size": 22, "symbol": "line-ns", "line": {"width": 4, "color": COLOURS[kind]}},
                hover="%{text}: %{x:+.1f}%",
                legendgroup=kind,
            ),
        ]
    every = [abs(ratio_of(check) - 1) for of in found for check in of.cases]
    reach = max(LEAST_REACH, 115 * max(every, default=0.0))
    return {
        "data": data,
        "layout": {
            "showlegend": True,
            "legend": LEGEND_ABOVE,
            "xaxis": {
                "title": {"text": "more time (%)"},
                "fixedrange": True,
                "range": [-reach, reach],
                "zeroline": True,
                "zerolinewidth": 2,
            },
            "yaxis": {
                "tickvals": [rows[id(of)] for of in found],
                "fixedrange": True,
                "ticktext": [wrapped(plain(of.what), WRAPPED_AT) for of in found],
                "range": [-0.6, len(found) - 0.4],
                "zeroline": False,
            },
        },
    }


def _case_words(check: Check) -> str:
    expected, measured = seconds_words(check.expected.value), seconds_words(check.measured.value)
    about = f" (disturbed: {', '.join(check.disturbed)})" if check.disturbed else ""
    return plain(f"{check.what}, {check.case}: {measured}, expected {expected}{about}")


def checks_words(found: Sequence[CheckedCases]) -> str:
    """The figure in words, for screen readers."""
    said = [f"{plain(of.what)} {off(of.ratio)} ({len(of.cases)} cases)" for of in found]
    return f"Time tonight against the stored parameters, median over cases: {'; '.join(said)}."
