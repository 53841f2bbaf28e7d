"""The heat map of pairs of nodes: how many times as long as good ones each takes."""

from __future__ import annotations

from collections.abc import Sequence

from calib.fitting.outliers.check import ClusterCheck, Slowness
from calib.foundation.words import number
from calib.microbench.records.peers import host_of
from calib.reports.figures.basics import Figure, plot_text

MOST = 2.0  # times as long: all above have one colour
# readable on light and dark, and with the common colour-vision defects
SCALE = [[0.0, "#3b82d0"], [0.15, "#8fb4dc"], [0.5, "#e0a030"], [1.0, "#c03020"]]


def pairs_figure(of: ClusterCheck, hosts: Sequence[str]) -> Figure:
    """A square of all hosts; of several rails or kinds of work the slowest. Failed pairs are crosses."""
    worst: dict[tuple[str, str], Slowness] = {}
    for each in of.slowness:
        if each.scope == "pair" and each.aspect != "start-up":
            one, other = sorted({host_of(place) for place in each.places})
            for pair in ((one, other), (other, one)):
                if pair not in worst or _size(each) > _size(worst[pair]):
                    worst[pair] = each
    values = [[_value(worst.get((row, column))) for column in hosts] for row in hosts]
    words = [
        [plot_text(_words(row, column, worst.get((row, column)))) for column in hosts]
        for row in hosts
    ]
    failed = [pair for pair, each in worst.items() if each.slowdown is None]
    names = list(map(plot_text, hosts))
    axis = {"type": "category", "fixedrange": True, "categoryarray": names, "automargin": True}
    data: list[Figure] = [
        {
            "type": "heatmap",
            "x": names,
            "y": names,
            "z": values,
            "text": words,
            "hovertemplate": "%{text}<extra></extra>",
            "colorscale": SCALE,
            "zmin": 1.0,
            "zmax": MOST,
            "xgap": 1,
            "ygap": 1,
            "colorbar": {"title": {"text": "times"}, "thickness": 12},
        }
    ]
    if failed:
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "x": [plot_text(one) for one, _ in failed],
                "y": [plot_text(other) for _, other in failed],
                "marker": {"symbol": "x", "size": 10, "color": "#c03020"},
                "text": [plot_text(f"{one} and {other}: failed") for one, other in failed],
                "hovertemplate": "%{text}<extra></extra>",
                "showlegend": False,
            }
        )
    return {"data": data, "layout": {"xaxis": axis, "yaxis": {**axis, "autorange": "reversed"}}}


def _size(of: Slowness) -> float:
    return 1e9 if of.slowdown is None else of.slowdown


def _value(of: Slowness | None) -> float | None:
    return None if of is None or of.slowdown is None else of.slowdown


def _words(row: str, column: str, of: Slowness | None) -> str:
    if of is None:
        return row if row == column else f"{row} and {column}: not timed"
    took = "failed" if of.slowdown is None else f"{number(of.slowdown)} times as long as good ones"
    return f"{' and '.join(of.places)}: {of.what} {took}"
