"""The figure of collectives that were asked for: time and busbw by size, measured ones beside."""

from __future__ import annotations

from collections.abc import Sequence

from calib.foundation.words import bytes_words, seconds_words
from calib.reports.figures.basics import LEGEND_ABOVE, Figure, markers, plot_text
from calib.reports.figures.fits import SERIES_COLOURS, byte_axis, seconds_axis
from calib.reports.scoring.collectives import CollectiveRow, by_place

SYMBOLS = {"inside": "circle", "slower": "triangle-up", "faster": "triangle-down"}
BAND_ALPHA = "2e"  # of a colour as #rrggbbaa


def times_figure(rows: Sequence[CollectiveRow]) -> Figure:
    """Log-log: a line for each layout with its 95% interval; measured medians as marks; below, busbw.

    Rows are of one operation, and each size is above 0.
    """
    data: list[Figure] = []
    for index, group in enumerate(by_place(rows)):
        data += _series(group, SERIES_COLOURS[index % len(SERIES_COLOURS)])
    sizes = [row.expected.nbytes for row in rows]
    bottom = {**byte_axis(min(sizes), max(sizes)), "anchor": "y2"}
    return {
        "data": data,
        "layout": {
            "xaxis": bottom,
            "yaxis": {**seconds_axis(), "domain": [0.4, 1]},
            "yaxis2": {
                "title": {"text": "busbw (GB/s)"},
                "domain": [0, 0.32],
                "fixedrange": True,
                "rangemode": "tozero",
            },
            "showlegend": True,
            "legend": LEGEND_ABOVE,
        },
    }


def _series(rows: Sequence[CollectiveRow], colour: str) -> list[Figure]:
    """One layout: its interval, its line, its bandwidth, and what was measured."""
    first = rows[0].expected
    name = f"{first.shape.words}, {first.library}"
    sizes = [row.expected.nbytes for row in rows]
    times = [row.interval for row in rows]
    lows = [time.low if time.low > 0 else 0.05 * time.value for time in times]
    about: Figure = {"x": sizes, "mode": "lines", "type": "scatter", "legendgroup": name}
    edge: Figure = {**about, "line": {"width": 0}, "hoverinfo": "skip", "showlegend": False}
    line = {"color": colour, "width": 2}
    hover = [_words(row) for row in rows]
    busbw = [_rate(row.expected.busbw) for row in rows]
    found: list[Figure] = [
        {**edge, "y": [time.high for time in times]},
        {**edge, "y": lows, "fill": "tonexty", "fillcolor": f"{colour}{BAND_ALPHA}"},
        {
            **about,
            "name": plot_text(name),
            "y": [time.value for time in times],
            "line": line,
            "text": [plot_text(text) for text in hover],
            "hovertemplate": "%{text}<extra></extra>",
        },
        {
            **about,
            "y": busbw,
            "yaxis": "y2",
            "line": line,
            "showlegend": False,
            "hovertemplate": "busbw %{y:.3s}GB/s<extra></extra>",
        },
    ]
    known = [row for row in rows if row.measured is not None]
    return found + (_measured(known, colour, name) if known else [])


def _measured(rows: Sequence[CollectiveRow], colour: str, group: str) -> list[Figure]:
    """Times and bandwidths that were measured; those outside the interval as larger triangles."""
    sizes = [row.expected.nbytes for row in rows]
    look = {
        "size": [7 if row.verdict == "inside" else 12 for row in rows],
        "color": colour,
        "symbol": [SYMBOLS[row.verdict or "inside"] for row in rows],
    }
    times = [row.measured.value if row.measured else None for row in rows]
    busbw = [_rate(row.measured_busbw) for row in rows]
    words = [_words(row) for row in rows]
    more: Figure = {"legendgroup": group, "showlegend": False}
    return [
        markers("measured", sizes, times, words, look, **more),
        markers("measured", sizes, busbw, words, look, yaxis="y2", **more),
    ]


def _rate(bytes_per_s: float | None) -> float | None:
    """In GB/s."""
    return None if bytes_per_s is None else bytes_per_s * 1e-9


def _words(row: CollectiveRow) -> str:
    """`4 MiB: expected 1.2 ms [1.1 ms, 1.4 ms], extrapolated; measured 1.5 ms, slower`."""
    of, time = row.expected, row.interval
    low, value, high = (seconds_words(x) for x in (time.low, time.value, time.high))
    how = f", {of.algorithm}" if of.algorithm else ""
    beside = (
        f"; measured {seconds_words(row.measured.value)}, {row.verdict}" if row.measured else ""
    )
    return (
        f"{bytes_words(of.nbytes)}: expected {value} [{low}, {high}], {of.cost.basis}{how}{beside}"
    )
