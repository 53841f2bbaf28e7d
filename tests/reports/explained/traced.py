"""Traced runs made by hand, whose every number is chosen."""

from __future__ import annotations

from typing import Any

from calib.foundation.records import Estimate
from calib.training.traces.configuration import Buckets, RunConfiguration
from calib.training.traces.run import CollectiveTime, OperatorTime, PartTime, TracedRun
from calib.training.traces.split import BETWEEN, PARTS


def around(value: float, by: float = 0.05) -> Estimate:
    """`value` +- a share of it."""
    return Estimate(value=value, low=value * (1 - by), high=value * (1 + by))


def configuration(**changes: Any) -> RunConfiguration:
    """Data parallelism on two ranks of one host, 4 samples each."""
    of: dict[str, Any] = {
        "ranks": 2,
        "traced": 2,
        "hosts": ["a"],
        "device": "cpu",
        "backend": "gloo",
        "steps": 10,
        "strategy": "data",
        "strategy_reason": "1 allreduce in a step",
        "group_sizes": [2],
        "batch_per_rank": 4,
        "micro_batches": 1,
        "dtype": "float32",
        "other_dtypes": {},
        "optimizer": "SGD",
        "checkpointing": False,
        "buckets": None,
        "gradient_items": None,
        "exchanged_items": None,
    }
    return RunConfiguration(**(of | changes))


def traced(seconds: dict[str, float], hidden: float = 0.0, **changes: Any) -> TracedRun:
    """A run whose step has forward, backward, update, between, wire, waiting and input of `seconds`."""
    names = ("forward", "backward", "update", BETWEEN)
    parts = {name: seconds.get(name, 0.0) for name in PARTS}
    parts["host"] = seconds.get(BETWEEN, 0.0)
    parts["computation"] = sum(seconds.get(name, 0.0) for name in names[:3])
    of: dict[str, Any] = {
        "files": ["rank0.json.gz", "rank1.json.gz"],
        "configuration": configuration(),
        "step": around(sum(seconds.values())),
        "parts": [PartTime(name=name, seconds=around(value)) for name, value in parts.items()],
        "phases": [PartTime(name=x, seconds=around(seconds.get(x, 0.0))) for x in names],
        "talking": around(hidden + seconds.get("wire", 0.0) + seconds.get("waiting", 0.0)),
        "hidden": around(hidden),
        "ranks": [],
        "operators": [],
        "collectives": [],
        "faults": [],
        "notes": [],
    }
    return TracedRun(**(of | changes))


def operator(phase: str, name: str, seconds: float, calls: float = 1.0) -> OperatorTime:
    """One of PyTorch's operators."""
    return OperatorTime(
        phase=phase, name=name, shapes=[], dtype="float32", calls=calls, seconds=around(seconds)
    )


def allreduce(
    nbytes: int, own_s: float, calls: float = 1.0, with_waits: bool = False
) -> CollectiveTime:
    """An allreduce on two ranks."""
    return CollectiveTime(
        operation="allreduce",
        nbytes=nbytes,
        elements=nbytes // 4,
        dtype="float32",
        size=2,
        calls=calls,
        own=around(own_s),
        bus_bandwidth=None,
        waited=0.0,
        with_waits=with_waits,
    )


def buckets(count: int, nbytes: int) -> Buckets:
    """Gradients of `nbytes` in so many allreduces."""
    each = -(-nbytes // count)
    return Buckets(operation="allreduce", count=count, nbytes=nbytes, largest_nbytes=each)
