"""Nights and points of a history, made by hand: what a test does not say is the same everywhere."""

from __future__ import annotations

from typing import Any

from calib.reports.history.records import PastNight, PastPoint


def past_night(number: int = 0, started: str = "2026-01-01T02:00:00Z", **more: Any) -> PastNight:
    """A night of version 1.0 with parameters p0, or what `more` says."""
    content = {
        "nightly": True,
        "cluster_name": "c",
        "cluster_fingerprint": "f",
        "machine": "m",
        "program_version": "1.0",
        "parameters_id": "p0",
        "planned": 4,
        "run": f"run-{number}",
        **more,
    }
    return PastNight(id=f"night-{number:04d}", started=started, **content)


def past_point(
    night: int, strategy: str = "data", predicted: float = 1.0, measured: float = 1.0, **more: Any
) -> PastPoint:
    """Seconds of an iteration, predicted to 10% and measured exactly."""
    content = {
        "run_id": "",
        "work": "",
        "model": "m",
        "layout": "",
        "execution": "float32",
        "p": 2,
        "batch_per_rank": 8,
        "predicted_low_s": 0.9 * predicted,
        "predicted_high_s": 1.1 * predicted,
        "measured_low_s": measured,
        "measured_high_s": measured,
        "oversubscribed": False,
        "memory_predicted_bytes": None,
        "memory_measured_bytes": None,
        "disturbed": "",
        "waited": None,
        "slowdown": None,
        "at_speed_s": None,
        "phases": {},
        **more,
    }
    return PastPoint(
        night=night, strategy=strategy, predicted_s=predicted, measured_s=measured, **content
    )
