"""Projections of hand-made models on hand-made machines, against formulas.md by hand."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from math import hypot
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.oracle.handmade import (
    CALL_S,
    LOOP_BYTE_S,
    LOOP_CALL_S,
    LOOP_TENSOR_S,
    allreduce_fit,
    estimate,
    law,
    layer_time,
    machine,
    mlp,
    operations,
    tensor_loop,
    work_model,
)
from tests.oracle.networks import overlap, straight
from tests.oracle.shapes import conv, model_of

from calib import oracle
from calib.fitting.parameters.file import Parameters
from calib.fitting.parameters.memory import OverlappedIteration
from calib.foundation.division import Division
from calib.foundation.errors import FileError, InputError, MissingParameter
from calib.foundation.layer_keys import iteration_key
from calib.foundation.layers import LayerShape
from calib.foundation.records import Estimate
from calib.oracle.layout.grids import best_grid
from calib.oracle.model.layer import Layer
from calib.oracle.model.spec import ModelSpec, tensors_key
from calib.oracle.predict import project
from calib.oracle.projection import BASIS_ORDER, PHASES, Projection
from calib.oracle.strategies import strategy_named

NET = mlp([12, 8, 3])  # fc 12 -> 8, ReLU, fc 8 -> 3, loss: 131 parameters in 4 tensors
WEIGHT_BYTES = 4 * 131
ACTIVATION_ITEMS = 8 + 8 + 3 + 1
LAWS = [
    law("forward", 2, s_per_layer=1e-6),
    law("backward", 2, s_per_byte=1e-9),
    law("pack", 2, s_per_byte=2e-9),
    law("exchange", 2, s_per_byte=3e-9),
    law("unpack", 2, s_per_byte=4e-9),
    law("update", 2, s_per_byte=5e-9),
]


def each(
    model: ModelSpec,
    strategy: str,
    p: int,
    batch_per_rank: int,
    parameters: Parameters,
    **more: Any,
) -> Projection:
    """A projection of so many samples on each rank."""
    return project(model, Division(strategy, p, p * batch_per_rank), parameters, **more)


def measured_machine() -> Parameters:
    """All that data-parallel training of NET at batch 4 on 2 ranks needs, measured."""
    forwards, backwards = (1e-4, 2e-5, 3e-5, 4e-5), (5e-4, 6e-5, 7e-5, 8e-5)
    layers = [
        layer_time(layer, 4, 2, forward, backward)
        for layer, forward, backward in zip(NET.layers, forwards, backwards, strict=True)
    ]
    key = tensors_key(((8, 12), (8,), (3, 8), (3,)))
    loops = [
        tensor_loop(operation, 2, {key: estimate(seconds)})
        for operation, seconds in (("update", 1e-3), ("pack", 2e-3), ("unpack", 3e-3))
    ]
    fit = allreduce_fit(points=[(8, 4e-6), (WEIGHT_BYTES, 4e-3), (4096, 5e-3)])
    return machine(layers=layers, tensor_loops=loops, collectives=[fit], composition=LAWS)


def test_data_on_two_ranks_by_hand() -> None:
    """(B/p) sum(FW + BW) + sum(WU) + AR, pack and unpack, each with what its sum leaves out."""
    found = each(NET, "data", 2, 4, measured_machine())
    activations = 4 * 4 * ACTIVATION_ITEMS
    expected = {
        "forward": 1e-4 + 2e-5 + 3e-5 + 4e-5 + 4 * 1e-6,  # 4 layers run a kernel
        "backward": 5e-4 + 6e-5 + 7e-5 + 8e-5 + activations * 1e-9,
        "pack": 2e-3 + 3e-3 + WEIGHT_BYTES * (2e-9 + 4e-9),
        "exchange": 4e-3 + WEIGHT_BYTES * 3e-9,
        "update": 1e-3 + WEIGHT_BYTES * 5e-9,
    }
    expected |= {"halo": 0.0, "layerwise": 0.0}
    assert {name: time.value for name, time in found.phases.items()} == pytest.approx(expected)
    assert found.total.value == pytest.approx(sum(expected.values()))
    assert found.total.basis == "measured"
    # the ends of the intervals: the allreduce +-10%, and the law's factor 1.3: two sources
    exchange = expected["exchange"]
    assert found.phases["exchange"].high == pytest.approx(exchange + hypot(0.4e-3, 0.3 * exchange))
    low = exchange - hypot(0.4e-3, exchange - exchange / 1.3)
    assert found.phases["exchange"].low == pytest.approx(low)
    assert (found.p, found.batch_per_rank, found.division.batch, found.feasible) == (2, 4, 8, True)


@given(widths=st.lists(st.integers(1, 64), min_size=2, max_size=6), batch=st.integers(1, 64))
def test_data_on_one_rank_is_serial(widths: list[int], batch: int) -> None:
    serial, data = (each(mlp(widths), name, 1, batch, machine()) for name in ("serial", "data"))
    assert data.phases == serial.phases
    assert data.total == serial.total
    assert data.bytes_by_part == serial.bytes_by_part
    for phase in ("halo", "layerwise", "pack", "exchange"):
        time = serial.phases[phase]
        assert (time.value, time.low, time.high, time.basis) == (0, 0, 0, "exact")


@settings(max_examples=200)
@given(
    widths=st.lists(st.integers(1, 300), min_size=2, max_size=6),
    batch=st.integers(1, 300),
    p=st.integers(1, 600),
    strategy=st.sampled_from(["serial", "data"]),
    with_laws=st.booleans(),
    ranks_per_node=st.integers(1, 8),
)
def test_what_holds_for_every_projection(
    widths: list[int], batch: int, p: int, strategy: str, with_laws: bool, ranks_per_node: int
) -> None:
    """Intervals hold their value, sums add up, a sum is as sure as its worst part."""
    changes: dict[str, Any] = {"composition": LAWS} if with_laws else {}
    # work models and loops of every number of ranks of a node
    if ranks_per_node > 2:
        base = machine()
        for field in ("work", "tensor_loops"):
            rows = [row for row in getattr(base, field) if row.active_ranks == 1]
            changes[field] = [
                row.model_copy(update={"active_ranks": active})
                for row in rows
                for active in range(1, ranks_per_node + 1)
            ]
    found = each(mlp(widths), strategy, p, batch, machine(ranks_per_node=ranks_per_node, **changes))
    assert found.division.batch == p * batch
    if strategy == "serial" and p > 1:
        assert (found.feasible, found.phases, found.total) == (False, {}, None)
        return
    assert tuple(found.phases) == PHASES
    times = list(found.phases.values())
    assert found.total is not None
    for time in [*times, found.total]:
        assert 0 <= time.low <= time.value <= time.high
    assert found.total.value == pytest.approx(sum(t.value for t in times), rel=1e-12, abs=0)
    # errors of one source add up, those of several in quadrature
    above = [time.high - time.value for time in times]
    spread = found.total.high - found.total.value
    assert hypot(*above) * (1 - 1e-9) <= spread <= sum(above) * (1 + 1e-9)
    assert found.total.basis == max((time.basis for time in times), key=BASIS_ORDER.index)
    assert found.bytes_per_rank == sum(found.bytes_by_part.values())
    assert found.feasible is (not found.limits)
    if strategy == "data" and p > 2:
        assert found.phases["exchange"].basis == "extrapolated"


@given(p=st.integers(3, 200), widths=st.lists(st.integers(1, 64), min_size=2, max_size=5))
def test_doubling_alpha_and_beta(p: int, widths: list[int]) -> None:
    """Twice alpha adds 2 (p-1) alpha, twice beta adds 2 (p-1) W beta / p."""
    net = mlp(widths)
    nbytes = 4 * sum(a * b + b for a, b in pairwise(widths))

    def exchange(alpha: float, beta: float) -> float:
        fit = straight(2, alpha_s=alpha, beta_s_per_byte=beta)
        found = each(net, "data", p, 4, machine(collectives=[fit]))
        return found.phases["exchange"].value

    def ring(alpha: float, beta: float) -> float:
        return 2 * (p - 1) * (alpha + nbytes * beta / p)

    base, more = (1e-6, 1e-9), ((2e-6, 1e-9), (1e-6, 2e-9))
    assert exchange(*base) == pytest.approx(ring(*base), rel=2e-3, abs=0)
    for changed in more:
        found = exchange(*changed) / exchange(*base)
        assert found == pytest.approx(ring(*changed) / ring(*base), rel=2e-3, abs=0)


def test_update_and_packing_by_number_and_bytes() -> None:
    """Not measured: one loop each over 4 tensors of 524 B; packing is two loops."""
    found = each(NET, "data", 2, 4, machine())
    one = LOOP_CALL_S + 4 * LOOP_TENSOR_S + WEIGHT_BYTES * LOOP_BYTE_S
    assert found.phases["update"].value == pytest.approx(one)
    assert found.phases["pack"].value == pytest.approx(2 * one)


# memory


def test_memory_of_a_three_layer_net_by_hand() -> None:
    """delta (sum 2 B' (|x| + |y|) + 2|w| + 2|bi|), momentum |w| + |bi| (formulas.md).

    fc 12+8, ReLU 8+8, fc 8+3, loss 3+1: 51 items a sample; 12*8+8 + 8*3+3 = 131 weights.
    """
    found = each(NET, "serial", 1, 4, machine())
    assert found.bytes_by_part == {
        "activations": 4 * 2 * 4 * 51,
        "weights": 524,
        "gradients": 524,
        "optimizer": 524,
    }
    assert found.bytes_per_rank == 1632 + 3 * 524
    shared = each(NET, "data", 2, 4, machine())
    assert shared.bytes_per_rank == 1632 + 4 * 524  # and the flat buffer of the exchange


def test_memory_of_a_convolution_by_hand() -> None:
    """3 -> 5 channels, kernel 3 without bias on 8x8: |x| = 192, |y| = 180, |w| = 135; B' = 7."""
    convolution = Layer(
        name="conv",
        shape=LayerShape(
            kind="conv",
            input_shapes=((3, 8, 8),),
            output_shape=(5, 6, 6),
            parameter_shapes=((5, 3, 3, 3),),
            attributes={"kernel": (3, 3), "stride": (1, 1), "padding": (0, 0), "groups": 1},
        ),
        inputs=("input",),
        needs_input_grad=False,
    )
    loss = LayerShape(kind="mse", input_shapes=((5, 6, 6),), output_shape=())
    layers = (convolution, Layer(name="loss", shape=loss, inputs=("conv",), needs_input_grad=True))
    net = ModelSpec(name="one", input_shape=(3, 8, 8), classes=5, layers=layers)
    found = each(net, "serial", 1, 7, machine())
    assert found.bytes_by_part["activations"] == 4 * 2 * 7 * (192 + 180 + 180 + 1)
    assert found.bytes_by_part["weights"] == 4 * 135


@pytest.mark.parametrize(("memory", "fits"), [(3203, False), (3204, True), (0, True)])
def test_more_than_the_memory_of_a_rank_is_an_answer(memory: int, fits: bool) -> None:
    """The three-layer net needs 3204 B; 0 means that the memory is not known. The time is told."""
    found = each(NET, "serial", 1, 4, machine(device_memory_bytes=memory))
    assert (found.feasible, not found.limits) == (fits, fits)
    assert found.total is not None


# what cannot be


def test_serial_on_two_is_an_answer_not_an_error() -> None:
    found = each(NET, "serial", 2, 4, machine())
    assert found.feasible is False
    assert found.limits == ["serial runs on 1 rank, not on 2"]
    assert found.limit.ranks == 1


def test_a_training_is_one_launch() -> None:
    """Of launches within 1.25 of many: in all phases alike, and beside other errors in quadrature."""
    calm = measured_machine()
    one = each(NET, "data", 2, 4, calm.model_copy(update={"launch_factors": {2: 1.25}}))
    many = each(NET, "data", 2, 4, calm)
    assert one.total is not None and many.total is not None
    assert one.total.value == many.total.value
    for phase, cost in one.phases.items():
        before = many.phases[phase]
        up = hypot(before.high - before.value, 0.25 * before.value)
        down = hypot(before.value - before.low, 0.2 * before.value)
        assert (cost.low, cost.high) == pytest.approx((before.value - down, before.value + up))
    up = hypot(many.total.high - many.total.value, 0.25 * many.total.value)
    assert one.total.high == pytest.approx(one.total.value + up)


def test_messages_differ_from_launch_to_launch_by_themselves() -> None:
    """A link does not slow down with the cores; without what messages say, they are as the rest."""
    calm = measured_machine()
    own = [fit.model_copy(update={"launch_factor": 1.5}) for fit in calm.collectives]
    known = calm.model_copy(update={"launch_factors": {2: 1.25}, "collectives": own})
    one, many = each(NET, "data", 2, 4, known), each(NET, "data", 2, 4, calm)
    for phase, cost in one.phases.items():
        before = many.phases[phase]
        # what an iteration adds to the message of 4 ms is no message
        more = 0.5 * 4e-3 if phase == "exchange" else 0.25 * before.value
        up = hypot(before.high - before.value, more)
        assert cost.high == pytest.approx(before.value + up)
    of_exchange = 1.0 + 0.5 * 4e-3 / one.phases["exchange"].value
    assert one.launch_factors["exchange"] == pytest.approx(of_exchange)
    assert one.launch_factors["forward"] == pytest.approx(1.25)


def test_how_launches_of_the_nearest_number_of_ranks_differ() -> None:
    known = measured_machine().model_copy(update={"launch_factors": {1: 1.5, 2: 1.2, 8: 1.1}})
    found = {p: known.launch_factor(p) for p in (1, 2, 3, 4, 5, 1000)}
    assert found == {1: 1.5, 2: 1.2, 3: 1.2, 4: 1.2, 5: 1.1, 1000: 1.1}
    assert measured_machine().launch_factor(4) == 1.0


def test_an_epoch_is_so_many_iterations() -> None:
    """D / B of them; an incomplete one counts by its share."""
    found = each(NET, "data", 2, 4, measured_machine(), samples=100)
    assert found.total is not None
    assert found.epoch is not None
    for end in ("value", "low", "high"):
        expected = 12.5 * getattr(found.total, end)
        assert getattr(found.epoch, end) == pytest.approx(expected, rel=1e-9)
    assert each(NET, "data", 2, 4, measured_machine()).epoch is None


@given(p=st.integers(1, 64), batch=st.integers(1, 16), form=st.sampled_from(["paper", "measured"]))
def test_terms_add_up_to_the_phases(p: int, batch: int, form: Any) -> None:
    found = each(NET, "data", p, batch, machine(), form=form, explain=True)
    for phase, time in found.phases.items():
        seconds = sum(term.time.value for term in found.terms if term.phase == phase)
        assert time.value == pytest.approx(seconds, rel=1e-12)
    assert not each(NET, "data", p, batch, machine(), form=form).terms


def test_a_sharded_optimizer_by_hand() -> None:
    """A reduce-scatter and an allgather of W, and the update of half of 4 tensors and 560 B."""
    net = mlp([12, 8, 4])  # 140 parameters
    whole = each(net, "data", 2, 4, machine())
    fits = operations("allreduce", "reduce_scatter", "allgather")
    division = Division("data", 2, 8, sharded_optimizer=True)
    found = project(net, division, machine(collectives=fits))
    update = LOOP_CALL_S + 2 * LOOP_TENSOR_S + 280 * LOOP_BYTE_S
    assert found.phases["update"].value == pytest.approx(update)
    assert found.phases["exchange"].value == pytest.approx(2 * whole.phases["exchange"].value)
    assert found.bytes_by_part["optimizer"] == whole.bytes_by_part["optimizer"] / 2


def test_overlap_without_a_measured_share_may_hide_all_or_nothing() -> None:
    plain = each(NET, "data", 2, 4, measured_machine()).phases["exchange"]
    found = project(NET, Division("data", 2, 8, overlap=True), measured_machine())
    time = found.phases["exchange"]
    assert time.value == plain.value
    assert (time.basis, time.high) == ("extrapolated", pytest.approx(plain.high))
    hidden = min(plain.value, found.phases["backward"].value)
    below = hypot(plain.value - plain.low, hidden)
    assert time.low == pytest.approx(max(0.0, plain.value - below))
    assert any("from none to all may be hidden" in note for note in found.notes)


@pytest.mark.parametrize(("p", "active"), [(1, 1), (2, 2), (4, 4), (8, 4)])
def test_ranks_at_work_are_those_of_a_node(p: int, active: int) -> None:
    """A machine of 4 ranks a node whose layers, updates and packing cost more the more are at work."""

    def parameters(factors: dict[int, float]) -> Parameters:
        laws = [
            work_model(kind, direction, a).model_copy(update={"call_s": CALL_S * factors[a]})
            for a in (1, 2, 4)
            for kind in ("linear", "any")
            for direction in ("forward", "backward")
        ]
        loops = [
            tensor_loop(name, a).model_copy(update={"call_s": LOOP_CALL_S * factors[a]})
            for a in (1, 2, 4)
            for name in ("update", "pack", "unpack")
        ]
        return machine(ranks_per_node=4, work=laws, tensor_loops=loops)

    once, base = {1: 1.0, 2: 10.0, 4: 100.0}, parameters({1: 1.0, 2: 1.0, 4: 1.0})
    found, plain = each(NET, "data", p, 4, parameters(once)), each(NET, "data", p, 4, base)
    # 4 layers each way (of the backward one call each), the update, and packing and unpacking
    calls = {"forward": 4 * CALL_S, "backward": 4 * CALL_S, "update": LOOP_CALL_S}
    calls |= {"pack": 2 * LOOP_CALL_S} if p > 1 else {}
    for phase, seconds in calls.items():
        more = found.phases[phase].value - plain.phases[phase].value
        assert more == pytest.approx((once[active] - 1) * seconds, rel=1e-9, abs=1e-15)


def test_eta_is_that_of_as_many_ranks_and_beyond_them_anything() -> None:
    rows = {"overlap": [overlap(2, 0.5), overlap(4, 0.25)], "ranks_per_node": 4}
    rows["collectives"] = [allreduce_fit(), allreduce_fit(ranks=4), allreduce_fit(8, "system")]
    rows |= {"work": machine().work, "tensor_loops": machine().tensor_loops}
    for p, eta in ((2, 0.5), (4, 0.25), (8, 0.25)):
        plain = project(NET, Division("data", p, 4 * p), machine(**rows))
        found = project(NET, Division("data", p, 4 * p, overlap=True), machine(**rows))
        whole = plain.phases["exchange"].value
        hidden = min(eta * whole, plain.phases["backward"].value)
        assert found.phases["exchange"].value == pytest.approx(whole - hidden)
        assert ("other numbers of ranks only" in " ".join(found.notes)) is (p == 8)


def test_an_iteration_that_was_measured_with_overlap_is_predicted_as_it_was() -> None:
    """Its phases keep their shares; another batch, optimizer or sharding goes by the law."""
    of = measured_machine()
    keys = [layer.shape.key(4, "float32", layer.needs_input_grad) for layer in NET.layers]
    weights = tensors_key(((8, 12), (8,), (3, 8), (3,)))
    seconds = Estimate(value=2.0, low=1.8, high=2.5)
    known = OverlappedIteration(
        key=iteration_key(keys, weights, "momentum"), model="any", seconds=seconds
    )
    law = overlap(2, 0.5)
    plain = of.model_copy(update={"overlap": [law]})
    measured = of.model_copy(update={"overlap": [law.model_copy(update={"iterations": [known]})]})
    overlapped = Division("data", 2, 8, overlap=True)
    by_law, found = project(NET, overlapped, plain), project(NET, overlapped, measured)
    assert found.total is not None and by_law.total is not None
    assert found.total.numbers == pytest.approx((2.0, 1.8, 2.5))
    assert found.total.basis == "measured"
    assert [of.source for of in found.sources] == ["overlap"]
    for phase in PHASES:
        share = by_law.phases[phase].value / by_law.total.value
        assert found.phases[phase].value == pytest.approx(2.0 * share)
    for other in (replace(overlapped, batch=16), replace(overlapped, overlap=False)):
        assert project(NET, other, measured).total == project(NET, other, plain).total
    sgd = [project(NET, overlapped, each, optimizer="sgd").total for each in (plain, measured)]
    assert sgd[0] == sgd[1]


def test_overlap_that_was_measured_to_cost_is_added_to_the_backward() -> None:
    slowdown = Estimate(value=0.1, low=0.05, high=0.2)
    law = overlap(2, 0.0).model_copy(update={"slowdown": slowdown})
    of = measured_machine().model_copy(update={"overlap": [law]})
    plain, found = (
        project(NET, Division("data", 2, 8, overlap=overlaps), of) for overlaps in (False, True)
    )
    assert plain.total is not None and found.total is not None
    assert found.total.value == pytest.approx(1.1 * plain.total.value)
    more = found.phases["backward"].value - plain.phases["backward"].value
    assert more == pytest.approx(0.1 * plain.total.value)
    assert found.total.high - found.total.value >= 0.0999 * plain.total.value
    assert any("take 10.0% longer" in note for note in found.notes)


def test_the_weights_that_a_sharded_optimizer_gathers_are_not_hidden() -> None:
    """They come after the update: of two operations of W only the reduce-scatter can hide."""
    fits = operations("allreduce", "reduce_scatter", "allgather")
    net, rows = mlp([12, 8, 4]), {"overlap": [overlap(2, 1.0, margin=0.0)], "collectives": fits}
    both = Division("data", 2, 8, overlap=True, sharded_optimizer=True)
    alone = each(net, "data", 2, 4, machine(**rows)).phases
    found = project(net, both, machine(**rows)).phases["exchange"].value
    hidden = min(alone["exchange"].value, alone["backward"].value)
    assert found == pytest.approx(2 * alone["exchange"].value - hidden)


def test_a_chosen_grid_is_kept_and_a_best_one_found() -> None:
    """16 x 16 images in 4 parts: one dimension where that was asked for."""
    layer = conv(1, 4, (16, 16), 3, 1, 1)
    model = model_of([layer, conv(4, 4, (16, 16), 3, 1, 1)])
    rows = {"collectives": operations("allreduce", "halo", "allgather")}
    for grid in ((4,), (2, 2), (1, 4)):
        found = project(model, Division("spatial", 4, 4, grid=grid), machine(**rows))
        assert found.division.grid == grid
    best = project(model, Division("spatial", 4, 4), machine(**rows))
    assert best.division.grid == best_grid(model, 4)
    assert best.split_ends_after == "l2"  # then come flatten and the head
    assert project(model, Division("spatial", 1, 4), machine()).split_ends_after == ""


def test_the_library_has_two_names() -> None:
    found = oracle.project(NET, oracle.Division("data", 2, 8), measured_machine())
    assert found == each(NET, "data", 2, 4, measured_machine())
    with pytest.raises(AttributeError, match="no attribute 'predict_all'"):
        _ = oracle.predict_all


def test_unknown_strategy() -> None:
    with pytest.raises(InputError, match=r"unknown strategy 'dtaa'; known: serial, data"):
        strategy_named("dtaa")
    with pytest.raises(InputError, match="unknown strategy 'expert'; known: serial, data"):
        project(NET, Division("expert", 2, 4), machine())
    with pytest.raises(InputError, match="unknown optimizer 'lamb'; known: sgd, momentum, adam"):
        each(NET, "data", 2, 4, machine(), optimizer="lamb")


@pytest.mark.parametrize(("p", "batch"), [(0, 1), (-1, 1), (1, 0), (2, -4)])
def test_numbers_below_one(p: int, batch: int) -> None:
    with pytest.raises(InputError, match="must be at least 1"):
        each(NET, "data", p, batch, machine())


def test_missing_parts_of_a_machine() -> None:
    for changes in ({"collectives": []}, {"work": []}, {"tensor_loops": []}):
        with pytest.raises(MissingParameter, match="the parameters hold no "):
            each(NET, "data", 2, 4, machine(**changes))


def test_fewer_ranks_than_were_measured() -> None:
    """`calib calibrate` on 4 cores measures 1 and 4 ranks; 2 lies between.

    The nearest number of active ranks is 1, where nothing was packed; 4 has it.
    """
    rows = {"layers": [layer_time(x, 4, a, 1e-5, 1e-5) for x in NET.layers for a in (1, 4)]}
    loops = [tensor_loop("update", 1), *(tensor_loop(o, 4) for o in ("update", "pack", "unpack"))]
    found = each(
        NET,
        "data",
        2,
        4,
        machine(ranks_per_node=4, tensor_loops=loops, collectives=[allreduce_fit(ranks=4)], **rows),
    )
    assert found.phases["pack"].value > 0


def test_a_model_file_of_a_future_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    NET.model_copy(update={"format_version": 99}).write(path)
    with pytest.raises(FileError):
        ModelSpec.read(path)


def test_model_file_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    NET.write(path)
    assert ModelSpec.read(path) == NET
