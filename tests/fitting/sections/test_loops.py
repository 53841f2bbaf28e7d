"""Tensor loops: which rows feed them, and the slowest rank of each list."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.helpers.divided import model_case
from tests.helpers.rows import as_samples, constant, rows_of

from calib.fitting.estimate import slowest_rank
from calib.fitting.regression import MIN_ROWS, UNCHECKED_FACTOR
from calib.fitting.sections.loops import tensor_loops
from calib.microbench.cases import TensorsCase
from calib.microbench.records.samples import Sample

SIZES = [(10,), (5,) * 40, (100_000, 3), (1000,) * 7, (9,) * 200, (50_000,) * 3]


def case(operation: str, sizes: tuple[int, ...], ranks: int = 2) -> TensorsCase:
    return TensorsCase.model_validate(
        {
            "ranks": ranks,
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
    operations = ["update", "update_adam", "pack", "unpack", "concat", "split"]
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


@pytest.mark.parametrize("lists", [1, 3, len(SIZES)])
def test_noiseless_lists_give_the_truth(lists: int) -> None:
    """Two operations, one twice as slow; of one list the sum alone, of three nothing to check with."""
    samples = [
        row
        for sizes in SIZES[:lists]
        for operation, slower in (("pack", 1), ("unpack", 2))
        for row in constant(case("pack", sizes), operation, slower * seconds(sizes))
    ]
    loops = tensor_loops(as_samples(samples))
    assert [loop.operation for loop in loops] == ["pack", "unpack"]
    for slower, loop in enumerate(loops, 1):
        for n, sizes in enumerate(SIZES[:lists]):
            predicted = loop.call_s + len(sizes) * loop.s_per_tensor
            predicted += 4 * sum(sizes) * loop.s_per_byte
            assert predicted == pytest.approx(slower * seconds(sizes)), n
        values = {key: estimate.value for key, estimate in loop.measured.items()}
        expected = {case("pack", s).key: slower * seconds(s) for s in SIZES[:lists]}
        assert list(values) == sorted(values) and values == pytest.approx(expected)
        assert loop.active_ranks == 2 and loop.max_bytes == 4 * max(map(sum, SIZES[:lists]))
        if lists < MIN_ROWS:
            assert loop.error_factor == UNCHECKED_FACTOR
        else:
            assert loop.error_factor == pytest.approx(1.0, rel=1e-6)
            prices = loop.call_s, loop.s_per_tensor, loop.s_per_byte
            truth = [slower * price for price in (10e-6, 2e-6, 0.25e-9)]
            assert prices == pytest.approx(truth, rel=1e-6)
    assert tensor_loops(as_samples([])) == []


def test_operations_and_active_ranks_are_apart() -> None:
    cases = [case(operation, (10,), ranks) for operation in ("update", "pack") for ranks in (2, 1)]
    samples = [row for of in cases for row in constant(of, of.operation, 1.0)]
    found = [(loop.operation, loop.active_ranks) for loop in tensor_loops(as_samples(samples))]
    assert found == [("pack", 1), ("pack", 2), ("update", 1), ("update", 2)]


def test_a_list_of_some_gradients_is_theirs() -> None:
    """Of tensor with sequence parallelism all weights are updated, some gradients packed."""
    some = model_case("a", strategy="tensor", tensors_key="all", partial=("some", 3, 64))
    rows = [row for name in ("pack", "update") for row in noisy(name)]
    rows += constant(some, "pack", 1.0) + constant(some, "update", 3.0)
    loops = tensor_loops(as_samples(rows), 0, {some.id: some})
    assert {of.operation: {key: t.value for key, t in of.in_place.items()} for of in loops} == {
        "pack": {"some": 1.0},
        "update": {"all": 3.0},
    }


def test_lists_of_models_have_their_time_in_iterations_too() -> None:
    """Of the strategy whose ranks have the whole model, the slowest rank's; not beside an exchange."""
    data = model_case("a", tensors_key="mine")
    spatial = model_case("a", strategy="spatial", tensors_key="mine")
    adam = model_case("a", tensors_key="mine", optimizer="adam")
    overlapped = model_case("b", tensors_key="other", is_overlap=True)
    cases = {of.id: of for of in (data, spatial, adam, overlapped)}
    rows = [row for name in ("pack", "update") for row in noisy(name)]
    rows += rows_of(case("update", (10,)), "update_adam", [[1e-3, 2e-3]] * 9)
    rows += constant(data, "update", 3e-3) + constant(spatial, "update", 5e-3)
    rows += constant(adam, "update", 7e-3) + constant(overlapped, "update", 9e-3)
    found = {loop.operation: loop.in_place for loop in tensor_loops(as_samples(rows), 0, cases)}
    assert {name: of["mine"].value for name, of in found.items() if of} == {
        "update": pytest.approx(3e-3),
        "update_adam": pytest.approx(7e-3),
    }
    assert not found["pack"] and "other" not in found["update"]
