"""A plan's timeline as a plotly figure: a row per device or link, a bar per event."""

from __future__ import annotations

from collections.abc import Sequence

from calib.reports.figures.basics import Figure, plot_text
from calib.reports.figures.strategy_looks import COLOURS
from calib.search.plan import Event

KINDS = ("forward", "backward", "recompute", "send", "update")  # others take the colours after them


def timeline_figure(events: Sequence[Event]) -> Figure:
    """Bars from start to stop in ms, coloured by kind; the first row is on top."""
    rows = sorted(dict.fromkeys(event.row for event in events), key=_order)
    place = {row: number for number, row in enumerate(rows)}
    found = dict.fromkeys(event.kind for event in events)
    known = [kind for kind in KINDS if kind in found]
    others = [kind for kind in found if kind not in KINDS]
    data: list[Figure] = []
    for kind in [*known, *others]:
        of = [event for event in events if event.kind == kind]
        number = KINDS.index(kind) if kind in KINDS else len(KINDS) + others.index(kind)
        data.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": plot_text(kind),
                "base": [1e3 * event.start_s for event in of],
                "x": [1e3 * (event.stop_s - event.start_s) for event in of],
                "y": [place[event.row] for event in of],
                "width": 0.85,  # plotly would choose another for each kind
                "text": [plot_text(event.label) for event in of],
                "textposition": "none",
                "hovertemplate": "%{text}: %{x:.4g} ms from %{base:.4g} ms<extra></extra>",
                "marker": {
                    "color": COLOURS[number % len(COLOURS)],
                    "line": {"width": 0.5, "color": "#808080"},
                },
            }
        )
    layout: Figure = {
        "barmode": "overlay",
        "showlegend": True,
        "bargap": 0.15,
        "xaxis": {"title": {"text": "ms"}, "rangemode": "tozero"},
        "yaxis": {
            "tickvals": list(place.values()),
            "ticktext": [plot_text(row) for row in place],
            "autorange": "reversed",
            "showgrid": False,
            "zeroline": False,
        },
    }
    return {"data": data, "layout": layout}


def _order(row: str) -> tuple[tuple[int, str], ...]:
    """Numbers in names by their size: device 2 before device 10."""
    return tuple(
        (int(word), "") if word.isdecimal() and word.isascii() and len(word) < 10 else (-1, word)
        for word in row.split()
    )
