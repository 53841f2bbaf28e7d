"""The roofline of a device: what layers achieve under the roof of its two peaks. Plain JSON values."""

from __future__ import annotations

import math
from collections.abc import Sequence

from calib.fitting.parameters.file import Parameters
from calib.fitting.parameters.measured_passes import MeasuredPass
from calib.fitting.parameters.peaks import Peaks
from calib.foundation.execution import execution_of, unusual
from calib.foundation.statistics import median
from calib.foundation.words import counted, number, percent
from calib.reports.figures.basics import (
    LEGEND_ABOVE,
    LINE_COLOUR,
    RAW_COLOUR,
    Figure,
    Plot,
    log_axis,
    markers,
    significant,
)
from calib.reports.figures.fits import kind_marks
from calib.reports.words import layer_words

RATES = ((1e12, "TFLOP/s"), (1e9, "GFLOP/s"), (1e6, "MFLOP/s"), (1e3, "kFLOP/s"), (1.0, "FLOP/s"))
RATE_TICKS = [10.0**k for k in range(0, 19)]
INTENSITY_TICKS = [10.0**k for k in range(-4, 7)]
MOST_DECADES = (
    6  # of the axis of rates: a layer that does next to nothing would make the rest small
)


def roofline_plots(parameters: Parameters, passes: Sequence[MeasuredPass]) -> list[Plot]:
    """A plot for each number of ranks at work whose peaks were measured."""
    plots = []
    for peaks in parameters.peaks:
        mine = [of for of in passes if _is_under(of, peaks)]
        if mine and peaks.device == parameters.device_kind:
            plots.append(_plot(peaks, mine))
    return plots


def _is_under(of: MeasuredPass, peaks: Peaks) -> bool:
    """Whether the pass ran as the peaks did, and has a place on logarithmic axes."""
    if not of.execution:
        return False
    dtype = execution_of(of.execution).product_type
    alike = (dtype, of.active_ranks) == (peaks.dtype, peaks.active_ranks)
    return alike and of.intensity is not None and of.flops_per_s is not None


def _plot(peaks: Peaks, passes: Sequence[MeasuredPass]) -> Plot:
    shares = [of.peak_share for of in passes if of.peak_share is not None]
    ranks = counted(peaks.active_ranks, "rank")
    return Plot(
        id=f"roofline-{peaks.dtype}-{peaks.active_ranks}",
        title=f"Roofline of {peaks.device}, {peaks.dtype}, {ranks} of a node at work",
        caption=f"The roof is what a rank reaches in a large matrix product "
        f"({rate_words(peaks.flops_per_s.value)}) and in a sum of large arrays "
        f"({number(peaks.bytes_per_s.value * 1e-9)} GB/s). Filled: forward; open: backward. "
        f"{len(passes)} passes of layers; the median is at {percent(median(shares))} of the roof. "
        "Above it is what comes from a cache, since each tensor is counted once, and what computes less "
        "than is counted, as convolutions by Winograd's algorithm do.",
        figure=roofline_figure(peaks, passes),
        high_rem=32,
    )


def roofline_figure(peaks: Peaks, passes: Sequence[MeasuredPass]) -> Figure:
    """Log-log: operations a second by operations per byte, a colour for each kind, and the roof."""
    flops, nbytes = peaks.flops_per_s.value, peaks.bytes_per_s.value
    ridge = flops / nbytes
    intensities = [of.intensity for of in passes if of.intensity]
    rates = [of.flops_per_s.value for of in passes if of.flops_per_s]
    left, right = min([ridge / 4, *intensities]) / 1.5, max([4 * ridge, *intensities]) * 1.5
    top = max([flops, *rates]) * 2
    bottom = max(min([nbytes * left, *rates]) / 2, top / 10.0**MOST_DECADES)
    corners = [left, ridge, right]
    roof = {
        "type": "scatter",
        "mode": "lines",
        "name": "roof",
        "x": [significant(x) for x in corners],
        "y": [significant(min(flops, nbytes * x)) for x in corners],
        "line": {"color": LINE_COLOUR, "width": 2.5},
        "hoverinfo": "skip",
    }
    kinds = sorted({of.kind for of in passes})
    across = [f"{tick:g}" for tick in INTENSITY_TICKS]
    up = [rate_words(tick) for tick in RATE_TICKS]
    return {
        "data": [roof, *(_points(kind, i, passes) for i, kind in enumerate(kinds))],
        "layout": {
            "showlegend": True,
            "legend": LEGEND_ABOVE,
            "xaxis": log_axis("operations per byte (flop/B)", INTENSITY_TICKS, across, left, right),
            "yaxis": log_axis("achieved by a rank", RATE_TICKS, up, bottom, top),
            "annotations": [
                _label(ridge * 0.9, flops, rate_words(flops), "right"),
                _label(ridge / 3, nbytes * ridge / 3, f"{number(nbytes * 1e-9)} GB/s ", "right"),
            ],
        },
    }


def _label(x: float, y: float, text: str, anchor: str) -> Figure:
    """A peak's number above the roof."""
    return {
        "x": math.log10(x),
        "y": math.log10(y),
        "text": text,
        "showarrow": False,
        "xanchor": anchor,
        "yanchor": "bottom",
        "font": {"color": RAW_COLOUR},
    }


def _points(kind: str, index: int, passes: Sequence[MeasuredPass]) -> Figure:
    mine = [of for of in passes if of.kind == kind]
    return markers(
        kind,
        [significant(of.intensity) for of in mine if of.intensity],
        [significant(of.flops_per_s.value) for of in mine if of.flops_per_s],
        [_words(of) for of in mine],
        kind_marks(index, [of.direction for of in mine]),
    )


def _words(of: MeasuredPass) -> str:
    """`conv 3x3 8*4x8x8 -> 4x8x8, backward, batch 8: 1.47 GFLOP/s, 43.1% of the roof (flops)`."""
    rate = of.flops_per_s.value if of.flops_per_s else 0.0
    how = ", ".join(filter(None, (f"batch {of.batch}", unusual(of.execution))))
    return (
        f"{layer_words(of.key)}, {of.direction}, {how}: {rate_words(rate)}, "
        f"{percent(of.peak_share)} of the roof ({of.bound})"
    )


def rate_words(flops_per_s: float) -> str:
    """`1.47 GFLOP/s`."""
    size, unit = next((of for of in RATES if flops_per_s >= of[0]), RATES[-1])
    return f"{flops_per_s / size:.3g} {unit}"
