"""From the predicted step to the traced one: a bar for each part that differs."""

from __future__ import annotations

from collections.abc import Sequence

from calib.reports.explained.lines import ExplainedLine
from calib.reports.figures.basics import LINE_COLOUR, MEDIAN_COLOUR, TOTAL_COLOUR, Figure
from calib.reports.words import ms_words


def waterfall_figure(lines: Sequence[ExplainedLine]) -> Figure:
    """Bars in ms that hang one from the other; the last of `lines` is the whole step."""
    *parts, whole = lines
    at = whole.predicted.value
    names, base, length, colours = ["predicted"], [0.0], [at], [TOTAL_COLOUR]
    words = [ms_words(whole.predicted, interval=True)]
    for line in parts:
        by = line.difference.value
        names.append(line.name)
        base.append(min(at, at + by))
        length.append(abs(by))
        colours.append(LINE_COLOUR if by > 0 else MEDIAN_COLOUR)
        words.append(ms_words(line.difference, interval=True))
        at += by
    names.append("traced")
    base.append(0.0)
    length.append(whole.measured.value)
    colours.append(TOTAL_COLOUR)
    words.append(ms_words(whole.measured, interval=True))
    bars: Figure = {
        "type": "bar",
        "x": names,
        "y": [1e3 * x for x in length],
        "base": [1e3 * x for x in base],
        "marker": {"color": colours},
        "text": words,
        "textposition": "none",
        "hovertemplate": "%{x}: %{text} ms<extra></extra>",
    }
    return {
        "data": [bars],
        "layout": {"showlegend": False, "yaxis": {"title": {"text": "ms"}, "rangemode": "tozero"}},
    }
