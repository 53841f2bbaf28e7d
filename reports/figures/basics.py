"""Plotly figures as plain JSON values: {"data": [...], "layout": {...}}; no plotly import.

Colours of text, axes and background are set in the page, which knows light from dark; those of the
traces are readable on both. Names are escaped, because plotly reads a few HTML tags in its text.
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from calib.foundation.records import Estimate
from calib.foundation.text import plain
from calib.foundation.words import percent
from calib.reports.scoring.accuracy import Accuracy, occurring
from calib.reports.sentences import strategy_words
from calib.reports.words import ms_words, samples_words

Dot = TypeVar("Dot")

MAX_RAW_POINTS = 3000
LINE_POINTS = 64
LABEL_LETTERS = 13  # of a line under a pair of bars
BAR_OFFSET, BAR_WIDTH = 0.21, 0.38  # of a bar's middle from its pair's; the pairs are 1 apart
# at least 3:1 on the light and on the dark panel, and told apart with the common colour-vision defects
PHASE_COLOURS = {
    "forward": "#3b82d0",
    "backward": "#c76a14",
    "halo": "#7f68d0",
    "layerwise": "#97613f",
    "pack": "#8f7d00",
    "exchange": "#c24a8a",
    "update": "#2f8f63",
}
RAW_COLOUR = "#8a8a8a"
MEDIAN_COLOUR = "#4c8dd6"
LINE_COLOUR = "#e0662e"
TOTAL_COLOUR = "#8a8a8a"
LEGEND_ABOVE = {"orientation": "h", "x": 0, "y": 1.01, "yanchor": "bottom"}

Figure = dict[str, Any]


@dataclass(frozen=True)
class Plot:
    """One figure of a page.

    `alt` says in words what it shows, with its main numbers; where it is "", the caption does.
    `wide_rem`: narrower than this it scrolls. `high_rem`: its height, where it is not the usual one.
    """

    id: str
    title: str
    caption: str
    figure: Figure
    alt: str = ""
    wide_rem: float = 0
    high_rem: float = 0


def plot_text(text: str) -> str:
    """`text` as plotly shall show it: its tags are text, and it has no control characters."""
    return html.escape(plain(text), quote=False)


def markers(
    name: str,
    x: Sequence[Any],
    y: Sequence[Any],
    words: Sequence[str],
    look: Figure,
    hover: str = "%{text}",
    **more: Any,
) -> Figure:
    """Points without a line, each with words of its own; `hover` is plotly's template of them."""
    return {
        "type": "scatter",
        "mode": "markers",
        "name": plot_text(name),
        "x": list(x),
        "y": list(y),
        "text": [plot_text(text) for text in words],
        "hovertemplate": f"{hover}<extra></extra>",
        "marker": look,
        **more,
    }


def log_axis(
    title: str, ticks: Sequence[float], labels: Sequence[str], low: float = 0, high: float = 0
) -> Figure:
    """A logarithmic axis with these ticks, from `low` to `high` where they are given."""
    axis = {
        "type": "log",
        "title": {"text": title},
        "tickvals": list(ticks),
        "ticktext": list(labels),
        "fixedrange": True,
    }
    return {**axis, "range": [math.log10(low), math.log10(high)]} if low else axis


def phase_bars(accuracies: Sequence[Accuracy]) -> Figure:
    """Stacked bars in ms: predicted (hatched) beside measured, per point; accuracy above the pair.

    The stacks are medians of phases; the diamond with its 95% interval is the median of the total.
    Points of one model belong together: their totals are of one scale.
    """
    columns = [(i - BAR_OFFSET, a, True) for i, a in enumerate(accuracies)]
    columns += [(i + BAR_OFFSET, a, False) for i, a in enumerate(accuracies)]
    data: list[Figure] = []
    for phase in occurring(accuracies):
        times = [(x, a.phases[phase], is_predicted) for x, a, is_predicted in columns]
        data.append(
            {
                "type": "bar",
                "name": phase,
                "x": [x for x, _, _ in times],
                "y": [
                    significant(1e3 * (o.predicted if p else o.measured).value) for _, o, p in times
                ],
                "width": BAR_WIDTH,
                "text": [
                    f"{phase}, predicted {ms_words(o.predicted)} ms"
                    if p
                    else f"{phase}, measured {ms_words(o.measured)} ms"
                    for _, o, p in times
                ],
                "textposition": "none",
                "hovertemplate": "%{text}<extra></extra>",
                "marker": {
                    "color": PHASE_COLOURS[phase],
                    "pattern": {
                        "shape": ["/" if p else "" for _, _, p in times],
                        "fillmode": "overlay",
                        "size": 6,
                        "solidity": 0.25,
                        "fgcolor": "#ffffff",
                    },
                },
            }
        )
    totals = [
        (x, "predicted" if p else "measured", a.total.predicted if p else a.total.measured)
        for x, a, p in columns
    ]
    words = [f"total, {what} {ms_words(time, interval=True)} ms" for _, what, time in totals]
    data.append(total_marks([x for x, _, _ in totals], [time for _, _, time in totals], words))
    tops = [1e3 * max(a.total.predicted.high, a.total.measured.high) for a in accuracies]
    return {
        "data": data,
        "layout": {
            "barmode": "stack",
            "xaxis": {
                "tickvals": list(range(len(accuracies))),
                "ticktext": [
                    f"{wrapped(strategy_words(a), LABEL_LETTERS)}<br>p={a.p}<br>"
                    f"batch {samples_words(a.batch_per_rank)}"
                    for a in accuracies
                ],
                "tickangle": 0,
                "range": [-0.6, max(1, len(accuracies)) - 0.4],
                "fixedrange": True,
                "showgrid": False,
                "zeroline": False,
                "title": {"text": "strategy, ranks, samples per rank"},
            },
            "yaxis": {
                "title": {"text": "time of one iteration (ms)"},
                "range": [0, 1.15 * max(tops, default=1.0) or 1.0],
                "fixedrange": True,
            },
            "annotations": [
                {
                    "x": i,
                    "y": top,
                    "yshift": 6,
                    "yanchor": "bottom",
                    "text": f"<b>{percent(a.total.accuracy)}</b>",
                    "showarrow": False,
                }
                for i, (a, top) in enumerate(zip(accuracies, tops, strict=True))
            ],
        },
    }


def total_marks(
    places: Sequence[float], totals: Sequence[Estimate], words: Sequence[str]
) -> Figure:
    """A diamond in ms at each place, with its 95% interval and words for it."""
    bars = {
        "type": "data",
        "array": [significant(1e3 * (time.high - time.value)) for time in totals],
        "arrayminus": [significant(1e3 * (time.value - time.low)) for time in totals],
        "color": TOTAL_COLOUR,
        "thickness": 1.5,
    }
    y = [significant(1e3 * time.value) for time in totals]
    look = {"symbol": "diamond", "size": 7, "color": TOTAL_COLOUR}
    return markers("total, 95% interval", places, y, words, look, error_y=bars)


def bars_words(accuracies: Sequence[Accuracy]) -> str:
    """`phase_bars` in words, for screen readers: every pair, times in ms."""
    pairs = [
        f"{strategy_words(a)}, p={a.p}: predicted {ms_words(a.total.predicted)} ms, "
        f"measured {ms_words(a.total.measured)} ms, accuracy {percent(a.total.accuracy)}"
        for a in accuracies
    ]
    return "Stacked bars of the phases of an iteration. " + "; ".join(pairs) + "."


def significant(value: float, digits: int = 5) -> float:
    """`value` rounded, so that a page holds no more digits than anybody can see."""
    return float(f"{value:.{digits}g}")


def wrapped(text: str, width: int) -> str:
    """As plotly's text, in lines of at most `width` letters, where it can be.

    Broken at blanks, and longer words behind - and +.
    """
    lines = [""]
    for word in text.split(" "):
        blank = " "
        for piece in re.split(r"(?<=[-+])", word) if len(word) > width else [word]:
            if lines[-1] and len(lines[-1]) + len(blank) + len(piece) > width:
                lines.append(piece)
            else:
                lines[-1] = f"{lines[-1]}{blank}{piece}".strip()
            blank = ""
    return "<br>".join(plot_text(line) for line in lines)


def thinned(dots: Sequence[Dot], limit: int = MAX_RAW_POINTS) -> list[Dot]:
    """At most `limit` of sorted dots, evenly: every size keeps its distribution, both ends stay.

    No randomness: the same dots give the same page.
    """
    if len(dots) <= limit:
        return list(dots)
    step = (len(dots) - 1) / (limit - 1)
    return [dots[round(i * step)] for i in range(limit)]


def log_spaced(low: float, high: float, n: int) -> list[float]:
    ratio = high / low
    return [low * ratio ** (i / (n - 1)) for i in range(n)]


def byte_ticks(low: int, high: int) -> list[int]:
    """Powers of 8 (of 64 where those are more than 7) that cover the sizes."""
    first, last = math.floor(math.log(low, 8) + 1e-9), math.ceil(math.log(high, 8) - 1e-9)
    step = 1 if last - first < 7 else 2
    return [8**k for k in range(first, last + 1, step)]
