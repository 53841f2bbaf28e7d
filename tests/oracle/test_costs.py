"""Every look-up against its closed form, on parameters whose numbers are chosen (handmade.py)."""

from __future__ import annotations

import heapq
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fitting.hockney import steps_and_volume
from fitting.parameters_collective import CollectivePoint
from fitting.records import Estimate
from foundation.errors import MissingParameter
from foundation.layers import LayerShape
from oracle.costs import Costs, add, widened
from oracle.model import Layer
from oracle.projection import PhaseTime
from tests.oracle.handmade import (
    ALPHA_S,
    BETA_S_PER_BYTE,
    CALL_S,
    INTERPOLATION_FACTOR,
    LINE_FACTOR,
    LOOP_BYTE_S,
    LOOP_CALL_S,
    LOOP_FACTOR,
    LOOP_TENSOR_S,
    S_PER_BYTE,
    S_PER_FLOP,
    WORK_FACTOR,
    allreduce_fit,
    estimate,
    law,
    layer_time,
    linear,
    machine,
    mlp,
    relu,
    tensor_loop,
    work_model,
)

EXACT = 1e-12


def close(time: PhaseTime, seconds: float, low: float, high: float) -> bool:
    """Whether a time is what was computed by hand."""
    found = (time.seconds, time.low, time.high)
    return found == pytest.approx((seconds, low, high), rel=EXACT, abs=0)


# layers


def test_a_measured_layer_is_its_estimate() -> None:
    layer = linear("fc", "input", 12, 8)
    times = [layer_time(layer, 4, active, 7e-6 * active, 9e-6 * active) for active in (1, 2)]
    costs = Costs(machine(layers=times), 2)
    forward, backward = (costs.layer(layer, 4, way) for way in ("forward", "backward"))
    assert close(forward, 14e-6, 14e-6 * 0.9, 14e-6 * 1.1)
    assert close(backward, 18e-6, 18e-6 * 0.9, 18e-6 * 1.1)
    assert forward.basis == backward.basis == "measured"
    assert costs.notes == []


def test_a_layer_without_input_gradient_is_another_layer() -> None:
    """Its backward is shorter: the measured time of one is not that of the other."""
    with_gradient, without = (linear("fc", "input", 12, 8, first=first) for first in (False, True))
    costs = Costs(machine(layers=[layer_time(with_gradient, 4, 2, 7e-6, 9e-6)]), 2)
    assert costs.layer(with_gradient, 4, "backward").basis == "measured"
    assert costs.layer(without, 4, "backward").basis == "interpolated"


def by_hand(batch: int, inputs: int, outputs: int, scale: float) -> float:
    """A linear layer: 2 B in out operations; x, y and the weights moved once, 4 B an item."""
    flops = 2 * batch * inputs * outputs
    nbytes = 4 * (batch * (inputs + outputs) + inputs * outputs + outputs)
    return scale * (CALL_S + S_PER_FLOP * flops + S_PER_BYTE * nbytes)


@pytest.mark.parametrize(("direction", "scale"), [("forward", 1.0), ("backward", 2.0)])
def test_a_layer_from_the_work_model(direction: str, scale: float) -> None:
    """12 -> 8 at batch 5: 960 operations and 816 bytes, inside what was measured."""
    costs = Costs(machine(), 2)
    time = costs.layer(linear("fc", "input", 12, 8), 5, direction)
    seconds = by_hand(5, 12, 8, scale)
    assert seconds == pytest.approx(scale * (2e-6 + 960e-9 + 816 * 3e-10), rel=EXACT, abs=0)
    assert close(time, seconds, seconds / WORK_FACTOR, seconds * WORK_FACTOR)
    assert time.basis == "interpolated"
    assert len(costs.notes) == 1 and "regression" in costs.notes[0]


def test_beyond_the_work_model_the_interval_widens_by_decade() -> None:
    """1000 -> 50 at batch 10: 1e6 operations are two decades over 1e4: factor ** 3.

    Its 242,200 bytes are 0.38 decades over 1e5: less, so operations decide.
    """
    time = Costs(machine(), 2).layer(linear("fc", "input", 1000, 50), 10, "forward")
    seconds = by_hand(10, 1000, 50, 1.0)
    assert close(time, seconds, seconds / WORK_FACTOR**3, seconds * WORK_FACTOR**3)
    assert time.basis == "extrapolated"


def test_bytes_beyond_widen_too() -> None:
    """A ReLU on 12,500 items at batch 10: 1e6 bytes (one decade over), 1.25e5 operations (1.1)."""
    time = Costs(machine(), 2).layer(relu("relu", "fc", 12500), 10, "forward")
    expected = CALL_S + 125e3 * S_PER_FLOP + 1e6 * S_PER_BYTE
    factor = WORK_FACTOR ** (1 + math.log10(12.5))
    assert close(time, expected, expected / factor, expected * factor)
    wide = work_model("any", "forward", 2).model_copy(update={"max_flops": 1e9})
    time = Costs(machine(work=[wide]), 2).layer(relu("relu", "fc", 12500), 10, "forward")
    assert close(time, expected, expected / WORK_FACTOR**2, expected * WORK_FACTOR**2)


def test_a_law_says_how_its_interval_grows() -> None:
    """Two decades over in operations: factor * 3^2; below the smallest it grows as well."""
    law = work_model("linear", "forward", 2)
    wide = law.model_copy(update={"growth_per_decade": 3.0, "min_flops": 9600.0})
    time = Costs(machine(work=[wide]), 2).layer(linear("fc", "input", 1000, 50), 10, "forward")
    seconds = by_hand(10, 1000, 50, 1.0)
    assert close(time, seconds, seconds / (9 * WORK_FACTOR), seconds * 9 * WORK_FACTOR)
    time = Costs(machine(work=[wide]), 2).layer(linear("fc", "input", 12, 8), 5, "forward")
    seconds = by_hand(5, 12, 8, 1.0)
    assert close(time, seconds, seconds / (3 * WORK_FACTOR), seconds * 3 * WORK_FACTOR)
    assert time.basis == "extrapolated"


def test_a_first_layer_takes_the_law_of_the_weights_gradient() -> None:
    laws = [work_model("linear", d, 2) for d in ("forward", "backward")]
    first = linear("fc", "input", 12, 8, first=True)
    seconds = by_hand(5, 12, 8, 2.0)
    time = Costs(machine(work=laws), 2).layer(first, 5, "backward")
    assert time.seconds == pytest.approx(seconds, rel=EXACT, abs=0), (
        "without one, the whole backward"
    )
    update = {"direction": "backward_weight", "call_s": 7e-6}
    weight = laws[0].model_copy(update=update)
    costs = Costs(machine(work=[*laws, weight]), 2)
    expected = by_hand(5, 12, 8, 1.0) - CALL_S + 7e-6
    assert costs.layer(first, 5, "backward").seconds == pytest.approx(expected, rel=EXACT, abs=0)
    whole = costs.layer(linear("fc", "input", 12, 8), 5, "backward")
    assert whole.seconds == pytest.approx(seconds, rel=EXACT, abs=0)


def test_large_results_without_a_price_may_take_long() -> None:
    """An 80 MB ReLU: the system gives it fresh pages, and no layer that had any was measured."""
    costs = Costs(machine(), 2)
    costs.layer(relu("relu", "fc", 8 * 2**20), 1, "forward")
    assert not any("fresh pages" in note for note in costs.notes), "32 MiB is not over the limit"
    time = costs.layer(relu("relu", "fc", 10**7), 2, "forward")
    assert any("fresh pages" in note for note in costs.notes)
    assert time.high / time.seconds == pytest.approx(10 * time.seconds / time.low)
    assert time.basis == "extrapolated"
    priced = work_model("any", "forward", 2).model_copy(update={"s_per_fresh_byte": 1e-9})
    costs = Costs(machine(work=[priced]), 2)
    found = costs.layer(relu("relu", "fc", 10**7), 2, "forward")
    assert found.seconds == pytest.approx(time.seconds + 8e7 * 1e-9)
    assert not any("fresh pages" in note for note in costs.notes)


@pytest.mark.parametrize(
    ("value", "largest", "expected"),
    [
        (50.0, 100.0, 1.5),
        (100.0, 100.0, 1.5),
        (1000.0, 100.0, 1.5**2),
        (1e5, 100.0, 1.5**4),
        (100.0 * math.sqrt(10), 100.0, 1.5**1.5),
        (5.0, 0.0, 1.5),
    ],
)
def test_widened(value: float, largest: float, expected: float) -> None:
    """Once more the factor for every decade beyond."""
    assert widened(1.5, value, largest) == pytest.approx(expected, rel=EXACT, abs=0)


@pytest.mark.parametrize(("decades", "expected"), [(0, 3.0), (1, 6.0), (2, 12.0)])
def test_a_decade_widens_at_most_twice(decades: int, expected: float) -> None:
    assert widened(3.0, 7.0 * 10**decades, 7.0) == pytest.approx(expected, rel=EXACT, abs=0)


@pytest.mark.parametrize("kind", ["linear", "conv"])
def test_no_time_of_a_weighted_kind_is_an_error_that_names_the_case(kind: str) -> None:
    """The model of "any" kind must not stand in for a convolution or a linear layer."""
    only_any = [work_model("any", d, 2) for d in ("forward", "backward")]
    costs = Costs(machine(work=only_any), 2)
    shape = LayerShape(
        kind=kind,
        input_shapes=((3, 3),),
        output_shape=(2, 3),
        parameter_shapes=((2, 3),),
    )
    layer = Layer(name="body.7", shape=shape, inputs=("x",), needs_input_grad=True)
    with pytest.raises(MissingParameter) as error:
        costs.layer(layer, 4, "backward")
    message = str(error.value)
    assert "\n" not in message
    assert all(word in message for word in ("backward", "body.7", kind, "calib measure --models"))


def test_any_kind_stands_in_for_cheap_layers_only_when_measured() -> None:
    assert Costs(machine(), 2).layer(relu("relu", "fc", 5), 1, "forward").seconds > 0
    with pytest.raises(MissingParameter, match="calib measure"):
        Costs(machine(work=[]), 2).layer(relu("relu", "fc", 5), 1, "forward")


def test_free_layers_and_gradients_that_nobody_needs_cost_nothing() -> None:
    costs = Costs(machine(work=[]), 2)
    shape = LayerShape(kind="flatten", input_shapes=((2, 3),), output_shape=(6,))
    flatten = Layer(name="flatten", shape=shape, inputs=("input",), needs_input_grad=True)
    for time in (
        costs.layer(flatten, 4, "forward"),
        costs.layer(relu("relu", "input", 5, needs_input_grad=False), 4, "backward"),
    ):
        assert (time.seconds, time.low, time.high, time.basis) == (0, 0, 0, "exact")


def test_other_active_ranks_are_taken_and_said() -> None:
    """Measured with 1 and 4 ranks at work; asked for 3: those of 4, and no longer "measured"."""
    layer = linear("fc", "input", 12, 8)
    times = [layer_time(layer, 4, active, active * 1e-6, 1e-6) for active in (1, 4)]
    costs = Costs(machine(layers=times, ranks_per_node=4), 3)
    time = costs.layer(layer, 4, "forward")
    assert (time.seconds, time.basis) == (4e-6, "interpolated")
    assert len(costs.notes) == 1 and "[1, 4]" in costs.notes[0] and "taken from 4" in costs.notes[0]


# in place, loops


def test_in_place_law() -> None:
    """(sum + 5 layers + 2000 bytes) and the law's factor, squared a decade beyond its bytes."""
    rule = law("forward", 2, s_per_layer=1e-6, s_per_byte=1e-9, error_factor=1.3, max_bytes=2000)
    costs = Costs(machine(composition=[law("backward", 2, s_per_layer=9.0), rule]), 2)
    parts = PhaseTime(seconds=10e-6, low=8e-6, high=13e-6, basis="measured")
    extra = 5 * 1e-6 + 2000 * 1e-9
    inside = costs.in_place("forward", parts, 5, 2000)
    assert close(inside, 10e-6 + extra, (8e-6 + extra) / 1.3, (13e-6 + extra) * 1.3)
    extra = 5 * 1e-6 + 20000 * 1e-9
    beyond = costs.in_place("forward", parts, 5, 20000)
    assert close(beyond, 10e-6 + extra, (8e-6 + extra) / 1.69, (13e-6 + extra) * 1.69)
    assert inside.basis == "measured" and costs.notes == []


def test_without_a_law_the_sum_stands_and_is_said() -> None:
    parts = PhaseTime(seconds=10e-6, low=8e-6, high=13e-6, basis="measured")
    costs = Costs(machine(composition=[law("forward", 1, s_per_layer=1.0)]), 2)
    assert costs.in_place("forward", parts, 5, 2000) == parts
    assert len(costs.notes) == 1 and "isolated parts" in costs.notes[0]


def test_a_measured_tensor_list() -> None:
    loops = [tensor_loop("update", active, {"abc": estimate(active * 1e-3)}) for active in (1, 2)]
    time = Costs(machine(tensor_loops=loops), 2).loop("update", "abc", 10, 400)
    assert close(time, 2e-3, 2e-3 * 0.9, 2e-3 * 1.1)
    assert time.basis == "measured"


def test_a_tensor_list_by_number_and_bytes() -> None:
    costs = Costs(machine(), 2)
    inside = costs.loop("pack", "unknown", 10, 10_000)
    seconds = LOOP_CALL_S + 10 * LOOP_TENSOR_S + 10_000 * LOOP_BYTE_S
    assert close(inside, seconds, seconds / LOOP_FACTOR, seconds * LOOP_FACTOR)
    assert inside.basis == "interpolated"
    beyond = costs.loop("pack", "unknown", 10, 1_000_000)
    seconds = LOOP_CALL_S + 10 * LOOP_TENSOR_S + 1_000_000 * LOOP_BYTE_S
    assert close(beyond, seconds, seconds / LOOP_FACTOR**3, seconds * LOOP_FACTOR**3)
    assert beyond.basis == "extrapolated"


def test_a_missing_tensor_loop() -> None:
    with pytest.raises(
        MissingParameter, match=r"no unpack time with 2 active rank.*`calib measure`"
    ):
        Costs(machine(tensor_loops=[tensor_loop("pack", 2)]), 2).loop("unpack", "abc", 1, 4)


# allreduce


def test_allreduce_of_a_measured_size() -> None:
    time = Costs(machine(), 2).allreduce(2, 65536)
    assert close(time, 40e-6, 36e-6, 44e-6)
    assert time.basis == "measured"


def test_allreduce_between_sizes_is_a_line_in_log_log() -> None:
    """8192 = 1024 * 8 is half way (in logs) to 65536: the geometric mean of 5 and 40 us."""
    time = Costs(machine(), 2).allreduce(2, 8192)
    middle = math.sqrt(5e-6 * 40e-6)
    low, high = middle * 0.9 / INTERPOLATION_FACTOR, middle * 1.1 * INTERPOLATION_FACTOR
    assert close(time, middle, low, high)
    assert time.basis == "interpolated"


@pytest.mark.parametrize("nbytes", [4, 10 * 1048576])
def test_allreduce_outside_the_sizes_is_the_line(nbytes: int) -> None:
    """p = 2: 2 alpha + m beta; the interval squares a decade above the largest size."""
    costs = Costs(machine(), 2)
    time = costs.allreduce(2, nbytes)
    seconds = 2 * ALPHA_S + nbytes * BETA_S_PER_BYTE
    factor = LINE_FACTOR if nbytes == 4 else LINE_FACTOR**2
    assert close(time, seconds, seconds / factor, seconds * factor)
    assert time.basis == "extrapolated"
    assert len(costs.notes) == 1 and str(nbytes) in costs.notes[0]


def test_allreduce_of_one_rank_is_nothing() -> None:
    time = Costs(machine(collectives=[]), 1).allreduce(1, 1000)
    assert (time.seconds, time.high, time.basis) == (0, 0, "exact")


def simulated_ring(p: int, nbytes: float, alpha: float, beta: float) -> float:
    """Seconds of a ring allreduce, message by message, with the sums that it carries.

    Rank r starts step s when it holds what it must send (received at step s - 1) and its last
    message has left; a message of m/p bytes takes alpha + m beta / p and then the next rank has it.
    """
    # held[r][c]: contributions of chunk c on rank r
    held = [[{r} for _ in range(p)] for r in range(p)]
    steps = 2 * (p - 1)
    message = alpha + nbytes / p * beta
    events: list[tuple[float, int, int]] = [(0.0, 0, r) for r in range(p)]  # time, step, sender
    sent_until = [0.0] * p
    end = 0.0
    while events:
        now, step, sender = heapq.heappop(events)
        start = max(now, sent_until[sender])
        sent_until[sender] = arrival = start + message
        receiver, chunk = (sender + 1) % p, (sender - step) % p
        if step < p - 1:  # reduce-scatter: add; then allgather: replace
            held[receiver][chunk] = held[receiver][chunk] | held[sender][chunk]
        else:
            held[receiver][chunk] = set(held[sender][chunk])
        end = max(end, arrival)
        if step + 1 < steps:
            heapq.heappush(events, (arrival, step + 1, receiver))
    assert all(chunk == set(range(p)) for rank in held for chunk in rank), "not an allreduce"
    return end


@given(
    p=st.integers(3, 24),
    nbytes=st.integers(1, 10**9),
    alpha=st.floats(1e-8, 1e-2),
    beta=st.floats(1e-12, 1e-6),
)
def test_allreduce_on_other_p_is_a_ring(p: int, nbytes: int, alpha: float, beta: float) -> None:
    """2 (p-1) (alpha + m beta / p) (formulas.md) against a simulation of every message."""
    fit = allreduce_fit(alpha_s=alpha, beta_s_per_byte=beta)
    time = Costs(machine(collectives=[fit], ranks_per_node=64), 2).allreduce(p, nbytes)
    assert time.seconds == pytest.approx(simulated_ring(p, nbytes, alpha, beta), rel=1e-9, abs=0)
    assert time.basis == "extrapolated"
    beyond = p / 2 * max(1.0, nbytes / fit.range_nbytes[1])
    factor = LINE_FACTOR * min(LINE_FACTOR, 2.0) ** math.log10(beyond)
    assert (time.low, time.high) == pytest.approx(
        (time.seconds / factor, time.seconds * factor), rel=1e-9, abs=0
    )


@given(p=st.integers(2, 500), nbytes=st.integers(1, 10**9))
def test_line_and_ring_agree(p: int, nbytes: int) -> None:
    """The line of a measured p (steps and volume) is the ring of that p."""
    steps, volume = steps_and_volume("allreduce", p)
    line = steps * ALPHA_S + volume * nbytes * BETA_S_PER_BYTE
    costs = Costs(machine(ranks_per_node=1000), 2)
    if p > 2:
        assert costs.allreduce(p, nbytes).seconds == pytest.approx(line, rel=1e-12, abs=0)
    else:
        outside = nbytes + 1048577
        line = steps * ALPHA_S + volume * outside * BETA_S_PER_BYTE
        assert costs.allreduce(p, outside).seconds == pytest.approx(line, rel=1e-12, abs=0)


def test_across_nodes_without_a_measured_link_is_widened_and_noted() -> None:
    """formulas.md: alpha and beta belong to the slowest level; that of the node is a guess."""
    inside = Costs(machine(ranks_per_node=8), 2)
    across = Costs(machine(ranks_per_node=2), 2)
    near, far = inside.allreduce(8, 4000), across.allreduce(8, 4000)
    assert far.seconds == near.seconds == pytest.approx(14 * (ALPHA_S + 500 * BETA_S_PER_BYTE))
    assert far.high == pytest.approx(10 * near.high) and far.low == pytest.approx(near.low / 10)
    assert any("no link between nodes was measured" in note for note in across.notes)
    assert not any("between nodes" in note for note in inside.notes)


def test_across_nodes_the_measured_link_is_taken() -> None:
    """A fit at the level "system" wins over one of a node, whatever its p."""
    fits = [allreduce_fit(ranks=8), allreduce_fit(ranks=4, level="system", alpha_s=50e-6)]
    costs = Costs(machine(collectives=fits, ranks_per_node=2), 2)
    time = costs.allreduce(16, 4000)
    assert time.seconds == pytest.approx(30 * (50e-6 + 250 * BETA_S_PER_BYTE))
    assert not any("no link" in note for note in costs.notes)


def test_the_nearest_p_is_taken() -> None:
    """16 is nearer to 32 than to 4 on a scale of factors (2 against 4)."""
    fits = [allreduce_fit(ranks=4), allreduce_fit(ranks=32, alpha_s=9e-6)]
    time = Costs(machine(collectives=fits, ranks_per_node=64), 2).allreduce(16, 16000)
    assert time.seconds == pytest.approx(30 * (9e-6 + 1000 * BETA_S_PER_BYTE))


def test_p2p_does_not_stand_in_for_allreduce() -> None:
    p2p = allreduce_fit().model_copy(update={"operation": "p2p"})
    with pytest.raises(MissingParameter, match="no allreduce; `calib measure` with 2 ranks"):
        Costs(machine(collectives=[p2p]), 2).allreduce(2, 8)


def test_a_point_whose_interval_touches_zero_can_be_interpolated() -> None:
    """The schema allows low = 0; a prediction from such a file must not be a traceback."""
    fit = allreduce_fit()
    zero = CollectivePoint(nbytes=1024, seconds=Estimate(value=5e-6, low=0.0, high=6e-6), n=3)
    fit = fit.model_copy(update={"points": [fit.points[0], zero, *fit.points[2:]]})
    time = Costs(machine(collectives=[fit]), 2).allreduce(2, 8192)
    assert time.low <= time.seconds <= time.high


def test_add() -> None:
    """Ends of intervals add up; the basis is the least sure."""
    parts = [
        PhaseTime(seconds=3.0, low=2.0, high=5.0, basis="measured"),
        PhaseTime(seconds=1.0, low=0.5, high=1.5, basis="extrapolated"),
        PhaseTime(seconds=0.0, low=0.0, high=0.0, basis="exact"),
    ]
    expected = PhaseTime(seconds=4.0, low=2.5, high=6.5, basis="extrapolated")
    assert add(parts) == expected
    assert add([]).basis == "exact"


def test_mlp_helper_marks_the_first_layer() -> None:
    """The tests of this room rest on it: the first layer's dL/dx is not needed."""
    assert [x.needs_input_grad for x in mlp([3, 4, 5]).layers] == [False, True, True, True]
