"""Peak memory of a rank, predicted against measured: figure and words."""

from __future__ import annotations

import math
from collections.abc import Sequence

from calib.foundation.words import bytes_words, percent
from calib.reports.figures.basics import LEGEND_ABOVE, Figure, log_axis, markers, significant
from calib.reports.figures.strategy_looks import COLOURS, MARKERS, look_of, rank_of
from calib.reports.scoring.accuracy import Accuracy, MemoryAccuracy
from calib.reports.sentences import strategy_words

DIAGONAL_COLOUR = "#7d848d"
INTERVAL_COLOUR = "rgba(125,132,141,0.5)"  # sixty intervals must not hide their points
MemoryPair = tuple[Accuracy, MemoryAccuracy]


def with_memory(accuracies: Sequence[Accuracy]) -> list[MemoryPair]:
    """The points whose peak was predicted and measured."""
    return [(of, of.memory) for of in accuracies if of.memory is not None]


def memory_figure(pairs: Sequence[MemoryPair]) -> Figure:
    """Log-log: predicted (with its interval) over measured bytes; on the diagonal it is right."""
    data: list[Figure] = []
    names = sorted({of.strategy for of, _ in pairs}, key=lambda name: (rank_of(name), name))
    for strategy in names:
        look = look_of(strategy, names)
        mine = [(of, memory) for of, memory in pairs if of.strategy == strategy]
        guesses = [memory.predicted for _, memory in mine]
        data.append(
            markers(
                strategy,
                [memory.measured_bytes for _, memory in mine],
                [significant(guess.value) for guess in guesses],
                [_words(of, memory) for of, memory in mine],
                {
                    "size": 9,
                    "color": COLOURS[look % len(COLOURS)],
                    "opacity": 0.8,
                    "symbol": MARKERS[look % len(MARKERS)],
                },
                error_y={
                    "type": "data",
                    "thickness": 1,
                    "width": 0,
                    "color": INTERVAL_COLOUR,
                    "array": [significant(guess.high - guess.value) for guess in guesses],
                    "arrayminus": [significant(guess.value - guess.low) for guess in guesses],
                },
            )
        )
    measured = [float(m.measured_bytes) for _, m in pairs]
    predicted = [end for _, m in pairs for end in (m.predicted.low, m.predicted.high) if end > 0]
    ends = [*measured, *predicted, *(m.predicted.value for _, m in pairs)]
    return {
        "data": [diagonal(0.5 * min(ends), 2 * max(ends)), *data],
        "layout": {
            "showlegend": True,
            "legend": LEGEND_ABOVE,
            "xaxis": _axis("measured", measured),
            "yaxis": _axis("predicted", predicted or measured),
        },
    }


def diagonal(low: float, high: float) -> Figure:
    """Where predicted and measured are the same."""
    return {
        "type": "scatter",
        "mode": "lines",
        "name": "predicted = measured",
        "x": [low, high],
        "y": [low, high],
        "line": {"color": DIAGONAL_COLOUR, "dash": "dash", "width": 1.5},
        "hoverinfo": "skip",
    }


def _axis(what: str, values: Sequence[float]) -> Figure:
    low, high = min(values) / 1.1, max(values) * 1.1
    ticks = _byte_ticks(low, high)
    return log_axis(f"{what} peak of a rank", ticks, list(map(bytes_words, ticks)), low, high)


def _byte_ticks(low: float, high: float) -> list[float]:
    """Powers of 2, thinned out over a long range and with quarters between over a short one."""
    first, last = math.floor(math.log2(low)), math.ceil(math.log2(high))
    octaves = last - first
    if octaves > 3:
        return [2.0**k for k in range(first, last + 1, max(1, math.ceil(octaves / 6)))]
    parts = (1.0, 1.25, 1.5, 1.75) if octaves < 3 else (1.0, 1.5)
    return [part * 2.0**k for k in range(first, last + 1) for part in parts]


def _words(of: Accuracy, memory: MemoryAccuracy) -> str:
    return (
        f"{of.model}, {strategy_words(of)}, p={of.p}: predicted "
        f"{bytes_words(memory.predicted.value)}, measured {bytes_words(memory.measured_bytes)}, "
        f"accuracy {percent(memory.accuracy)}"
    )


def memory_words(pairs: Sequence[MemoryPair]) -> str:
    """The figure in words, for screen readers."""
    worst, memory = min(pairs, key=lambda pair: pair[1].accuracy)
    covered = sum(memory.covered for _, memory in pairs)
    mean = math.fsum(memory.accuracy for _, memory in pairs) / len(pairs)
    return (
        f"Peak memory of {len(pairs)} points: mean accuracy {percent(mean)}; {covered} measured "
        f"peaks lie in the predicted interval. Farthest off: {_words(worst, memory)}."
    )
