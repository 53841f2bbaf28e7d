"""A past with a step."""

from __future__ import annotations

from calib.reports.drift.records import Drift, Step
from calib.reports.history.records import Past, PastNight, PastPoint
from calib.reports.scoring.accuracy import Missing


def night(number: int, planned: int = 4, run: str = "") -> PastNight:
    """A night of January 2026."""
    return PastNight(
        id=f"night-{number:04d}",
        run=run or f"run-{number}",
        started=f"2026-01-{number + 1:02d}",
        nightly=True,
        cluster_name="vm",
        cluster_fingerprint="f",
        machine="m",
        program_version="0.7.0",
        parameters_id="b",
        planned=planned,
        missing=(Missing(what="x", why="y"),) if planned > 4 else (),
    )


def point(
    of: int, strategy: str, accuracy: float, measured: float = 0.1, **more: object
) -> PastPoint:
    """Predicted too short, so that it scores `accuracy`."""
    filled = {
        "night": of,
        "run_id": "",
        "work": "",
        "model": "vgg16-mini",
        "strategy": strategy,
        "layout": "",
        "p": 2,
        "batch_per_rank": 8.0,
        "predicted_s": accuracy * measured,
        "predicted_low_s": 0.0,
        "predicted_high_s": 1.0,
        "measured_s": measured,
        "measured_low_s": 0.0,
        "measured_high_s": 1.0,
        "oversubscribed": False,
        "memory_predicted_bytes": None,
        "memory_measured_bytes": None,
        "phases": {},
        **more,
    }
    return PastPoint(**filled)


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


PAST = Past([night(0), night(1, 9), night(2), night(3, run="=1+1")], POINTS)


DRIFT = Drift(
    steps=[step("a", 1), step("b", 1, accepted="new driver"), step("c", 3)],
    words=["A\x1b.", "C."],
    versions={},
    sensitivity={},
    unjudged={},
)
