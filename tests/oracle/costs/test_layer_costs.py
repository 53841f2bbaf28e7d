"""Costs of layers against closed forms, on hand-made parameters."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.oracle.handmade import (
    CALL_S,
    EXACT,
    S_PER_BYTE,
    S_PER_FLOP,
    WORK_FACTOR,
    close,
    estimate,
    flatten,
    law,
    layer_time,
    linear,
    machine,
    mlp,
    rank_of,
    relu,
    work_model,
)

from calib.fitting.parameters.file import LayerTime, Parameters, WorkModel
from calib.foundation.division import Division
from calib.foundation.errors import MissingParameter
from calib.foundation.layers import Direction, LayerShape
from calib.oracle.cost import NOTHING, Cost, total
from calib.oracle.costs.layers import LayerCosts
from calib.oracle.layout.workload import Workload, workload
from calib.oracle.model.layer import Layer
from calib.oracle.model.spec import ModelSpec
from calib.oracle.sources import LAYER_LAWS, MACHINE

BOTH: tuple[Direction, Direction] = ("forward", "backward")


def cost_of(
    parameters: Parameters, layer: Layer, batch: int, direction: Direction, active: int = 2
) -> Cost:
    """A rank that runs one layer."""
    return LayerCosts(parameters, active).total(rank_of([layer]), "all", batch, direction)


def sources(cost: Cost) -> list[str]:
    return [source for source, _, _ in cost.errors]


def by_hand(batch: int, inputs: int, outputs: int, scale: float = 1.0) -> float:
    """A linear layer: 2 B in out operations; x, y and the weights moved once, 4 B an item."""
    flops = 2 * batch * inputs * outputs
    nbytes = 4 * (batch * (inputs + outputs) + inputs * outputs + outputs)
    return scale * (CALL_S + S_PER_FLOP * flops + S_PER_BYTE * nbytes)


# measured


def test_a_measured_layer_is_its_estimate() -> None:
    layer = linear("fc", "input", 12, 8)
    times = [layer_time(layer, 4, active, 7e-6 * active, 9e-6 * active) for active in (1, 2)]
    forward, backward = (cost_of(machine(layers=times), layer, 4, way) for way in BOTH)
    assert close(forward, 14e-6, 14e-6 * 0.9, 14e-6 * 1.1)
    assert close(backward, 18e-6, 18e-6 * 0.9, 18e-6 * 1.1)
    assert forward.basis == backward.basis == "measured"
    assert forward.notes == backward.notes == ()
    assert sources(forward) == sources(backward) == [MACHINE]


@pytest.mark.parametrize(("batch", "nearest"), [(1, 2), (3, 4), (5, 4), (20, 16)])
def test_a_time_is_moved_from_the_nearest_batch(batch: int, nearest: int) -> None:
    """Times the law's ratio; 3 is nearer to 4 than to 2 by its factor."""
    layer, measured = linear("fc", "input", 12, 8), {2: 1.0, 4: 1.5, 16: 5.0}
    times = [layer_time(layer, n, 2, seconds, 9.0) for n, seconds in measured.items()]
    parameters = machine(layers=times)
    assert cost_of(parameters, layer, nearest, "forward").seconds == measured[nearest]
    cost = cost_of(parameters, layer, batch, "forward")
    ratio = by_hand(batch, 12, 8) / by_hand(nearest, 12, 8)
    assert cost.seconds == pytest.approx(measured[nearest] * ratio, rel=EXACT, abs=0)
    assert cost.basis == "interpolated" and "another batch" in cost.notes[0]
    machine_down, machine_up = cost.errors[0][1:]
    assert machine_down == pytest.approx(0.1 * cost.seconds)
    assert machine_up == pytest.approx(0.1 * cost.seconds)


def test_a_moved_time_neither_falls_with_the_batch_nor_errs_more_than_its_law() -> None:
    """Ratios of the law are within 1.1 for each doubling, and within the law's own factor of 1.2."""
    laws = [w.model_copy(update={"batch_factor": 1.1}) for w in machine().work]
    layer = linear("fc", "input", 12, 8)
    parameters = machine(layers=[layer_time(layer, 16, 2, 5.0, 9.0)], work=laws)
    for batch, factor in ((32, 1.1), (8, 1.1), (4, WORK_FACTOR), (64, WORK_FACTOR)):
        cost = cost_of(parameters, layer, batch, "forward")
        _, down, up = cost.errors[1]
        low, high = cost.seconds / factor, cost.seconds * factor
        ends = (max(low, 5.0), high) if batch > 16 else (low, min(high, 5.0))
        assert (cost.seconds - down, cost.seconds + up) == pytest.approx(ends)


def test_a_time_in_place_is_moved_too() -> None:
    """What an iteration adds is in it."""
    layer = linear("fc", "input", 12, 8)
    time = layer_time(layer, 4, 2, 1.0, 2.0)
    time = time.model_copy(update={"in_place_forward_s": estimate(1.3)})
    parameters = machine(layers=[time], composition=[law("forward", 2, 0.5)])
    ratio = by_hand(5, 12, 8) / by_hand(4, 12, 8)
    assert cost_of(parameters, layer, 5, "forward").seconds == pytest.approx(1.3 * ratio)


def test_a_layer_without_input_gradient_is_another_layer() -> None:
    """Its backward is shorter: the measured time of one is not that of the other."""
    with_gradient, without = (linear("fc", "input", 12, 8, first=first) for first in (False, True))
    parameters = machine(layers=[layer_time(with_gradient, 4, 2, 7e-6, 9e-6)])
    assert cost_of(parameters, with_gradient, 4, "backward").basis == "measured"
    assert cost_of(parameters, without, 4, "backward").basis == "interpolated"


def test_other_active_ranks_are_taken_and_said() -> None:
    """Measured with 1 and 4 ranks at work; asked for 3: those of 4, and no longer "measured"."""
    layer = linear("fc", "input", 12, 8)
    times = [layer_time(layer, 4, active, active * 1e-6, 1e-6) for active in (1, 4)]
    laws = [work_model("linear", "forward", 4)]
    parameters = machine(layers=times, work=laws, ranks_per_node=4)
    cost = cost_of(parameters, layer, 4, "forward", active=3)
    assert (cost.seconds, cost.basis) == (4e-6, "interpolated")
    (note,) = cost.notes
    assert "[1, 4]" in note and "not with 3" in note and "taken from 4" in note
    assert cost_of(parameters, layer, 4, "forward", active=8).seconds == 4e-6, "the most there is"
    assert cost_of(parameters, layer, 4, "forward", active=1).notes == ()
    of_law = cost_of(parameters, layer, 5, "forward", active=3)
    assert of_law.notes[0] == note and "regression" in of_law.notes[1]


# from the law


@pytest.mark.parametrize(("direction", "scale"), [("forward", 1.0), ("backward", 2.0)])
def test_a_layer_from_the_work_model(direction: Direction, scale: float) -> None:
    """12 -> 8 at batch 5: 960 operations and 816 bytes, inside what was measured."""
    cost = cost_of(machine(), linear("fc", "input", 12, 8), 5, direction)
    seconds = scale * (2e-6 + 960e-9 + 816 * 3e-10)
    assert close(cost, seconds, seconds / WORK_FACTOR, seconds * WORK_FACTOR)
    assert cost.basis == "interpolated"
    assert sources(cost) == [f"{LAYER_LAWS}: linear {direction} law"]
    assert len(cost.notes) == 1 and "regression" in cost.notes[0]


def test_beyond_the_work_model_the_interval_widens_by_decade() -> None:
    """1000 -> 50 at batch 10: 1e6 operations are two decades over 1e4: factor ** 3.

    Its 242,200 bytes are 0.38 decades over 1e5: less, so operations decide.
    """
    cost = cost_of(machine(), linear("fc", "input", 1000, 50), 10, "forward")
    seconds = by_hand(10, 1000, 50)
    assert close(cost, seconds, seconds / WORK_FACTOR**3, seconds * WORK_FACTOR**3)
    assert cost.basis == "extrapolated"


def test_bytes_beyond_widen_too() -> None:
    """A ReLU on 12,500 items at batch 10: 1e6 bytes (one decade over), 1.25e5 operations (1.1)."""
    layer = relu("relu", "fc", 12500)
    expected = CALL_S + 125e3 * S_PER_FLOP + 1e6 * S_PER_BYTE
    factor = WORK_FACTOR ** (1 + math.log10(12.5))
    cost = cost_of(machine(), layer, 10, "forward")
    assert close(cost, expected, expected / factor, expected * factor)
    wide = work_model("any", "forward", 2).model_copy(update={"max_flops": 1e9})
    cost = cost_of(machine(work=[wide]), layer, 10, "forward")
    assert close(cost, expected, expected / WORK_FACTOR**2, expected * WORK_FACTOR**2)


def test_a_law_says_how_its_interval_grows() -> None:
    """Two decades over in operations: factor * 3^2; below the smallest it grows as well."""
    changes = {"growth_per_decade": 3.0, "min_flops": 9600.0}
    wide = machine(work=[work_model("linear", "forward", 2).model_copy(update=changes)])
    cost = cost_of(wide, linear("fc", "input", 1000, 50), 10, "forward")
    seconds = by_hand(10, 1000, 50)
    assert close(cost, seconds, seconds / (9 * WORK_FACTOR), seconds * 9 * WORK_FACTOR)
    cost = cost_of(wide, linear("fc", "input", 12, 8), 5, "forward")
    seconds = by_hand(5, 12, 8)
    assert close(cost, seconds, seconds / (3 * WORK_FACTOR), seconds * 3 * WORK_FACTOR)
    assert cost.basis == "extrapolated"


def test_a_first_layer_takes_the_law_of_the_weights_gradient() -> None:
    laws = [work_model("linear", d, 2) for d in BOTH]
    first, inner = (linear("fc", "input", 12, 8, first=first) for first in (True, False))
    cost = cost_of(machine(work=laws), first, 5, "backward")
    whole = by_hand(5, 12, 8, 2.0)
    assert cost.seconds == pytest.approx(whole, rel=EXACT, abs=0), "without one, the whole backward"
    assert sources(cost) == [f"{LAYER_LAWS}: linear backward law"]
    update = {"direction": "backward_weight", "call_s": 7e-6}
    parameters = machine(work=[*laws, laws[0].model_copy(update=update)])
    cost = cost_of(parameters, first, 5, "backward")
    expected = by_hand(5, 12, 8) - CALL_S + 7e-6
    assert cost.seconds == pytest.approx(expected, rel=EXACT, abs=0)
    assert sources(cost) == [f"{LAYER_LAWS}: linear backward_weight law"]
    cost = cost_of(parameters, inner, 5, "backward")
    assert cost.seconds == pytest.approx(whole, rel=EXACT, abs=0)


def test_large_results_without_a_price_may_take_long() -> None:
    """An 80 MB ReLU: the system gives it fresh pages, and no layer that had any was measured."""
    small = cost_of(machine(), relu("relu", "fc", 8 * 2**20), 1, "forward")
    assert not any("fresh pages" in note for note in small.notes), "32 MiB is not over the limit"
    cost = cost_of(machine(), relu("relu", "fc", 10**7), 2, "forward")
    assert any("fresh pages" in note for note in cost.notes)
    assert cost.high / cost.seconds == pytest.approx(10 * cost.seconds / cost.low)
    assert cost.basis == "extrapolated"
    priced = work_model("any", "forward", 2).model_copy(update={"s_per_fresh_byte": 1e-9})
    found = cost_of(machine(work=[priced]), relu("relu", "fc", 10**7), 2, "forward")
    assert found.seconds == pytest.approx(cost.seconds + 8e7 * 1e-9)
    assert not any("fresh pages" in note for note in found.notes)


def test_free_layers_and_gradients_that_nobody_needs_cost_nothing() -> None:
    parameters = machine(work=[])
    first_relu = relu("relu", "input", 5, needs_input_grad=False)
    assert cost_of(parameters, flatten(), 4, "forward") == NOTHING
    assert cost_of(parameters, first_relu, 4, "backward") == NOTHING
    costs = LayerCosts(machine(), 2)
    forward = costs.each(rank_of([flatten(), relu("relu", "input", 5)]), 4, "forward")
    assert forward[0] is NOTHING and forward[1].seconds > 0


# what is missing


@pytest.mark.parametrize("kind", ["linear", "conv"])
def test_no_time_of_a_weighted_kind_is_an_error_that_names_the_case(kind: Any) -> None:
    """The law of "any" kind must not stand in for a convolution or a linear layer."""
    only_any = [work_model("any", d, 2) for d in BOTH]
    shape = LayerShape(
        kind=kind, input_shapes=((3, 3),), output_shape=(2, 3), parameter_shapes=((2, 3),)
    )
    layer = Layer(name="body.7", shape=shape, inputs=("x",), needs_input_grad=True)
    with pytest.raises(MissingParameter) as error:
        cost_of(machine(work=only_any), layer, 4, "backward")
    message = str(error.value)
    assert "\n" not in message
    assert all(word in message for word in ("backward", "3x3 -> 2x3", kind))


def test_any_kind_stands_in_for_cheap_layers_only_when_measured() -> None:
    layer = relu("relu", "fc", 5)
    cost = cost_of(machine(), layer, 1, "forward")
    assert cost.seconds > 0 and sources(cost) == [f"{LAYER_LAWS}: any forward law for relu"]
    assert cost.notes[-1].endswith("over several kinds of layers: relu")
    only_linear = machine(work=[work_model("linear", "forward", 2)])
    with pytest.raises(MissingParameter, match=r"no forward time of relu layers"):
        cost_of(only_linear, layer, 1, "forward")


def test_what_is_missing_is_missing_again() -> None:
    """Nothing of a sum that could not be made is kept."""
    costs = LayerCosts(machine(work=[work_model("linear", d, 2) for d in BOTH]), 2)
    work = rank_of([linear("fc", "input", 3, 4), relu("relu", "fc", 4)])
    for _ in range(2):
        with pytest.raises(MissingParameter, match="relu"):
            costs.total(work, "all", 2, "forward")
        with pytest.raises(MissingParameter, match="relu"):
            costs.each(work, 2, "forward")


def test_an_import_alone_cannot_predict() -> None:
    """A file of nccl-tests logs has collectives and neither layers nor laws of any."""
    with pytest.raises(MissingParameter) as error:
        cost_of(machine(work=[]), linear("fc", "input", 3, 4), 2, "forward")
    message = str(error.value)
    assert "imported" in message and "\n" not in message


# sums

Shape = tuple[str, int, int]  # kind, width, number of equal layers
shapes = st.tuples(st.sampled_from(["linear", "relu"]), st.integers(1, 40), st.integers(1, 4))


def layers_of(kinds: list[Shape]) -> list[Layer]:
    """Layers of which several are alike, in an order that is not sorted."""
    layers: list[Layer] = []
    for number, (kind, width, count) in enumerate(kinds):
        for copy in range(count):
            name = f"{kind}{number}.{copy}"
            linear_layer = linear(name, "x", width, 2 * width, first=number == 0)
            layers.append(linear_layer if kind == "linear" else relu(name, "x", width))
    random.Random(0).shuffle(layers)
    return [flatten(), *layers]


def same(one: Cost, other: Cost) -> bool:
    """Equal but for rounding."""
    by_source = [{s: (down, up) for s, down, up in cost.errors} for cost in (one, other)]
    assert by_source[0].keys() == by_source[1].keys()
    for source in by_source[0]:
        assert by_source[0][source] == pytest.approx(by_source[1][source], rel=1e-9, abs=1e-30)
    assert one.seconds == pytest.approx(other.seconds, rel=1e-12, abs=0)
    return (one.basis, set(one.notes)) == (other.basis, set(other.notes))


@settings(max_examples=40)
@given(kinds=st.lists(shapes, min_size=1, max_size=5), batch=st.integers(1, 500), data=st.data())
def test_the_sum_is_that_of_each_layer(kinds: list[Shape], batch: int, data: st.DataObject) -> None:
    """By `each` and Cost arithmetic, layer for layer; of the split ones and of the others, too."""
    layers = layers_of(kinds)
    names = [layer.name for layer in layers if not layer.shape.is_free]
    split = data.draw(st.sets(st.sampled_from(names)))
    times = [layer_time(layers[1], batch, 2, 3e-6, 4e-6)]
    costs = LayerCosts(machine(layers=times), 2)
    work = rank_of(layers, split)
    for direction in BOTH:
        each = costs.each(work, batch, direction)
        assert len(each) == len(layers)
        chosen = {
            "all": list(each),
            "split": [c for c, x in zip(each, layers, strict=True) if x.name in split],
            "whole": [c for c, x in zip(each, layers, strict=True) if x.name not in split],
        }
        assert same(costs.total(work, "all", batch, direction), total(chosen["all"]))
        assert same(costs.total(work, "split", batch, direction), total(chosen["split"]))
        assert same(costs.total(work, "whole", batch, direction), total(chosen["whole"]))
        for cost in each:
            assert 0 <= cost.low <= cost.seconds <= cost.high
        alone = cost_of(machine(layers=times), layers[1], batch, direction)
        assert each[1] == alone, "the same whichever layers are beside it"


@settings(max_examples=30)
@given(kinds=st.lists(shapes, min_size=1, max_size=4), batch=st.integers(1, 50))
def test_units_of_laws_and_times(kinds: list[Shape], batch: int) -> None:
    """Twice every coefficient and every measured time: twice the seconds and both errors."""

    def twice(law: WorkModel) -> WorkModel:
        names = ("call_s", "s_per_flop", "s_per_byte")
        return law.model_copy(update={name: 2 * getattr(law, name) for name in names})

    layers = layers_of(kinds)
    work = rank_of(layers)
    laws = machine().work
    once = machine(layers=[layer_time(layers[-1], batch, 2, 3e-6, 4e-6)])
    double = machine(
        layers=[layer_time(layers[-1], batch, 2, 6e-6, 8e-6)], work=[twice(law) for law in laws]
    )
    for direction in BOTH:
        one = LayerCosts(once, 2).total(work, "all", batch, direction)
        two = LayerCosts(double, 2).total(work, "all", batch, direction)
        assert same(two, one.times(2.0))


def test_the_order_of_the_file_does_not_matter() -> None:
    layers = layers_of([("linear", 12, 2), ("relu", 7, 1), ("linear", 3, 1)])
    times = [layer_time(layer, 4, n % 2 + 1, 1e-6 * n, 2e-6) for n, layer in enumerate(layers)]
    first = machine(layers=times)
    second = machine(layers=times[::-1], work=first.work[::-1])
    for direction in BOTH:
        costs = [LayerCosts(p, 2).each(rank_of(layers), 4, direction) for p in (first, second)]
        assert costs[0] == costs[1]
        assert {cost.basis for cost in costs[0]} == {"exact", "measured", "interpolated"}


def test_errors_of_one_law_add_up_and_of_two_in_quadrature() -> None:
    """Two linear layers a, b and a ReLU c, each within a factor f: by hand."""
    work = rank_of([linear("a", "x", 12, 8), linear("b", "x", 9, 3), relu("c", "x", 8)])
    costs = LayerCosts(machine(), 2)
    a, b = by_hand(5, 12, 8), by_hand(5, 9, 3)
    c = CALL_S + 40 * S_PER_FLOP + 320 * S_PER_BYTE
    up, down = WORK_FACTOR - 1, 1 - 1 / WORK_FACTOR
    found = costs.total(work, "all", 5, "forward")
    assert close(
        found,
        a + b + c,
        a + b + c - math.hypot((a + b) * down, c * down),
        a + b + c + math.hypot((a + b) * up, c * up),
    )


def test_what_layers_have_in_common_adds_up_and_their_own_errors_in_quadrature() -> None:
    """Three layers a, a, b of a law of which a quarter of the squared log error is shared."""
    laws = [w.model_copy(update={"shared": 0.25}) for w in machine().work]
    work = rank_of([linear("a", "x", 12, 8), linear("same", "x", 12, 8), linear("b", "x", 9, 3)])
    found = LayerCosts(machine(work=laws), 2).total(work, "all", 5, "forward")
    a, b = 2 * by_hand(5, 12, 8), by_hand(5, 9, 3)
    common, own = WORK_FACTOR**0.5 - 1, WORK_FACTOR ** (0.75**0.5) - 1
    assert found.high == pytest.approx(a + b + math.hypot((a + b) * common, a * own, b * own))
    laws = [source.split(": ")[:2] for source in sources(found)]
    assert laws == [[LAYER_LAWS, "linear forward law"]] * 3


def test_measured_times_err_together_and_apart_from_laws() -> None:
    """Two measured layers +- 10% and one of a law within a factor."""
    layers = [linear("a", "x", 12, 8), relu("b", "x", 5), linear("c", "x", 9, 3)]
    times = [layer_time(layers[0], 5, 2, 7e-6, 1.0), layer_time(layers[1], 5, 2, 2e-6, 1.0)]
    found = LayerCosts(machine(layers=times), 2).total(rank_of(layers), "all", 5, "forward")
    c = by_hand(5, 9, 3)
    high = 9e-6 + c + math.hypot(0.9e-6, c * (WORK_FACTOR - 1))
    assert found.high == pytest.approx(high, rel=1e-9, abs=0)
    assert found.basis == "interpolated"


def test_of_a_model_each_shape_is_counted() -> None:
    """An MLP of equal layers: 3 times 6 -> 6 with ReLU between, as the rank's workload has them."""
    model: ModelSpec = mlp([6, 6, 6, 6])
    work: Workload = workload(model, Division("serial", 1, 4))
    found = LayerCosts(machine(), 2).total(work, "all", 4, "forward")
    relus = 2 * (CALL_S + 24 * S_PER_FLOP + 192 * S_PER_BYTE)
    # the loss reads 6 items a sample and has one of output
    loss = CALL_S + 24 * S_PER_FLOP + 4 * (4 * 7) * S_PER_BYTE
    expected = 3 * by_hand(4, 6, 6) + relus + loss
    assert found.seconds == pytest.approx(expected, rel=1e-9, abs=0)


# what is kept


def test_a_sum_is_made_once() -> None:
    costs = LayerCosts(machine(), 2)
    work = rank_of(layers_of([("linear", 3, 2), ("relu", 3, 1)]))
    first = costs.total(work, "all", 7, "forward")
    assert costs.total(work, "all", 7, "forward") is first
    assert costs.total(work, "all", 8, "forward") != first


def test_a_workload_of_the_same_layers_is_not_taken_for_another() -> None:
    """Workloads are known by identity and held: a new one at the address of an old one is new."""
    costs = LayerCosts(machine(), 2)
    for width in range(1, 40):
        cost = costs.total(rank_of([linear("fc", "x", width, 2)]), "all", 3, "forward")
        assert cost.seconds == pytest.approx(by_hand(3, width, 2), rel=EXACT, abs=0)


def test_one_shape_with_and_without_input_gradient() -> None:
    """The first layer and a later one may be the very same shape."""
    first = relu("first", "input", 5, needs_input_grad=False)
    second = Layer(name="second", shape=first.shape, inputs=("first",), needs_input_grad=True)
    for layers in ([first, second], [second, first]):
        each = LayerCosts(machine(), 2).each(rank_of(layers), 2, "backward")
        assert [cost is NOTHING for cost in each] == [layer is first for layer in layers]


def test_in_place_is_by_the_law_of_the_ranks_at_work() -> None:
    """Layers of 4 ranks stand for 3: so does the law."""
    layer = linear("fc", "x", 12, 8)
    parameters = machine(
        layers=[layer_time(layer, 4, 4, 1e-6, 1e-6)],
        composition=[law("forward", 2, s_per_layer=9.0), law("forward", 4, s_per_layer=1e-6)],
        ranks_per_node=4,
    )
    extra, layers, nbytes = beside(LayerCosts(parameters, 3), rank_of([layer] * 5), 4)
    assert extra.seconds == pytest.approx(5e-6, rel=EXACT, abs=0)
    assert (layers, nbytes) == (5, 5 * 4 * 4 * 8)


def beside(costs: LayerCosts, work: Workload, batch: int) -> tuple[Cost, int, float]:
    return costs.beside(work, work.counts["all"], batch, "forward")


def in_place(layer: Layer, forward: float | None, backward: float | None) -> LayerTime:
    """1 and 2 us alone, at batch 4."""
    times = {"in_place_forward_s": forward, "in_place_backward_s": backward}
    update = {name: estimate(t, 0.2) for name, t in times.items() if t is not None}
    return layer_time(layer, 4, 2, 1e-6, 2e-6).model_copy(update=update)


def test_a_time_in_place_is_taken_before_that_alone() -> None:
    """With its own interval; each direction for itself."""
    layer = linear("fc", "input", 12, 8)
    parameters = machine(layers=[in_place(layer, 7e-6, None)])
    forward, backward = (cost_of(parameters, layer, 4, way) for way in BOTH)
    assert close(forward, 7e-6, 7e-6 * 0.8, 7e-6 * 1.2) and forward.basis == "measured"
    assert close(backward, 2e-6, 2e-6 * 0.9, 2e-6 * 1.1)


def test_what_is_beside_is_of_layers_that_were_not_in_place() -> None:
    """Of 2 + 3 layers the 3: their bytes, and the law's factor on their own time and share alone."""
    known, alone = linear("known", "x", 12, 8), relu("alone", "x", 10)
    rule = law("forward", 2, 1e-6, 1e-9, error_factor=1.5)
    of = machine(
        layers=[in_place(known, 7e-6, 9e-6), in_place(alone, None, 9e-6)], composition=[rule]
    )
    work = rank_of([known, alone, known, alone, alone])
    extra, layers, nbytes = beside(LayerCosts(of, 2), work, 4)
    assert (layers, nbytes) == (3, 3 * 4 * 4 * 10)
    assert extra.seconds == pytest.approx(3e-6 + 480e-9, rel=EXACT, abs=0)
    assert extra.high - extra.seconds == pytest.approx(0.5 * (3e-6 + extra.seconds), rel=1e-9)
    whole = LayerCosts(of, 2).total(work, "all", 4, "forward")
    assert whole.seconds == pytest.approx(2 * 7e-6 + 3 * 1e-6, rel=EXACT, abs=0)
    assert beside(LayerCosts(of, 2), rank_of([known]), 4) == (NOTHING, 0, 0.0)
    assert LayerCosts(of, 2).beside(work, work.counts["all"], 4, "backward") == (NOTHING, 0, 0.0)
    # a time in place is moved to another batch with what is beside it
    assert beside(LayerCosts(of, 2), work, 5)[1] == 3


def test_an_estimate_that_is_not_even() -> None:
    """Lower and upper ends are kept apart."""
    layer = linear("fc", "x", 12, 8)
    time = layer_time(layer, 4, 2, 1.0, 1.0)
    odd = estimate(5e-6).model_copy(update={"low": 1e-6, "high": 30e-6})
    time = time.model_copy(update={"forward_s": odd})
    assert close(cost_of(machine(layers=[time]), layer, 4, "forward"), 5e-6, 1e-6, 30e-6)
