"""Figures of the fitted laws as plain JSON values; no plotly import."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from calib.fitting.parameters.algorithms import GroupShape
from calib.fitting.parameters.collectives import CollectiveFit
from calib.fitting.parameters.contention import ContentionFit
from calib.fitting.parameters.measured_sizes import MeasuredSize, measured_sizes
from calib.fitting.parameters.scaling import shape_of_fit
from calib.fitting.parameters.structural import StructuralFit
from calib.foundation.records import Estimate
from calib.foundation.words import bytes_words, counted, seconds_words
from calib.reports.figures.basics import (
    LEGEND_ABOVE,
    LINE_COLOUR,
    LINE_POINTS,
    MEDIAN_COLOUR,
    RAW_COLOUR,
    Figure,
    byte_ticks,
    log_axis,
    log_spaced,
    markers,
)
from calib.reports.tables.collectives import bandwidths

PIECES_COLOUR = "#3fa37c"
# the axis of residuals shows this much, in percent, even where all are 0
LEAST_RESIDUAL = 1.0
# told apart with the common colour-vision defects, as those of the phases
SERIES_COLOURS = (
    "#4c8dd6",
    "#e08a2e",
    "#3fa37c",
    "#c9568e",
    "#b8a100",
    "#8a8a8a",
    "#7d6bd0",
    "#2aa6b8",
)
FitPoint = tuple[int, float]  # bytes, seconds of one repetition
SECONDS_TICKS = [10.0**k for k in range(-9, 4)]


def error_bars(estimates: Sequence[Estimate], scale: float = 1.0) -> Figure:
    """Asymmetric error bars; on a log axis an end at 0 would have no place, so it stops short."""
    return {
        "type": "data",
        "array": [scale * (of.high - of.value) for of in estimates],
        "arrayminus": [scale * min(of.value - of.low, 0.95 * of.value) for of in estimates],
        "thickness": 1.5,
        "width": 3,
    }


def byte_axis(low: float, high: float) -> Figure:
    """A logarithmic axis of message sizes."""
    ticks = byte_ticks(math.floor(low), math.ceil(high))
    title = "message size (bytes of the whole buffer)"
    margin = 10**0.15
    return log_axis(title, ticks, list(map(bytes_words, ticks)), low / margin, high * margin)


def seconds_axis(title: str = "time of one call", low: float = 0, high: float = 0) -> Figure:
    """A logarithmic axis of times."""
    return log_axis(title, SECONDS_TICKS, list(map(seconds_words, SECONDS_TICKS)), low, high)


def collective_figure(fit: CollectiveFit, dots: Sequence[FitPoint] = ()) -> Figure:
    """Log-log: repetitions (faint), medians with intervals, pieces and line; below, the residuals.

    A residual is measured / law - 1 in percent, of the pieces (of the line where there are none).
    """
    low, high = fit.range_nbytes
    bottom = {**byte_axis(low, high), "anchor": "y2"}
    residuals = _residuals(fit)
    reach = 1.2 * max(LEAST_RESIDUAL, *(abs(off or 0.0) for off in residuals["y"]))
    return {
        "data": [_dots(dots), *_laws(fit), _points(fit), residuals],
        "layout": {
            "xaxis": bottom,
            "yaxis": {**seconds_axis(), "domain": [0.36, 1]},
            "yaxis2": {
                "title": {"text": "off (%)"},
                "domain": [0, 0.26],
                "fixedrange": True,
                "zeroline": True,
                "nticks": 5,
                "range": [-reach, reach],
            },
        },
    }


def _dots(dots: Sequence[FitPoint]) -> Figure:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "repetitions",
        "x": [nbytes for nbytes, _ in dots],
        "y": [float(f"{s:.4g}") for _, s in dots],
        "marker": {"size": 4, "color": RAW_COLOUR, "opacity": 0.25},
        "hoverinfo": "skip",
    }


def _laws(fit: CollectiveFit) -> list[Figure]:
    """The line of both ends; the law in pieces, dotted from piece to piece; each, drawn through."""
    low, high = fit.range_nbytes
    sizes = log_spaced(low, high, LINE_POINTS)
    intercept, slope = fit.intercept_s.value, fit.slope_s_per_byte.value
    found = [
        _line(
            "alpha and beta",
            sizes,
            [intercept + slope * m for m in sizes],
            LINE_COLOUR,
            "dash",
            1.5,
        )
    ]
    if not fit.pieces:
        return found
    x: list[float | None] = []
    y: list[float | None] = []
    for piece in fit.pieces:
        inside = log_spaced(max(piece.from_nbytes, low), piece.to_nbytes, LINE_POINTS // 4)
        x += [*inside, None]
        y += [*(max(piece.at(m), 1e-12) for m in inside), None]
    gaps = [(left.to_nbytes, right.from_nbytes, None) for left, right in pairwise(fit.pieces)]
    between = [size for gap in gaps for size in gap]
    times = [None if size is None else fit.described_seconds(size) for size in between]
    return [
        *found,
        _line("pieces", x, y, PIECES_COLOUR, "solid", 2.5),
        _line("between pieces", between, times, PIECES_COLOUR, "dot", 1.5),
    ]


def _line(
    name: str,
    x: Sequence[float | None],
    y: Sequence[float | None],
    colour: str,
    dash: str,
    width: float,
) -> Figure:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": list(x),
        "y": [None if value is None or not math.isfinite(value) else value for value in y],
        "line": {"color": colour, "width": width, "dash": dash},
        "hoverinfo": "skip",
    }


def _points(fit: CollectiveFit) -> Figure:
    """Medians with their intervals; outliers, which feed no law, as crosses."""
    outliers = set(fit.outliers_nbytes)
    points = fit.points
    symbols = ["x" if point.nbytes in outliers else "circle" for point in points]
    return markers(
        "median, 95% interval",
        [point.nbytes for point in points],
        [point.seconds.value for point in points],
        [_hover(size) for size in measured_sizes(fit)],
        {"size": 6, "color": MEDIAN_COLOUR, "symbol": symbols},
        hover="%{y:.3s}s at %{text}",
        error_y={**error_bars([p.seconds for p in points]), "color": MEDIAN_COLOUR},
    )


def _hover(size: MeasuredSize) -> str:
    """`4 MiB, 20 repetitions, algbw 3.21 GB/s, busbw 4.81 GB/s`."""
    rates = [
        f"{name.removesuffix(' GB/s')} {number} GB/s"
        for name, number in bandwidths(size).items()
        if number
    ]
    return ", ".join([bytes_words(size.nbytes), counted(size.n, "repetition"), *rates])


def _residuals(fit: CollectiveFit) -> Figure:
    outliers = set(fit.outliers_nbytes)
    points = [point for point in fit.points if point.nbytes not in outliers]
    off = [_off(point.seconds.value, fit.described_seconds(point.nbytes)) for point in points]
    return markers(
        "off",
        [point.nbytes for point in points],
        off,
        [bytes_words(point.nbytes) for point in points],
        {"size": 6, "color": PIECES_COLOUR if fit.pieces else LINE_COLOUR},
        hover="%{text}: %{y:.1f}%",
        yaxis="y2",
    )


def _off(seconds: float, law: float) -> float | None:
    """Measured / law - 1 in percent; None where the law says 0."""
    off = 100 * (seconds / law - 1) if law > 0 else math.inf
    return off if math.isfinite(off) else None


def structural_figure(law: StructuralFit, fits: Sequence[CollectiveFit]) -> Figure:
    """Log-log: points of every measured layout, what the others say of it; dashed, twice the nodes."""
    mine = {shape_of_fit(fit): fit for fit in fits if law.is_of(fit)}
    low, high = (max(end, 1.0) for end in law.range_nbytes)
    sizes = log_spaced(low, high, LINE_POINTS)

    def line(shape: GroupShape, name: str, colour: str, dash: str) -> list[Figure]:
        on = law.on(shape, [fit for of, fit in mine.items() if of != shape])
        if on is None:
            return []
        times = [on.expected(m).seconds for m in sizes]
        group = {"legendgroup": str(shape)}
        return [{**_line(name, sizes, times, colour, dash, 2), **group}]

    data: list[Figure] = []
    shapes = [each.shape for each in law.layouts if each.shape in mine]
    for index, shape in enumerate(shapes):
        colour = SERIES_COLOURS[index % len(SERIES_COLOURS)]
        data += line(shape, f"{shape.words}, by the others", colour, "solid")
        data.append(_medians(shape, mine[shape], colour))
    if shapes:
        p, nodes, each = shapes[-1]
        twice = GroupShape(2 * p, 2 * nodes, each) if nodes > 1 else GroupShape(2 * p, 1, 2 * p)
        data += line(twice, f"{twice.words}, not measured", RAW_COLOUR, "dash")
    layout = {
        "xaxis": byte_axis(low, high),
        "yaxis": seconds_axis(),
        "showlegend": True,
        "legend": {"x": 0.02, "y": 0.98},
    }
    return {"data": data, "layout": layout}


def _medians(shape: GroupShape, fit: CollectiveFit, colour: str) -> Figure:
    """The points of one layout, shown and hidden with its line."""
    return markers(
        shape.words,
        [point.nbytes for point in fit.points],
        [point.seconds.value for point in fit.points],
        [bytes_words(point.nbytes) for point in fit.points],
        {"size": 6, "color": colour},
        hover=f"{shape.words}, %{{text}}: %{{y:.3s}}s",
        legendgroup=str(shape),
    )


def contention_figure(fit: ContentionFit) -> Figure:
    """Bars of phi by groups at once: measured with intervals, beside what the links say."""
    names = [str(point.groups) for point in fit.points]
    data: list[Figure] = [
        {
            "type": "bar",
            "name": "measured",
            "x": names,
            "y": [point.contention.value for point in fit.points],
            "marker": {"color": MEDIAN_COLOUR},
            "error_y": {**error_bars([p.contention for p in fit.points]), "color": RAW_COLOUR},
            "hovertemplate": "%{x} groups: %{y:.2f}<extra>measured</extra>",
        }
    ]
    if any(point.analytical is not None for point in fit.points):
        data.append(
            {
                "type": "bar",
                "name": "from the links",
                "x": names,
                "y": [point.analytical for point in fit.points],
                "marker": {
                    "color": LINE_COLOUR,
                    "pattern": {"shape": "/", "size": 6, "solidity": 0.3},
                },
                "hovertemplate": "%{x} groups: %{y:.2f}<extra>from the links</extra>",
            }
        )
    return {
        "data": data,
        "layout": {
            "barmode": "group",
            "showlegend": len(data) > 1,
            "legend": {"x": 0.02, "y": 0.98},
            "xaxis": {"type": "category", "title": {"text": "groups at once"}, "fixedrange": True},
            "yaxis": {"title": {"text": "phi"}, "rangemode": "tozero", "fixedrange": True},
        },
    }


def kind_marks(index: int, directions: Sequence[str]) -> Figure:
    """The look of layers of the kind with this index: filled for a forward, open for a backward."""
    symbol = ("circle", "square", "diamond")[index // len(SERIES_COLOURS) % 3]
    return {
        "size": 8,
        "color": SERIES_COLOURS[index % len(SERIES_COLOURS)],
        "symbol": [symbol + ("" if of == "forward" else "-open") for of in directions],
    }


LayerPoint = tuple[str, str, float, float]  # kind, direction, measured and predicted seconds


def work_figure(layers: Sequence[LayerPoint]) -> Figure:
    """Predicted / measured by measured time of every layer, log-log; a colour for each kind."""
    data: list[Figure] = []
    for index, kind in enumerate(sorted({kind for kind, _, _, _ in layers})):
        mine = [layer for layer in layers if layer[0] == kind]
        data.append(
            markers(
                kind,
                [measured for _, _, measured, _ in mine],
                [predicted / measured for _, _, measured, predicted in mine],
                [f"{kind}, {direction}" for _, direction, _, _ in mine],
                kind_marks(index, [direction for _, direction, _, _ in mine]),
                hover="%{text}: measured %{x:.3s}s, predicted / measured %{y:.2f}",
            )
        )
    ratios = [abs(math.log10(p) - math.log10(m)) for _, _, m, p in layers] or [0.0]
    reach = 10 ** max(math.log10(2.2), 1.1 * max(ratios))
    ticks = [0.1, 0.2, 0.5, 0.8, 1, 1.25, 2, 5, 10]
    labels = [f"{tick:g}" for tick in ticks]
    return {
        "data": data,
        "layout": {
            "showlegend": True,
            "legend": LEGEND_ABOVE,
            "xaxis": seconds_axis("measured time of the layer"),
            "yaxis": log_axis("predicted / measured", ticks, labels, 1 / reach, reach),
        },
    }
