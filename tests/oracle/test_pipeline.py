"""Pipelines against events: unequal stages, messages over two levels, both schedules and forms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.oracle.handmade import allreduce_fit, law, layer_time, linear, machine, mlp, relu
from tests.oracle.simulated import Tables
from tests.oracle.simulated_pipeline import Times, makespan
from tests.oracle.test_recomputed import marked

from calib.fitting.parameters.collectives import CollectiveFit
from calib.fitting.parameters.file import Parameters
from calib.foundation.division import Division, Schedule
from calib.foundation.layers import LayerShape
from calib.oracle.cost import Cost, total
from calib.oracle.costs.machine import Costs, Machine
from calib.oracle.model.layer import Layer
from calib.oracle.model.spec import ModelSpec
from calib.oracle.strategies import pipeline, serial
from calib.oracle.strategies.stage_terms import strides_of
from calib.oracle.terms import Term, by_phase

SCHEDULES: tuple[Schedule, ...] = ("gpipe", "1f1b")
# 7 layers: fc1 relu1 fc2 relu2 fc3 relu3 fc4, and the loss; no two of one shape
WIDTHS = (4, 5, 7, 11, 13)
MODEL = mlp(WIDTHS)
G = len(MODEL.layers)
SECONDS = st.floats(1e-6, 1.0)
MICRO = 2  # samples of a micro-batch


def p2p(level: str, seconds: dict[int, float]) -> CollectiveFit:
    """Measured messages of so many bytes."""
    points = sorted(seconds.items())
    return allreduce_fit(2, level, points=points).model_copy(update={"operation": "p2p"})


def parameters(
    times: Sequence[tuple[float, float]],
    node: dict[int, float],
    system: dict[int, float],
    model: ModelSpec = MODEL,
    **changes: Any,
) -> Parameters:
    """Nodes of 2 ranks; every layer measured at a micro-batch."""
    return machine(
        layers=[
            layer_time(layer, MICRO, 2, f, b)
            for layer, (f, b) in zip(model.layers, times, strict=True)
        ],
        collectives=[p2p("node", node), p2p("system", system)],
        **changes,
    )


def sizes(model: ModelSpec = MODEL) -> list[int]:
    """Bytes of a micro-batch of every layer's output."""
    return sorted({4 * MICRO * layer.shape.output_items for layer in model.layers})


@st.composite
def cases(draw: st.DrawFn) -> tuple[Parameters, Division, Times]:
    """A machine, a division, and what the simulation is to be told."""
    p, segments = draw(st.integers(2, 6)), draw(st.integers(1, 6))
    cuts = st.lists(st.integers(1, G - 1), min_size=p - 1, max_size=p - 1, unique=True)
    boundaries = tuple(sorted(draw(cuts)))
    times = [(draw(SECONDS), draw(SECONDS)) for _ in MODEL.layers]
    node = {size: draw(SECONDS) for size in sizes()}
    system = {size: draw(SECONDS) for size in sizes()}
    borders = list(pairwise((0, *boundaries, G)))
    # ranks 0 and 1 are a node, 2 and 3, 4 and 5: every second hop leaves one
    hops = [
        (system if stage % 2 else node)[4 * MICRO * MODEL.layers[end - 1].shape.output_items]
        for stage, (_, end) in enumerate(borders[:-1])
    ]
    division = Division(
        "pipeline",
        p,
        MICRO * segments,
        segments=segments,
        boundaries=boundaries,
        schedule=draw(st.sampled_from(SCHEDULES)),
    )
    simulated = Times(
        [math.fsum(f for f, _ in times[a:b]) for a, b in borders],
        [math.fsum(b for _, b in times[a:c]) for a, c in borders],
        [*hops, 0.0],
        [0.0, *hops],
        [stage % 2 == 1 for stage in range(p - 1)],
    )
    return parameters(times, node, system), division, simulated


def measured(
    model: ModelSpec, division: Division, parameters: Parameters, active: int = 2
) -> list[Term]:
    return pipeline.measured(model, division, Machine(parameters).costs(active))


def of(terms: Sequence[Term], phases: Sequence[str]) -> Cost:
    return total(term.cost for term in terms if term.phase in phases)


@settings(max_examples=120, deadline=None)
@given(cases())
def test_makespan_is_that_of_the_events(case: tuple[Parameters, Division, Times]) -> None:
    """With messages; and forward and backward alone that of messages that take no time."""
    machine, division, times = case
    terms = measured(MODEL, division, machine)
    found = of(terms, ("forward", "backward", "layerwise")).seconds
    expected = makespan(division.schedule, times, division.segments)
    assert found == pytest.approx(expected, rel=1e-9)
    nothing = [0.0] * division.p
    silent = replace(times, send_forward=nothing, send_backward=nothing)
    expected = makespan(division.schedule, silent, division.segments)
    computed = [term for term in terms if term.cause in ("compute", "bubble")]
    assert total(term.cost for term in computed).seconds == pytest.approx(expected, rel=1e-9)
    # forward and backward are those of the stage that computes most, whose rank waits least
    both = [f + b for f, b in zip(times.forward, times.backward, strict=True)]
    at = both.index(max(both))
    for phase, each in (("forward", times.forward), ("backward", times.backward)):
        assert of(terms, (phase,)).seconds == pytest.approx(division.segments * each[at], rel=1e-9)
    ideal = division.segments * (sum(times.forward) + sum(times.backward)) / division.p
    compute = math.fsum(term.cost.seconds for term in terms if term.cause == "compute")
    assert compute == pytest.approx(ideal, rel=1e-9)
    assert min(of(terms, (phase,)).seconds for phase in ("forward", "backward", "layerwise")) >= 0.0


@settings(max_examples=60, deadline=None)
@given(cases(), st.sets(st.integers(0, G - 1), min_size=2, max_size=2).map(sorted))
def test_makespan_with_what_runs_again(
    case: tuple[Parameters, Division, Times], region: list[int]
) -> None:
    """In every stage its part of the region; a linear layer at its end is not run again."""
    machine, division, times = case
    first, end = region
    backward = [*times.backward]
    for stage, (a, b) in enumerate(pairwise((0, *division.boundaries, G))):
        part = range(max(a, first), min(b, end))
        again = part[:-1] if part and part[-1] % 2 == 0 else part
        backward[stage] += math.fsum(machine.layers[place].forward_s.value for place in again)
    model = marked(MODEL, *(layer.name for layer in MODEL.layers[first:end]))
    found = of(measured(model, division, machine), ("forward", "backward", "layerwise")).seconds
    expected = makespan(division.schedule, replace(times, backward=backward), division.segments)
    assert found == pytest.approx(expected, rel=1e-9)


@settings(max_examples=60, deadline=None)
@given(cases())
def test_errors_are_those_of_what_is_on_the_path(case: tuple[Parameters, Division, Times]) -> None:
    """All layers and messages are measured +- 10%, on one machine: so is their sum."""
    machine, division, _ = case
    found = of(measured(MODEL, division, machine), ("forward", "backward", "layerwise"))
    assert found.basis == "measured"
    assert found.seconds - found.low == pytest.approx(0.1 * found.seconds, rel=1e-9)
    assert found.high - found.seconds == pytest.approx(0.1 * found.seconds, rel=1e-9)


def test_gpipe_by_hand() -> None:
    """Stages fc1 | relu1 fc2 | the rest, S = 3; 7 s between nodes, 2 s inside one."""
    times = [
        (1.0, 2.0),
        (1.0, 1.0),
        (3.0, 4.0),
        (0.0, 0.0),
        (1.0, 3.0),
        (0.0, 0.0),
        (0.5, 0.5),
        (0.0, 0.0),
    ]
    node, system = dict.fromkeys(sizes(), 2.0), dict.fromkeys(sizes(), 7.0)
    division = Division("pipeline", 3, 3 * MICRO, segments=3, boundaries=(1, 3))
    phases = by_phase(measured(MODEL, division, parameters(times, node, system)))
    # forward slots 1, 4, 1.5; with messages inside the node 3, 6, 1.5, and 7 between nodes
    # backward 2, 5, 3.5; with messages inside the node 4, 7, 3.5, and 7 between nodes
    assert phases["forward"].seconds == pytest.approx(3 * 4.0)
    assert phases["backward"].seconds == pytest.approx(3 * 5.0)
    # inside a node a message begins once both its ends are free, and both are free after it
    everything = (3.0 + 6.0 + 7.0 + 1.5 - 2.0 + 2 * 7.0) + (4.0 + 7.0 + 7.0 + 3.5 - 2.0 + 2 * 7.0)
    assert phases["layerwise"].seconds == pytest.approx(everything - 12.0 - 15.0)


def test_levels_of_hops() -> None:
    """Nodes of 2 ranks, racks of 2 nodes: within a node, between nodes, and from rack to rack."""
    assert strides_of(9, 2, 2) == (1, 2, 1, 4, 1, 2, 1, 4)
    assert strides_of(5, 2, 0) == (1, 2, 1, 2)


def test_what_a_sum_leaves_out_comes_with_every_micro_batch() -> None:
    """a for each layer and b for each byte of a stage's outputs, S = 4 micro-batches on 2 ranks."""
    a, b = 0.25, 0.001
    nothing = dict.fromkeys(sizes(), 0.0)
    laws = [law("forward", 2, a, b, 1.0), law("backward", 2, 0.0, 0.0, 1.0)]
    known = parameters([(1.0, 1.0)] * G, nothing, nothing, composition=laws)
    division = Division("pipeline", 2, 4 * MICRO, segments=4, boundaries=(2,))
    phases = by_phase(measured(MODEL, division, known))
    stages = [
        n * (1.0 + a) + b * 4 * MICRO * items
        for n, items in ((2, 5 + 5), (6, 7 + 7 + 11 + 11 + 13 + 1))
    ]
    # the second stage has the most to do: the rest of the makespan is waiting for the first
    assert phases["forward"].seconds == pytest.approx(4 * max(stages), rel=1e-12)
    assert phases["layerwise"].seconds == pytest.approx(min(stages) + 2.0, rel=1e-12)
    # and they count in the balance: 8 equal layers of which the last ones put out more
    free = replace(division, boundaries=())
    (border,) = pipeline.placed(MODEL, free, Machine(known).costs(2)).boundaries
    outputs = [layer.shape.output_items for layer in MODEL.layers]
    each = [2.0 + a + b * 4 * MICRO * items for items in outputs]
    best = min(range(1, G), key=lambda g: max(sum(each[:g]), sum(each[g:])))
    assert border == best


def test_balanced_stages_are_named_in_the_explanation() -> None:
    """fc1 takes as long as all the others."""
    times = [(7.0, 7.0), *[(1.0, 1.0)] * (G - 1)]
    nothing = dict.fromkeys(sizes(), 0.0)
    division = Division("pipeline", 2, 2 * MICRO, segments=2)
    terms = measured(MODEL, division, parameters(times, nothing, nothing))
    (values,) = {id(t.values): t.values for t in terms if "stages" in t.values}.values()
    assert values["stages"] == "fc1 | relu1..loss"
    assert values["max/mean stage"] == pytest.approx(1.0)


def test_every_tensor_over_a_border_is_a_message() -> None:
    """A residual: x and f(x) of 6 and 3 items go over the border, two messages each way."""
    join = LayerShape(kind="concat", input_shapes=((3,), (6,)), output_shape=(9,))
    loss = LayerShape(kind="cross_entropy", input_shapes=((9,),), output_shape=())
    model = ModelSpec(
        name="block",
        input_shape=(2,),
        classes=3,
        layers=(
            linear("x", "input", 2, 6, first=True),
            linear("f", "x", 6, 3),
            relu("r", "f", 3),
            Layer(name="join", shape=join, inputs=("r", "x"), needs_input_grad=True),
            Layer(name="loss", shape=loss, inputs=("join",), needs_input_grad=True),
        ),
    )
    node = {4 * MICRO * 3: 10.0, 4 * MICRO * 6: 200.0, 4 * MICRO * 9: 3000.0}
    known = parameters([(1.0, 1.0)] * 5, node, node, model)
    division = Division("pipeline", 2, MICRO, boundaries=(2,))
    for border, seconds in ((2, 420.0), (4, 6000.0)):
        terms = measured(model, replace(division, boundaries=(border,)), known)
        sent = [term.cost for term in terms if term.cause == "p2p"]
        assert total(sent).seconds == pytest.approx(seconds)


def test_update_of_the_slowest_stage() -> None:
    """fc4 has 13 x 11 + 13 of the weights; the law of updates is call + tensors + bytes."""
    nothing = dict.fromkeys(sizes(), 0.0)
    known = parameters([(1.0, 1.0)] * G, nothing, nothing)
    division = Division("pipeline", 2, MICRO, boundaries=(6,))
    found = by_phase(measured(MODEL, division, known))["update"].seconds
    first = 1e-6 + 6 * 5e-7 + 1e-10 * 4 * (5 * 4 + 5 + 7 * 5 + 7 + 11 * 7 + 11)
    last = 1e-6 + 2 * 5e-7 + 1e-10 * 4 * (13 * 11 + 13)
    assert first > last  # more tensors, fewer bytes
    assert found == pytest.approx(first, rel=1e-12)
    whole = measured(MODEL, replace(division, boundaries=(7,)), known)
    expected = 1e-6 + 8 * 5e-7 + 1e-10 * 4 * MODEL.parameter_items
    assert by_phase(whole)["update"].seconds == pytest.approx(expected, rel=1e-12)


def table(times: Sequence[tuple[float, ...]], alpha_s: float, beta_s_per_byte: float) -> Tables:
    """FW_l, BW_l per sample and WU_l of every layer, and one link."""
    columns = [
        dict(zip((layer.name for layer in MODEL.layers), column, strict=True))
        for column in zip(*times, strict=True)
    ]
    return Tables(MODEL, *columns, {("node", "p2p"): (alpha_s, beta_s_per_byte)}, node=G)


def lockstep(
    p: int, segments: int, forward: Sequence[float], backward: Sequence[float], send: float
) -> float:
    """All stages begin a turn together, and nobody goes on before the slowest has sent."""
    seconds = 0.0
    for slots in (forward, backward[::-1]):
        held = [-1] * p  # the micro-batch at each stage
        waiting, done = list(range(segments)), 0
        while done < segments:
            held = [waiting.pop(0) if waiting else -1, *held[:-1]]
            seconds += max(slots)
            done += held[-1] >= 0
            seconds += send if done < segments else 0.0
    return seconds


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.tuples(SECONDS, SECONDS, SECONDS), min_size=G, max_size=G),
    st.integers(2, 5),
    st.integers(1, 8),
    st.integers(1, 4),
    SECONDS,
    st.floats(1e-6, 1e-2),
    st.data(),
)
def test_paper_form_is_a_lockstep(
    rows: list[tuple[float, float, float]],
    p: int,
    segments: int,
    micro: int,
    alpha: float,
    beta: float,
    data: st.DataObject,
) -> None:
    cuts = st.lists(st.integers(1, G - 1), min_size=p - 1, max_size=p - 1, unique=True)
    boundaries = tuple(sorted(data.draw(cuts)))
    division = Division("pipeline", p, micro * segments, segments=segments, boundaries=boundaries)
    terms = pipeline.paper(MODEL, division, table(rows, alpha, beta))
    borders = list(pairwise((0, *boundaries, G)))
    forward = [micro * math.fsum(f for f, _, _ in rows[a:b]) for a, b in borders]
    backward = [micro * math.fsum(b for _, b, _ in rows[a:c]) for a, c in borders]
    sent = [MODEL.layers[end - 1].shape.output_items for _, end in borders[:-1]]
    slowest = max(alpha + 4 * micro * items * beta for items in sent)
    expected = lockstep(p, segments, forward, backward, slowest)
    phases = by_phase(terms)
    found = phases["forward"].seconds + phases["backward"].seconds + phases["layerwise"].seconds
    assert found == pytest.approx(expected, rel=1e-9)
    updates = [math.fsum(u for _, _, u in rows[a:b]) for a, b in borders]
    assert phases["update"].seconds == pytest.approx(max(updates), rel=1e-12)
    assert min(term.cost.seconds for term in terms) >= 0.0


@pytest.mark.parametrize("segments", [1, 4])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_one_rank_is_serial(segments: int, schedule: Schedule) -> None:
    """To the last bit, phases and bytes, also of S micro-batches."""
    division = Division("pipeline", 1, 8, segments=segments, schedule=schedule)
    alone = Division("serial", 1, 8)
    costs: Costs = Machine(machine()).costs(1)
    assert pipeline.measured(MODEL, division, costs) == serial.measured(MODEL, alone, costs)
    paper = table([(1.0, 2.0, 0.5)] * G, 1.0, 1.0)
    assert pipeline.paper(MODEL, division, paper) == serial.paper(MODEL, alone, paper)
    found = pipeline.memory(MODEL, division, "adam")
    assert found == serial.memory(MODEL, alone, "adam")


# fc1 relu1 | fc2 relu2 fc3 | relu3 fc4 loss: |x| + |y| and |w| + |bi|
ITEMS = (9 + 10, 12 + 14 + 18, 22 + 24 + 14)
WEIGHTS = (25, 42 + 88, 156)


@pytest.mark.parametrize(
    ("schedule", "batch", "in_flight"),
    [("gpipe", 8, (8, 8, 8)), ("1f1b", 4, (3, 2, 1)), ("1f1b", 800, (600, 400, 200))],
)
def test_memory(schedule: Schedule, batch: int, in_flight: tuple[int, int, int]) -> None:
    """S = 4: GPipe keeps all samples everywhere, 1F1B 3, 2 and 1 micro-batches; Adam keeps 2 |w|.

    The last stage has most weights; the one in the middle needs most of 1F1B with a large batch.
    """
    division = Division("pipeline", 3, batch, segments=4, schedule=schedule, boundaries=(2, 5))
    found = pipeline.memory(MODEL, division, "adam")
    bytes_of = [
        {"activations": 8 * n * items, "weights": 4 * w, "gradients": 4 * w, "optimizer": 8 * w}
        for n, items, w in zip(in_flight, ITEMS, WEIGHTS, strict=True)
    ]
    assert found == max(bytes_of, key=lambda parts: sum(parts.values()))
    largest = [sum(parts.values()) for parts in bytes_of]
    assert largest.index(max(largest)) == (1 if batch == 800 else 2)


def test_limit() -> None:
    """As many ranks as layers, the number at which shards.why_impossible stops."""
    assert pipeline.limit(MODEL, Division("pipeline", 2, 4)).ranks == G == 8
