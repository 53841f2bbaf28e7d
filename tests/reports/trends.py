"""A past with a step."""

from __future__ import annotations

from typing import Any

from tests.reports.pasts import past_night, past_point

from calib.reports.drift.records import Drift, Step
from calib.reports.history.records import Past, PastNight, PastPoint
from calib.reports.scoring.accuracy import Missing


def night(number: int, **more: Any) -> PastNight:
    """A night of January 2026."""
    of = {"cluster_name": "vm", "program_version": "0.7.0", "parameters_id": "b", **more}
    return past_night(number, f"2026-01-{number + 1:02d}", **of)


def point(of: int, strategy: str, accuracy: float, measured: float = 0.1, **more: Any) -> PastPoint:
    """Predicted too short, so that it scores `accuracy`."""
    return past_point(of, strategy, accuracy * measured, measured, **more)


def step(series: str, first: int, **more: object) -> Step:
    """8% more."""
    return Step(series, "network", first, first, 0.08, 0.07, 0.09, 0.01, **more)


POINTS = [
    point(0, "data", 0.9),
    point(0, "filter", 0.7),
    point(0, "data", 0.8),
    point(1, "filter", 0.6),
    point(1, "data", 0.2, oversubscribed=True),
    point(1, "data", 0, 0.0),
    point(3, "channel", -0.5, model="\x1b[2J"),
]


PAST = Past(
    [
        night(0),
        night(1, planned=9, missing=(Missing(what="x", why="y"),)),
        night(2),
        night(3, run="=1+1"),
    ],
    POINTS,
)


DRIFT = Drift(
    steps=[step("a", 1), step("b", 1, accepted="new driver"), step("c", 3)],
    words=["A\x1b.", "C."],
    versions={},
    sensitivity={},
    unjudged={},
)
