"""Costs of passes over tensors against closed forms, on hand-made parameters."""

from __future__ import annotations

import math
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.oracle.handmade import (
    EXACT,
    LOOP_BYTE_S,
    LOOP_CALL_S,
    LOOP_FACTOR,
    LOOP_TENSOR_S,
    close,
    estimate,
    law,
    layer_time,
    linear,
    machine,
    operations,
    tensor_loop,
    tensor_loops,
)

from calib.fitting.parameters.file import TensorLoop
from calib.foundation.errors import InputError, MissingParameter
from calib.microbench.tensors import OPTIMIZERS
from calib.oracle.cost import NOTHING, Cost, total
from calib.oracle.costs.tensors import UPDATES, TensorCosts
from calib.oracle.layout.workload import Tensors
from calib.oracle.sources import MACHINE, PASS_LAWS

LIST = Tensors("abc", 10, 400)
Pass = Literal["pack", "unpack"]
Cut = Literal["concat", "split"]


def by_hand(tensors: int, nbytes: int) -> float:
    return LOOP_CALL_S + tensors * LOOP_TENSOR_S + nbytes * LOOP_BYTE_S


def loops(*operations: str) -> list[TensorLoop]:
    """Laws without a measured list, two ranks at work."""
    return tensor_loops(*operations, active=(2,))


def costs_of(*found: TensorLoop, **changes: object) -> TensorCosts:
    """A machine with these passes, two ranks at work."""
    return TensorCosts(machine(tensor_loops=list(found), **changes), 2)


# one pass


def test_a_measured_list_of_tensors() -> None:
    """Of the ranks that are at work; the law says 6.04 us."""
    found = [tensor_loop("update", active, {"abc": estimate(active * 1e-3)}) for active in (1, 2)]
    cost = costs_of(*found).update(LIST, "momentum")
    assert close(cost, 2e-3, 2e-3 * 0.9, 2e-3 * 1.1)
    assert cost.basis == "measured" and cost.errors[0][0] == MACHINE


def test_a_list_in_iterations_takes_what_it_took_there() -> None:
    """Whatever it takes alone, and nothing beside it; a part of it, and other lists, have the law."""
    alone = tensor_loop("update", 2, {"abc": estimate(2e-3)})
    timed = alone.model_copy(update={"in_place": {"abc": estimate(3e-3)}})
    beside = [law("update", 2, s_per_layer=1e-3, error_factor=1.0)]
    costs = costs_of(timed, composition=beside)
    cost = costs.update(LIST, "momentum")
    assert close(cost, 3e-3, 3e-3 * 0.9, 3e-3 * 1.1) and cost.basis == "measured"
    other = costs.update(Tensors("other", 10, 400), "momentum")
    assert other.seconds == pytest.approx(by_hand(10, 400) + 10 * 1e-3)
    half = costs.update(LIST, "momentum", share=2)
    assert half.seconds == pytest.approx(by_hand(5, 200) + 5 * 1e-3)


@pytest.mark.parametrize("operation", ["pack", "unpack"])
def test_a_list_by_number_and_bytes(operation: Pass) -> None:
    costs = costs_of(*loops("pack", "unpack"))
    inside = costs.passing(operation, Tensors("unknown", 10, 10_000))
    seconds = by_hand(10, 10_000)
    assert close(inside, seconds, seconds / LOOP_FACTOR, seconds * LOOP_FACTOR)
    assert inside.basis == "interpolated" and inside.errors[0][0] == f"{PASS_LAWS}: {operation} law"
    beyond = costs.passing(operation, Tensors("unknown", 10, 1_000_000))
    seconds = by_hand(10, 1_000_000)
    assert close(beyond, seconds, seconds / LOOP_FACTOR**3, seconds * LOOP_FACTOR**3)
    assert beyond.basis == "extrapolated"


def test_below_the_smallest_list_is_an_extrapolation() -> None:
    """100 B are a decade below 1000 B."""
    loop = tensor_loop("pack", 2).model_copy(update={"min_bytes": 1000.0})
    cost = costs_of(loop).passing("pack", Tensors("unknown", 1, 100))
    seconds = by_hand(1, 100)
    assert close(cost, seconds, seconds / LOOP_FACTOR**2, seconds * LOOP_FACTOR**2)
    assert cost.basis == "extrapolated"
    assert costs_of(loop).passing("pack", Tensors("x", 1, 1000)).basis == "interpolated"


def test_pack_and_unpack_and_update_do_not_stand_in_for_each_other() -> None:
    for there, asked in (("pack", "unpack"), ("unpack", "pack")):
        costs = costs_of(*loops(there))
        with pytest.raises(MissingParameter, match=f"no {asked} time with 2 active rank.*on 2$"):
            costs.passing(asked, LIST)
    with pytest.raises(MissingParameter, match="no update time"):
        costs_of(*loops("pack", "unpack", "update_adam")).update(LIST, "momentum")


def test_packing_was_not_measured_on_one_rank() -> None:
    costs = TensorCosts(machine(tensor_loops=[tensor_loop("update", 1)], ranks_per_node=1), 1)
    with pytest.raises(MissingParameter, match=r"no pack time: .* one rank, which") as found:
        costs.passing("pack", LIST)
    assert found.value.wants == "more ranks"


def test_passes_on_a_gpu_or_of_other_items_are_not_those_of_training() -> None:
    for changes in ({"device": "cuda"}, {"execution": "float64"}):
        loop = tensor_loop("pack", 2).model_copy(update=changes)
        with pytest.raises(MissingParameter):
            costs_of(loop).passing("pack", LIST)


def test_other_active_ranks_are_taken_and_said() -> None:
    """Everything was measured with 1 and 4 ranks at work; 3 are asked for."""
    times = [layer_time(linear("fc", "x", 2, 3), 4, active, 1.0, 1.0) for active in (1, 4)]
    found = [tensor_loop("update", active, {"abc": estimate(active * 1.0)}) for active in (1, 4)]
    costs = TensorCosts(machine(layers=times, tensor_loops=found, ranks_per_node=4), 3)
    cost = costs.update(LIST, "momentum")
    assert (cost.seconds, cost.basis) == (4.0, "interpolated")
    assert any("[1, 4]" in note and "taken from 4" in note for note in cost.notes)


# updates


def test_each_optimizer_has_its_own_pass() -> None:
    """Those that calib measure knows, and each is found where the samples have it."""
    assert set(UPDATES) == set(OPTIMIZERS)
    names = {"momentum": "update", "adam": "update_adam", "sgd": "update_sgd"}
    found = [tensor_loop(name, 2, {"abc": estimate(len(name))}) for name in names.values()]
    for optimizer, name in names.items():
        assert costs_of(*found).update(LIST, optimizer).seconds == len(name)


def test_an_unknown_optimizer() -> None:
    with pytest.raises(InputError, match="unknown optimizer 'lamb'; known: momentum, adam, sgd"):
        costs_of(*loops("update")).update(LIST, "lamb")


def test_adam_that_was_not_measured_is_missing() -> None:
    """Momentum says nothing of it; the line names what to write into the plan."""
    with pytest.raises(MissingParameter) as error:
        costs_of(*loops("update")).update(LIST, "adam")
    message = str(error.value)
    assert 'optimizers = ["momentum", "adam"]' in message and "\n" not in message
    assert "update_adam" in message


def test_momentum_is_an_upper_bound_of_plain_sgd() -> None:
    """From there down to three of momentum's five passes over memory, and no call at all."""
    cost = costs_of(*loops("update")).update(Tensors("unknown", 10, 10_000), "sgd")
    most, least = by_hand(10, 10_000), 0.6 * 10_000 * LOOP_BYTE_S
    down = math.hypot(most - most / LOOP_FACTOR, most - least)
    assert close(cost, most, max(0.0, most - down), most * LOOP_FACTOR)
    assert cost.basis == "extrapolated"
    assert any("upper bound" in note and '"sgd"' in note for note in cost.notes)
    own = costs_of(*loops("update", "update_sgd")).update(LIST, "sgd")
    assert not any("upper bound" in note for note in own.notes)
    with pytest.raises(MissingParameter, match=r'no update_sgd time.*"momentum", "sgd"'):
        costs_of(*loops("update_adam")).update(LIST, "sgd")


def test_a_shared_update_is_of_a_part_and_never_a_measured_list() -> None:
    """10 tensors of 400 B on 3 ranks: 4 tensors and 134 B on the one that has most."""
    loop = tensor_loop("update", 2, {"abc": estimate(5.0), "": estimate(6.0)})
    rule = law("update", 2, s_per_byte=1e-9, error_factor=1.0)
    for laws, extra in (([], 0.0), ([rule], 134e-9)):
        cost = costs_of(loop, composition=laws).update(LIST, "momentum", share=3)
        assert cost.seconds == pytest.approx(by_hand(4, 134) + extra, rel=EXACT, abs=0)
        assert cost.basis == "interpolated"
    assert costs_of(loop).update(LIST, "momentum").seconds == 5.0


# inside an iteration


def test_passes_have_what_their_phase_adds() -> None:
    """10 tensors at 1 us, 400 B at 1 us each, and the law's factor; each operation by its own law."""
    rules = [
        law(phase, 2, 1e-6, number * 1e-6)
        for number, phase in enumerate(("update", "pack", "unpack"), start=1)
    ]
    found = [tensor_loop(name, 2, {"abc": estimate(1e-3)}) for name in ("update", "pack", "unpack")]
    costs = costs_of(*found, composition=rules)
    for number, cost in enumerate(
        (
            costs.update(LIST, "momentum"),
            costs.passing("pack", LIST),
            costs.passing("unpack", LIST),
        ),
        start=1,
    ):
        whole = 1e-3 + 10 * 1e-6 + 400 * number * 1e-6
        low = whole - math.hypot(1e-4, whole * (1 - 1 / 1.3))
        assert close(cost, whole, low, whole + math.hypot(1e-4, whole * 0.3))
        assert cost.basis == "measured" and cost.notes == ()


def test_what_an_iteration_adds_to_other_optimizers_is_that_of_momentum() -> None:
    found = [tensor_loop(name, 2, {"abc": estimate(1e-3)}) for name in ("update", "update_adam")]
    costs = costs_of(*found, composition=[law("update", 2, s_per_byte=1e-6)])
    cost = costs.update(LIST, "adam")
    assert cost.seconds == pytest.approx(1e-3 + 400e-6, rel=EXACT, abs=0)
    assert cost.basis == "interpolated" and any("momentum" in note for note in cost.notes)
    assert costs.update(LIST, "momentum").notes == ()


def test_without_a_law_the_pass_stands_alone_and_is_said() -> None:
    cost = costs_of(tensor_loop("pack", 2, {"abc": estimate(1e-3)})).passing("pack", LIST)
    assert close(cost, 1e-3, 0.9e-3, 1.1e-3)
    assert len(cost.notes) == 1 and "isolated parts" in cost.notes[0]


def test_an_exchange_in_an_iteration() -> None:
    """Ranks come late and buffers are cold: 2000 B at 1 ns each."""
    alone = Cost(1e-3, "measured", ((MACHINE, 1e-4, 1e-4),))
    costs = costs_of(composition=[law("exchange", 2, s_per_byte=1e-9, error_factor=1.5)])
    cost = costs.exchanging(alone, 2000)
    whole = 1e-3 + 2e-6
    assert cost.seconds == pytest.approx(whole, rel=EXACT, abs=0)
    assert cost.high == pytest.approx(whole + math.hypot(1e-4, whole / 2), rel=EXACT, abs=0)
    assert costs.exchanging(NOTHING, 2000) == NOTHING, "a group of one exchanges nothing"
    plain = costs_of().exchanging(alone, 2000)
    assert plain.seconds == 1e-3 and any("isolated" in note for note in plain.notes)


# shards


@pytest.mark.parametrize("operation", ["concat", "split"])
def test_shards_are_the_tensors_of_the_law(operation: Cut) -> None:
    costs = costs_of(*loops("concat", "split"))
    cost = costs.cutting(operation, "abc", 4, 8000, count=3)
    one = by_hand(4, 8000)
    assert close(cost, 3 * one, 3 * one / LOOP_FACTOR, 3 * one * LOOP_FACTOR)
    assert cost.errors[0][0] == f"{PASS_LAWS}: {operation} law" and cost.basis == "interpolated"
    assert costs.cutting(operation, "abc", 1, 8000) == NOTHING, "one part is the whole"


def test_measured_shards_are_found_by_shape_and_number_of_parts() -> None:
    """Rows of shards have the key HASH/PARTS (microbench/rows.py)."""
    loop = tensor_loop("concat", 2, {"abc/4": estimate(1e-3), "abc": estimate(9.0)})
    costs = costs_of(loop)
    found = costs.cutting("concat", "abc", 4, 8000, count=2)
    assert close(found, 2e-3, 1.8e-3, 2.2e-3) and found.basis == "measured"
    other = costs.cutting("concat", "abc", 2, 8000)
    assert other.seconds == pytest.approx(by_hand(2, 8000), rel=EXACT, abs=0)


@pytest.mark.parametrize("operation", ["concat", "split"])
def test_shards_by_the_law_of_copies_or_said_to_be_alone(operation: Cut) -> None:
    """Each copy its own 3 us and 8000 B at 1 ns."""
    rule = law("copies", 2, s_per_layer=3e-6, s_per_byte=1e-9, error_factor=1.0)
    costs = costs_of(*loops("concat", "split"), composition=[rule])
    cost = costs.cutting(operation, "abc", 4, 8000, count=2)
    assert cost.seconds == pytest.approx(2 * (by_hand(4, 8000) + 11e-6), rel=EXACT, abs=0)
    assert cost.notes == ()
    costs = costs_of(
        *loops("concat", "split"), composition=[law(operation, 2, 9.0), law("pack", 2)]
    )
    cost = costs.cutting(operation, "abc", 4, 8000)
    assert cost.seconds == pytest.approx(by_hand(4, 8000), rel=EXACT, abs=0)
    assert len(cost.notes) == 1 and "alone" in cost.notes[0]


def test_calls_between_layers_in_an_iteration() -> None:
    """5 calls, 2 us more each; the law's factor is on the whole, whatever their bytes."""
    calls = Cost(50e-6, "measured", ((MACHINE, 5e-6, 5e-6),))
    rule = law("halo", 2, s_per_layer=2e-6, error_factor=1.5, max_bytes=0.0)
    costs = costs_of(composition=[rule])
    cost = costs.meeting("halo", calls, 5)
    whole = 60e-6
    assert cost.seconds == pytest.approx(whole, rel=EXACT, abs=0) and cost.basis == "measured"
    assert cost.high == pytest.approx(whole + math.hypot(5e-6, whole / 2), rel=EXACT, abs=0)
    assert costs.meeting("layerwise", calls, 5) == calls, "of which there is no law"
    assert costs.meeting("halo", NOTHING, 5) == NOTHING


@pytest.mark.parametrize(
    ("measured", "each"), [((), 2e-6), (("torch_mpi", "torch_gloo"), 2e-6), (("torch_gloo",), 9e-6)]
)
def test_ranks_meet_by_the_library_that_operations_are_priced_by(
    measured: tuple[str, ...], each: float
) -> None:
    fit = operations("allgather")[0]
    fits = [fit.model_copy(update={"library": name}) for name in measured]
    laws = [
        law("layerwise", 2, s_per_layer=extra).model_copy(update={"library": name})
        for name, extra in (("torch_mpi", 2e-6), ("torch_gloo", 9e-6))
    ]
    calls = Cost(50e-6, "measured")
    for order in (laws, laws[::-1]):
        costs = costs_of(composition=order, collectives=fits)
        cost = costs.meeting("layerwise", calls, 5)
        assert cost.seconds == pytest.approx(50e-6 + 5 * each, rel=EXACT, abs=0)
    alone = costs_of(composition=laws[1:], collectives=fits[:1])
    assert alone.meeting("layerwise", calls, 1).seconds == pytest.approx(59e-6, rel=EXACT, abs=0)


@pytest.mark.parametrize("operation", ["concat", "split"])
def test_shards_that_were_not_measured_name_the_plan(operation: Cut) -> None:
    with pytest.raises(MissingParameter) as error:
        costs_of(*loops("pack", "unpack", "update")).cutting(operation, "abc", 4, 8000)
    message = str(error.value)
    assert f"no {operation} time" in message and "\n" not in message
    assert "measure one of filter, channel" in message


# properties


@settings(max_examples=60)
@given(
    ntensors=st.integers(1, 500),
    nbytes=st.integers(1, 10**9),
    share=st.integers(1, 64),
    factor=st.floats(1.0, 5.0),
    max_bytes=st.floats(1.0, 1e9),
)
def test_intervals_hold_their_value_and_units(
    ntensors: int, nbytes: int, share: int, factor: float, max_bytes: float
) -> None:
    """Twice every coefficient of pass and law of its phase: twice seconds and errors."""

    def found(scale: float) -> Cost:
        coefficients = {
            "call_s": scale * 1e-6,
            "s_per_tensor": scale * 3e-7,
            "s_per_byte": scale * 2e-10,
            "error_factor": factor,
            "max_bytes": max_bytes,
        }
        loop = tensor_loop("update", 2).model_copy(update=coefficients)
        rule = law("update", 2, s_per_byte=scale * 1e-10, error_factor=1.3)
        costs = costs_of(loop, composition=[rule])
        return costs.update(Tensors("unknown", ntensors, nbytes), "momentum", share)

    one, two = found(1.0), found(2.0)
    assert 0 <= one.low <= one.seconds <= one.high
    assert close(two, 2 * one.seconds, 2 * one.low, 2 * one.high)


def test_the_order_of_the_file_does_not_matter() -> None:
    found = loops("update", "pack", "unpack") + tensor_loops("update", "pack", active=(1,))
    rules = [law(phase, 2, s_per_byte=1e-9) for phase in ("update", "pack", "exchange")]
    orders = [costs_of(*found, composition=rules), costs_of(*found[::-1], composition=rules[::-1])]
    for ask in (
        lambda costs: costs.update(LIST, "momentum"),
        lambda costs: costs.passing("pack", LIST),
        lambda costs: costs.exchanging(Cost(1.0), 50),
    ):
        assert ask(orders[0]) == ask(orders[1])


def test_packing_and_unpacking_err_apart_and_measured_ones_together() -> None:
    """Two laws: in quadrature. Two medians of one machine: added up."""
    by_law, lists = costs_of(*loops("pack", "unpack")), {"abc": estimate(1e-3)}
    one = by_law.passing("pack", LIST)
    both = total([one, by_law.passing("unpack", LIST)])
    error = one.seconds * (LOOP_FACTOR - 1)
    assert both.high - both.seconds == pytest.approx(math.sqrt(2) * error, rel=1e-9, abs=0)
    measured = costs_of(*(tensor_loop(name, 2, lists) for name in ("pack", "unpack")))
    both = total([measured.passing("pack", LIST), measured.passing("unpack", LIST)])
    assert both.high - both.seconds == pytest.approx(2e-4, rel=1e-9, abs=0)
