"""Figure of accuracy over nights: a line per strategy, and what changed when.

Told apart by dash and marker as well as by colour. A night without a result, and a stretch of days
without a night, is a gap in the lines.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from itertools import pairwise
from statistics import median

from calib.foundation.text import plain
from calib.foundation.words import counted, percent
from calib.reports.drift.records import Drift
from calib.reports.figures.basics import Figure, plot_text, significant
from calib.reports.figures.history_lines import (
    MEAN,
    HistoryLine,
    StepMark,
    change_words,
    changed_versions,
    marks,
)
from calib.reports.figures.strategy_looks import MEAN_COLOUR
from calib.reports.history.records import Past

STEP_COLOURS = {"open": "#d0483e", "accepted": "#7d848d", "undone": "#7d848d"}
DISTURBED_COLOUR = "#9aa1a9"
STEP_DASHES = {"open": "solid", "accepted": "dash", "undone": "dot"}
FEW_NIGHTS = 45  # up to so many, every night has a marker
LONG_GAP = 1.75  # of the usual time between nights: longer than this, a night is missing
LABEL_ROWS = 4
LABEL_WIDTH = 0.28  # of the figure on a phone, about


def history_figure(past: Past, lines: Sequence[HistoryLine], drift: Drift | None = None) -> Figure:
    """Accuracy in % by date: a line per strategy, their mean thick, steps and changed versions.

    The traces are those of `lines` in their order, then that of the nights in which others disturbed a
    point (grey rings on the last line, the mean), then that of the versions.
    """
    times = [_when(night.started) for night in past.nights]
    data = [_trace(line, times, _breaks(times), _partial(past)) for line in lines]
    data += [_disturbed_nights(lines[-1], past, times), _version_ticks(past, times)]
    low = 100 * min((v for line in lines for v in line.values if v is not None), default=0.0)
    drawn = [mark for mark in marks(drift) if mark.state in STEP_COLOURS]
    rows = _label_rows(drawn, len(times))
    return {
        "data": data,
        "layout": {
            "margin": {"l": 60, "r": 12, "t": 14 + 18 * (max(rows, default=-1) + 1), "b": 10},
            "showlegend": True,
            "legend": {"orientation": "h", "x": 0, "y": -0.1, "yanchor": "top"},
            "xaxis": {"type": "date", "showgrid": False},
            "yaxis": {
                "title": {"text": "accuracy (%)"},
                "range": [max(low - 4, -100), 100],  # no accuracy is more
            },
            "yaxis2": {"overlaying": "y", "range": [0, 1], "visible": False, "fixedrange": True},
            "shapes": [_line_of(mark, times) for mark in drawn],
            "annotations": [
                _label(mark, times, row) for mark, row in zip(drawn, rows, strict=True)
            ],
        },
    }


def _when(started: str) -> str:
    """To the minute, as plotly takes it."""
    return started[:16].replace("T", " ")


def _breaks(times: Sequence[str]) -> list[bool]:
    """Whether a line is broken before each night, because nights are missing there."""
    try:
        moments = [datetime.fromisoformat(time) for time in times]
    except ValueError:
        return [False] * len(times)
    apart = [(b - a).total_seconds() for a, b in pairwise(moments)]
    usual = median(apart) if apart else 0.0
    return [False, *(usual > 0 and seconds > LONG_GAP * usual for seconds in apart)][: len(times)]


def _partial(past: Past) -> list[bool]:
    """Which nights hold fewer points than they planned."""
    held = [0] * len(past.nights)
    for point in past.points:
        held[point.night] += 1
    return [n < night.planned for n, night in zip(held, past.nights, strict=True)]


def _trace(
    line: HistoryLine, times: Sequence[str], breaks: Sequence[bool], partial: Sequence[bool]
) -> Figure:
    x: list[str] = []
    y: list[float | None] = []
    counts: list[int] = []
    symbols: list[str] = []
    for time, value, n, gap, part in zip(
        times, line.values, line.points, breaks, partial, strict=True
    ):
        if gap:
            x, y, counts, symbols = [*x, time], [*y, None], [*counts, 0], [*symbols, line.marker]
        x.append(time)
        y.append(None if value is None else significant(100 * value))
        counts.append(n)
        symbols.append(line.marker + "-open" if part else line.marker)
    is_mean = line.name == MEAN
    what = "strategies" if is_mean else "points"
    return {
        "type": "scatter",
        "mode": "lines+markers" if len(times) <= FEW_NIGHTS else "lines",
        "name": plot_text(plain(line.name)),
        "x": x,
        "y": y,
        "customdata": counts,
        "connectgaps": False,
        "cliponaxis": False,
        "line": {"color": line.colour, "dash": line.dash, "width": 5 if is_mean else 1.8},
        "marker": {
            "size": 7,
            "color": line.colour,
            "symbol": symbols if any(partial) and len(times) <= FEW_NIGHTS else line.marker,
        },
        "opacity": 0.55 if is_mean else 1,
        "hovertemplate": "%{y:.1f}%, %{customdata} " + what + "<br>%{x|%Y-%m-%d %H:%M}",
    }


def _version_ticks(past: Past, times: Sequence[str]) -> Figure:
    changes = changed_versions(past)
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "changed versions",
        "yaxis": "y2",
        "x": [times[n] for n in changes],
        "y": [0.015] * len(changes),
        "text": ["<br>".join(plot_text(change_words(c)) for c in of) for of in changes.values()],
        "hovertemplate": "%{text}<br>%{x|%Y-%m-%d}<extra></extra>",
        "marker": {"symbol": "triangle-up", "size": 11, "color": MEAN_COLOUR},
        "showlegend": bool(changes),
        "cliponaxis": False,
    }


def _disturbed_nights(mean: HistoryLine, past: Past, times: Sequence[str]) -> Figure:
    counts = Counter(point.night for point in past.points if point.disturbed_by_others)
    shown = [n for n in sorted(counts) if mean.values[n] is not None]
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "disturbed",
        "x": [times[n] for n in shown],
        "y": [significant(100 * (mean.values[n] or 0.0)) for n in shown],
        "text": [f"{counted(counts[n], 'point')} disturbed" for n in shown],
        "hovertemplate": "%{text}<br>%{x|%Y-%m-%d}<extra></extra>",
        "marker": {
            "symbol": "circle-open",
            "size": 13,
            "color": DISTURBED_COLOUR,
            "line": {"width": 2.5},
        },
        "showlegend": bool(shown),
        "cliponaxis": False,
    }


def _line_of(mark: StepMark, times: Sequence[str]) -> Figure:
    return {
        "type": "line",
        "xref": "x",
        "yref": "paper",
        "x0": times[mark.night],
        "x1": times[mark.night],
        "y0": 0,
        "y1": 1,
        "layer": "below",
        "line": {
            "color": STEP_COLOURS[mark.state],
            "dash": STEP_DASHES[mark.state],
            "width": 2 if mark.state == "open" else 1.3,
        },
    }


def _label_rows(found: Sequence[StepMark], nights: int) -> list[int]:
    """The row above the figure for each label, where it hits no other; LABEL_ROWS: none is free."""
    free_from = [-1.0] * LABEL_ROWS
    rows = []
    for mark in found:
        place = mark.night / max(1, nights - 1)
        start = place if _to_the_right(place) else place - LABEL_WIDTH
        row = next((row for row, free in enumerate(free_from) if free <= start), LABEL_ROWS)
        if row < LABEL_ROWS:
            free_from[row] = start + LABEL_WIDTH
        rows.append(row)
    return rows


def _to_the_right(place: float) -> bool:
    """Whether a label goes to the right of its mark: where it does not leave the figure."""
    return place < 1 - LABEL_WIDTH


def _label(mark: StepMark, times: Sequence[str], row: int) -> Figure:
    """Number and words of a mark; only the number in the row above all others."""
    state = "" if mark.state == "open" else f" ({mark.state})"
    words = f" {plot_text(mark.words)}{state}" if row < LABEL_ROWS else ""
    right = _to_the_right(mark.night / max(1, len(times) - 1))
    return {
        "x": times[mark.night],
        "xref": "x",
        "y": 1,
        "yref": "paper",
        "yanchor": "bottom",
        "yshift": 2 + 17 * row,
        "showarrow": False,
        "xanchor": "left" if right else "right",
        "xshift": -3 if right else 3,
        "text": f"<b>{mark.number}</b>{words}",
    }


def history_words(past: Past, lines: Sequence[HistoryLine], drift: Drift | None = None) -> str:
    """The figure in words, for screen readers."""
    nights = past.nights
    said = [
        f"{plain(line.name)} from {percent(there[0])} to {percent(there[-1])}, "
        f"lowest {percent(min(there))}"
        for line in lines
        if (there := [value for value in line.values if value is not None])
    ]
    disturbed = len({point.night for point in past.points if point.disturbed_by_others})
    empty = sum(value is None for value in lines[-1].values)
    steps = [
        f"{mark.number} on {nights[mark.night].started[:10]}, {mark.words}, {mark.state}"
        for mark in marks(drift)
        if mark.state in STEP_COLOURS
    ]
    return (
        f"Lines of accuracy over {len(nights)} nights from {nights[0].started[:10]} to "
        f"{nights[-1].started[:10]}: {'; '.join(said)}. "
        f"{empty} of the nights have no result. {disturbed} were disturbed. "
        f"{'Steps: ' + '; '.join(steps) if steps else 'No step was found'}."
    )
