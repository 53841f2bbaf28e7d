"""Entries of a history made by hand, what they must come back as, and processes that record them."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Engine, event
from tests.helpers.divided import divided

from calib.foundation.records import Estimate
from calib.microbench.records.looks import Disturbance
from calib.oracle.projection import PhaseTime
from calib.reports.history.records import Entry
from calib.reports.history.store import History
from calib.reports.night import Check
from calib.reports.scoring.accuracy import Accuracy, MemoryAccuracy, Missing, PhaseAccuracy

PHASES = ("forward", "backward", "halo", "layerwise", "pack", "exchange", "update")


def pair(predicted: float, measured: float) -> PhaseAccuracy:
    """`predicted` +- 10% against `measured` +- 1%; scores are not what a history keeps."""
    return PhaseAccuracy(
        predicted=PhaseTime(
            value=predicted, low=0.9 * predicted, high=1.1 * predicted, basis="measured"
        ),
        measured=Estimate(value=measured, low=0.99 * measured, high=1.01 * measured),
        accuracy=None,
        overlap=True,
        covered=True,
    )


def accuracy(
    run_id: str = "", predicted: float = 0.09, measured: float = 0.1, **of: Any
) -> Accuracy:
    """A point of seven phases, the k-th of which takes k parts of 28."""
    parts = {
        name: pair(predicted * k / 28, measured * k / 28) for k, name in enumerate(PHASES, start=1)
    }
    content = {
        "model": "vgg16-mini",
        "strategy": "data",
        "p": 2,
        "batch_per_rank": 8,
        "total": pair(predicted, measured),
        "phases": parts,
        "launch_s": [measured],
        "interquartile_spread": 0.01,
        "n": 20,
        "oversubscribed": False,
        "complete": True,
        "basis": "measured",
        "gradient_difference": None,
        "optimizer": "sgd",
        "execution": "float32",
        "library": "torch_mpi",
        "threads_per_rank": 1,
        "cluster_fingerprint": "f" * 16,
        "started": "2026-11-03T01:00:00Z",
        "run_id": run_id,
        **of,
    }
    return Accuracy.model_validate(divided(content))


def memory(predicted: float, measured: int) -> MemoryAccuracy:
    """Peak bytes."""
    return MemoryAccuracy(
        predicted=Estimate.exactly(predicted), measured_bytes=measured, accuracy=0.5, covered=False
    )


def check(
    expected: float, measured: float, case: str = "4 MiB", disturbed: Sequence[Disturbance] = ()
) -> Check:
    """An allreduce then and now."""
    seconds = [Estimate(value=x, low=0.5 * x, high=2 * x) for x in (expected, measured)]
    return Check(
        kind="network",
        what="allreduce, torch_mpi, node, p=2",
        case=case,
        expected=seconds[0],
        measured=seconds[1],
        disturbed=list(disturbed),
    )


def entry(night: int = 1, accuracies: Sequence[Accuracy] | None = None, **of: Any) -> Entry:
    """The entry of a day of November 2026, of one point of 90 ms against 100 ms where none is given."""
    points = [accuracy(f"{night:016x}")] if accuracies is None else list(accuracies)
    content = {
        "id": f"night-{night:04d}",
        "run": f"2026-11-{night:02d}-vm",
        "started": f"2026-11-{night:02d}T01:00:00Z",
        "nightly": True,
        "cluster_name": "vm",
        "cluster_fingerprint": "f" * 16,
        "machine": "a" * 16,
        "program_version": "0.7.0",
        "parameters_id": "b" * 16,
        "versions": {"kernel": "6.1", "torch": "2.13.0"},
        "planned": len(points),
        "accuracies": points,
        "checks": [check(1e-3, 1.1e-3)],
        "missing": [Missing(what="vgg16-mini filter p=2", why="killed")],
        **of,
    }
    return Entry.model_validate(content)


def large(night: int, points: int = 12) -> Entry:
    """A night of many points, all with the night's own number of milliseconds."""
    return entry(
        night, [accuracy(f"{night:08x}{k:08x}", night * 1e-3, night * 1e-3) for k in range(points)]
    )


def record_all(where: str, nights: Sequence[int], points: int) -> None:
    """For a process of its own: record these nights, one after the other."""
    for night in nights:
        with History.open(where) as history:
            history.record(large(night, points))


def record_half(where: str, night: int, points: int, told: int) -> None:
    """For a process of its own: record a night, and stop for good where its phases are to follow.

    A byte on the pipe `told` says that it has come there. SQLite writes what it has so far to the
    file at once, as it does when its memory is used up.
    """

    @event.listens_for(Engine, "before_cursor_execute")
    def stop(connection: Connection, cursor: Any, statement: str, *rest: Any) -> None:
        if connection.dialect.name == "sqlite" and statement.startswith("BEGIN"):
            cursor.execute("PRAGMA cache_size = 1")
            cursor.execute("PRAGMA cache_spill = 1")
        if statement.startswith("INSERT INTO checks"):
            os.write(told, b"x")
            time.sleep(600)

    with History.open(where) as history:
        history.record(large(night, points))
