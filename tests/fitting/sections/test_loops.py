"""Tensor loops: which rows feed them, and the slowest rank of each list."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from tests.helpers.rows import as_samples, constant, rows_of

from calib.fitting.estimate import slowest_rank
from calib.fitting.sections.loops import tensor_loops
from calib.microbench.cases import TensorsCase
from calib.microbench.records.samples import Sample

SIZES = [(10,), (5,) * 40, (100_000, 3), (1000,) * 7, (9,) * 200, (50_000,) * 3]


def case(operation: str, sizes: tuple[int, ...]) -> TensorsCase:
    return TensorsCase.model_validate(
        {
            "ranks": 2,
            "operation": operation,
            "key": f"{len(sizes)}x{sizes[0]}",
            "shapes": [[n] for n in sizes],
        }
    )


def seconds(sizes: tuple[int, ...]) -> float:
    """10 us + 2 us a tensor + 0.25 ns a byte."""
    return 10e-6 + 2e-6 * len(sizes) + 1e-9 * sum(sizes)


def noisy(operation: str = "pack", seed: int = 0, launches: int = 2) -> list[Sample]:
    """Rank 1 takes twice as long as rank 0; 2% of noise."""
    generator = np.random.default_rng(seed)
    found: list[Sample] = []
    for sizes in SIZES:
        for launch in range(launches):
            noise = 1 + 0.02 * generator.standard_normal((9, 2))
            times = (seconds(sizes) * noise * [1, 2]).tolist()
            found += rows_of(case(operation, sizes), operation, times, launch=launch)
    return found


def test_the_law_is_that_of_the_slowest_rank() -> None:
    samples = noisy()
    (loop,) = tensor_loops(as_samples(samples))
    found = (loop.call_s, loop.s_per_tensor, loop.s_per_byte)
    assert found == pytest.approx((20e-6, 4e-6, 0.5e-9), rel=0.03)
    assert 1.0 < loop.error_factor < 1.05
    for sizes in SIZES:
        of = case("pack", sizes)
        mine = [row for row in samples if row.case_id == of.id]
        assert loop.measured[of.key] == slowest_rank(as_samples(mine))


def test_every_operation_is_a_loop() -> None:
    """An update by another optimizer is another operation (microbench/rows.py)."""
    operations = ["update", "update_adam", "pack", "unpack", "zero_grad", "concat", "split"]
    samples = [
        row
        for operation in operations
        for row in noisy("pack", launches=1)
        for row in [replace(row, operation=operation)]
    ]
    loops = tensor_loops(as_samples(samples))
    assert [loop.operation for loop in loops] == sorted(operations)
    assert len({loop.call_s for loop in loops}) == 1


def test_other_devices_and_items_change_nothing() -> None:
    others = [
        replace(row, case_id=f"{name} {row.case_id}", **{field: name})
        for name, field in (("cuda", "device"), ("bfloat16", "dtype"), ("layer", "kind"))
        for row in noisy(seed=1)
    ]
    (loop,) = tensor_loops(as_samples(noisy()))
    assert loop in tensor_loops(as_samples(noisy() + others))


def test_order_of_rows_does_not_matter() -> None:
    samples = noisy()
    shuffled = samples[:]
    random.Random(1).shuffle(shuffled)
    # all but the order of equal keys: the record is the same to the last bit
    assert tensor_loops(as_samples(shuffled)) == tensor_loops(as_samples(samples))


def test_a_list_that_was_measured_once_is_one_point() -> None:
    (loop,) = tensor_loops(as_samples(constant(case("pack", (10,)), "pack", 3e-6)))
    assert loop.error_factor == 10.0
    assert loop.call_s + loop.s_per_tensor + 40 * loop.s_per_byte == pytest.approx(3e-6)
