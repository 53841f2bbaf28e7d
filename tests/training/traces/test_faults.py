"""Faults: each is planted, with what it costs, and none is found in good runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from calib.training.traces.configuration import Buckets, RunConfiguration
from calib.training.traces.faults import Fault, faults_of, half_width
from calib.training.traces.split import PARTS, Split

MIB = 1 << 20


def run_of(**changes: Any) -> RunConfiguration:
    good: dict[str, Any] = {
        "ranks": 4,
        "traced": 4,
        "hosts": ["a"],
        "device": "H100",
        "backend": "nccl",
        "steps": 10,
        "strategy": "data",
        "strategy_reason": "4 allreduce in a step",
        "group_sizes": [4],
        "batch_per_rank": 8,
        "micro_batches": 1,
        "dtype": "float32",
        "other_dtypes": {},
        "optimizer": "SGD",
        "checkpointing": False,
        "buckets": Buckets(
            operation="allreduce", count=4, nbytes=90 * MIB, largest_nbytes=25 * MIB
        ),
        "gradient_items": 1000,
        "exchanged_items": 1001,  # and a loss
    }
    return RunConfiguration(**(good | changes))


def split(steps: int = 10, seed: int = 0, **seconds: float | Sequence[float]) -> Split:
    """A step of 100 ms: 80 of computation, 4 of the wire, 16 of waiting, with 1% of noise."""
    random = np.random.default_rng(seed)
    mean: dict[str, Any] = {name: 0.0 for name in PARTS}
    mean |= {"computation": 0.080, "wire": 0.004, "waiting": 0.016} | seconds
    noise = 1 + 0.01 * random.standard_normal(steps)
    parts = {name: np.broadcast_to(value, steps) * noise for name, value in mean.items()}
    whole = np.sum(list(parts.values()), axis=0)
    return Split(whole, parts, {}, parts["wire"] + parts["waiting"], np.zeros(steps))


def found(run: RunConfiguration, splits: Sequence[Split]) -> list[Fault]:
    return faults_of(run, splits, list(range(len(splits))))


def good(n: int = 4) -> list[Split]:
    return [split(seed=rank) for rank in range(n)]


def test_a_good_run_has_none() -> None:
    assert found(run_of(), good()) == []
    assert found(run_of(ranks=1, buckets=None, exchanged_items=None), good(1)) == []
    # a slow wire alone, in buckets of PyTorch's own size, is no fault
    assert found(run_of(), [split(seed=rank, wire=0.05) for rank in range(4)]) == []


def test_a_slow_rank() -> None:
    splits = good()
    splits[2] = split(seed=2, computation=0.100, waiting=0.0)
    (fault,) = found(run_of(), splits)
    assert (fault.kind, fault.rank) == ("slow rank", 2)
    assert fault.seconds == pytest.approx(0.020, rel=0.1)
    assert "rank 2 needs 2" in fault.says and "than the others: " in fault.says
    assert "the other: " in found(run_of(ranks=2), splits[1:3])[0].says
    (fault,) = found(run_of(strategy="pipeline"), splits)
    assert fault.kind == "unequal stages"


def test_a_rank_that_is_slow_in_its_host_or_copies() -> None:
    for part in ("host", "copies"):
        splits = [*good(3), split(seed=3, **{part: 0.012})]
        (fault,) = found(run_of(), splits)
        assert (fault.kind, fault.rank) == ("slow rank", 3)


@pytest.mark.parametrize("by", [0.0, 0.002])
def test_ranks_that_differ_little_are_alike(by: float) -> None:
    assert found(run_of(), [*good(3), split(seed=3, computation=0.080 + by)]) == []


def test_a_rank_slow_in_one_step_only_is_noise() -> None:
    once = [0.08] * 9 + [0.16]
    assert found(run_of(), [*good(3), split(seed=3, computation=once)]) == []
    two = [split(2, seed=rank, computation=0.08 * (1 + rank)) for rank in range(2)]
    assert found(run_of(), two) == []  # two steps say nothing


def test_ranks_without_any_work_of_their_own() -> None:
    splits = [split(seed=rank, computation=0.0, host=0.0) for rank in range(3)]
    assert found(run_of(), splits) == []
    splits[1] = split(seed=1, computation=0.01)
    (fault,) = found(run_of(), splits)
    assert (fault.kind, fault.rank) == ("slow rank", 1)
    assert fault.says.startswith("rank 1 needs longer for its own work")


def test_a_loader_that_stalls() -> None:
    late = [0.0] * 5 + [0.06] * 5
    splits = [*good(3), split(seed=3, input=late)]
    (fault,) = found(run_of(), splits)
    assert (fault.kind, fault.rank) == ("input", 3)
    assert fault.seconds == pytest.approx(0.030, rel=0.1)
    assert "in 5 of 10 steps" in fault.says
    assert found(run_of(), [*good(3), split(seed=3, input=0.002)]) == []


def test_small_buckets() -> None:
    small = Buckets(operation="allreduce", count=60, nbytes=90 * MIB, largest_nbytes=2 * MIB)
    slow = [split(seed=rank, wire=0.02) for rank in range(4)]
    (fault,) = found(run_of(buckets=small), slow)
    assert (fault.kind, fault.rank, fault.seconds) == ("small buckets", None, None)
    assert "gradients of 90 MiB go in 60 messages of at most 2 MiB" in fault.says
    assert "would be 5 at most" in fault.says  # 90 / 25, and a first one
    # hidden, or of another strategy, they are none
    assert found(run_of(buckets=small), [split(seed=n, wire=0.001) for n in range(4)]) == []
    assert found(run_of(buckets=small, strategy="fully_sharded"), slow) == []
    few = Buckets(operation="allreduce", count=10, nbytes=90 * MIB, largest_nbytes=25 * MIB)
    assert found(run_of(buckets=few), slow) == []


@pytest.mark.parametrize(
    ("exchanged", "times"),
    [(2000, 2), (2001, 2), (3000, 3), (1500, 0), (1000, 0), (1030, 0), (2500, 0)],
)
def test_gradients_that_are_exchanged_twice(exchanged: int, times: int) -> None:
    faults = found(run_of(exchanged_items=exchanged), good())
    assert [fault.kind for fault in faults] == (["doubled collective"] if times else [])
    if times:
        assert faults[0].says.endswith(f"they are exchanged {times} times")
    assert found(run_of(exchanged_items=exchanged, gradient_items=None), good()) == []


def test_products_in_another_type() -> None:
    others = {f"aten::mm {n}x{n}": "float64" for n in range(5)}
    (fault,) = found(run_of(dtype="bfloat16", other_dtypes=others), good())
    assert fault.kind == "other item type"
    assert fault.says.startswith("most products are in bfloat16, but aten::mm 0x0 in float64; ")
    assert fault.says.endswith(" and 2 more")


def test_what_costs_most_comes_first() -> None:
    splits = [*good(2), split(seed=2, computation=0.11), split(seed=3, input=0.05)]
    faults = found(run_of(other_dtypes={"aten::mm 8x8": "float64"}), splits)
    assert [fault.kind for fault in faults] == ["input", "slow rank", "other item type"]


def test_the_interval_of_a_mean() -> None:
    """Student's t with n - 1 degrees: 4.303 for 3 values (tables), of std 1."""
    assert half_width(np.array([1.0, 2.0, 3.0])) == pytest.approx(4.302653 / np.sqrt(3), rel=1e-6)
    random = np.random.default_rng(0)
    alone = random.standard_normal(400)
    assert half_width(alone) == pytest.approx(1.97 / 20, rel=0.25)
    slow = np.repeat(random.standard_normal(20), 20)  # twenty times the same: 20 values
    assert half_width(slow) > 2.5 * half_width(alone)
