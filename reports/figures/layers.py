"""Layer times in place, predicted against measured: figure and words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from calib.foundation.execution import unusual
from calib.foundation.statistics import median
from calib.foundation.text import plain
from calib.foundation.words import seconds_words
from calib.reports.figures.basics import LEGEND_ABOVE, Figure, markers, significant
from calib.reports.figures.fits import kind_marks, seconds_axis
from calib.reports.figures.memory import diagonal
from calib.reports.scoring.layer_pairs import LayerPair


class DirectionInPlace(NamedTuple):
    """One direction of a layer; seconds, the prediction with what is added for running in place."""

    pair: LayerPair
    direction: str
    predicted_s: float
    measured_s: float

    @property
    def ratio(self) -> float:
        """Predicted / measured."""
        return self.predicted_s / self.measured_s


def in_place(pairs: Sequence[LayerPair]) -> list[DirectionInPlace]:
    """Forward and backward of every layer that took a time and has a predicted one."""
    both = [
        DirectionInPlace(pair, direction, predicted, measured)
        for pair in pairs
        for direction, predicted, measured in (
            ("forward", pair.predicted_forward_s + pair.added_forward_s, pair.measured_forward_s),
            (
                "backward",
                pair.predicted_backward_s + pair.added_backward_s,
                pair.measured_backward_s,
            ),
        )
    ]
    return [one for one in both if one.predicted_s > 0 and one.measured_s > 0]


def layers_figure(times: Sequence[DirectionInPlace]) -> Figure:
    """Log-log: predicted over measured seconds, a colour and marker for each kind of layer.

    Filled: forward; open: backward. On the diagonal a prediction is right.
    """
    data: list[Figure] = []
    for index, kind in enumerate(sorted({one.pair.kind for one in times})):
        mine = [one for one in times if one.pair.kind == kind]
        data.append(
            markers(
                kind,
                [significant(one.measured_s, 4) for one in mine],
                [significant(one.predicted_s, 4) for one in mine],
                [_words(one) for one in mine],
                kind_marks(index, [one.direction for one in mine]),
            )
        )
    ends = [seconds for one in times for seconds in (one.predicted_s, one.measured_s)]
    low, high = 0.7 * min(ends), 1.4 * max(ends)
    return {
        "data": [diagonal(low, high), *data],
        "layout": {
            "showlegend": True,
            "legend": LEGEND_ABOVE,
            "xaxis": seconds_axis("measured in place", low, high),
            "yaxis": seconds_axis("predicted", low, high),
        },
    }


def _words(one: DirectionInPlace) -> str:
    predicted, measured = seconds_words(one.predicted_s), seconds_words(one.measured_s)
    pair = one.pair
    how = unusual(pair.execution)
    model = f"{pair.model}, {how}" if how else pair.model
    return plain(
        f"{model}, {pair.name} ({pair.kind}), {one.direction}: predicted {predicted}, "
        f"measured {measured}"
    )


def layers_words(times: Sequence[DirectionInPlace]) -> str:
    """The figure in words, for screen readers."""
    ratios = sorted(one.ratio for one in times)
    worst = max(times, key=lambda one: abs(one.predicted_s - one.measured_s))
    return (
        f"{len(times)} times of layers: predicted / measured is {ratios[0]:.2f} to {ratios[-1]:.2f}, "
        f"median {median(ratios):.2f}. Most time off: {_words(worst)}."
    )
