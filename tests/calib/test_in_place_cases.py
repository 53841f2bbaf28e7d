"""Models in place in a plan: what each rank runs, how often it meets others, what it copies."""

from __future__ import annotations

from collections import Counter

import pytest
from tests.calib.planning.clusters import cases, cluster
from tests.helpers.divided import divide
from tests.oracle.handmade import mlp
from tests.oracle.test_recomputed import marked

from calib.foundation.division import STRATEGIES, Division
from calib.microbench.cases import CollectiveCase, InPlaceCase
from calib.oracle.layout.shards import rank_shards
from calib.oracle.layout.stages import with_boundaries
from calib.oracle.layout.traffic import gradient_messages, layer_flows, messages
from calib.oracle.model.spec import ModelSpec, tensors_key
from calib.planning.layers import in_place_case
from calib.planning.plan import draft, specs_of
from calib.planning.points import Point
from calib.planning.request import Request

VGG = "vgg16-mini"
NET = mlp([12, 8, 6, 4])  # fc1, relu1, fc2, relu2, fc3, loss
BATCH = 8


@pytest.fixture(scope="module")
def vgg() -> ModelSpec:
    return specs_of(Request(models=(VGG,), p=(1,)))[VGG]


def division_of(model: ModelSpec, strategy: str, p: int) -> Division:
    hybrid = "+" in strategy
    return divide(model, strategy, p, 8 * p, 2 if hybrid else 1, segments=4)


def case_of(model: ModelSpec, division: Division) -> InPlaceCase:
    return in_place_case(Point(model, division, launch=division.p), "momentum")


# but sequence, which needs attention (test_sequence in planning/test_plan.py)
POINTS = [
    ("serial", 1),
    *((of, 4 if "+" in of else 2) for of in list(STRATEGIES)[1:] if of != "sequence"),
]


@pytest.mark.parametrize(("strategy", "p"), POINTS)
def test_layers_are_the_first_parts_of_a_rank(vgg: ModelSpec, strategy: str, p: int) -> None:
    """Those of rank_shards, which has the largest part first; one for each layer, by its name."""
    division = division_of(vgg, strategy, p)
    case = case_of(vgg, division)
    first = {shard.name: shard for shard in reversed(rank_shards(vgg, division))}
    running = [layer.name for layer in vgg.layers if layer.shape.kind != "flatten"]
    assert list(case.layer_names) == running
    assert case.layer_keys == tuple(
        first[name].layer.key(first[name].batch, "float32", first[name].needs_input_grad)
        for name in running
    )
    items = sum(first[name].layer.output_items for name in running)
    assert case.activation_bytes == 4 * division.local_batch * items
    assert (case.batch, case.ranks) == (division.local_batch, p)
    assert case.division == with_boundaries(vgg, division)
    counts = Counter((f.phase, f.operation) for f in layer_flows(vgg, division))
    if division.shards:
        counts = Counter(("layerwise", m.operation) for m in messages(vgg, division))
    assert {(phase, operation): n for phase, operation, n in case.meetings} == counts
    assert bool(case.meetings) == (division.parts > 1 or division.shards)
    # regions of tensor parallelism begin and end with sums: nothing is cut or joined
    assert bool(case.copies) == (division.parts > 1 and division.strategy != "tensor")


def test_filter_by_hand() -> None:
    """Halves of 8, 6 and 4 filters; y is joined and dL/dy cut, on 16 samples."""
    case = case_of(NET, Division("filter", 2, 16))
    assert case.gradient_bytes == 4 * (4 * 12 + 4 + 3 * 8 + 3 + 2 * 6 + 2)
    assert case.tensors_key == tensors_key(((4, 12), (4,), (3, 8), (3,), (2, 6), (2,)))
    assert case.activation_bytes == 4 * 16 * (4 + 8 + 3 + 6 + 2 + 1)
    assert case.meetings == (("layerwise", "allgather", 3), ("layerwise", "allreduce", 2))
    expected = {
        (way, tensors_key(((16, n),)), 2, 4 * 16 * n, 1)
        for way in ("concat", "split")
        for n in (8, 6, 4)
    }
    assert set(case.copies) == expected and len(case.copies) == 6


def test_equal_copies_are_counted() -> None:
    """Two layers with 6 outputs in a group of two, on 8 of 16 samples."""
    case = case_of(mlp([12, 6, 6, 4]), Division("data+filter", 4, 16, 2))
    assert case.batch == 8
    assert {(way, n, count) for way, _, _, n, count in case.copies} == {
        (way, 4 * 8 * items, count)
        for way in ("concat", "split")
        for items, count in ((6, 2), (4, 1))
    }


def test_halos_and_their_parts(vgg: ModelSpec) -> None:
    """Every 3x3 convolution joins one row of its one neighbour, x and, but of the first, dL/dy.

    To x it also joins the row of zeros that is beyond the image.
    """
    division = division_of(vgg, "spatial", 2)
    case = case_of(vgg, division)
    split = {shard.name for shard in rank_shards(vgg, division) if shard.split}
    convolutions = [x for x in vgg.layers if x.name in split and x.shape.kind == "conv"]
    assert len(convolutions) > 5 and division.grid == (2,)
    halves: Counter[int] = Counter()
    for layer in convolutions:
        tensors = [(layer.shape.input_shapes[0], 2)]
        tensors += [(layer.shape.output_shape, 1)] if layer.needs_input_grad else []
        for (channels, height, width), rows in tensors:
            halves[4 * 16 * channels * (height // 2 + rows) * width] += 1
    ends = [f for f in layer_flows(vgg, division) if f.operation == "allgather"]
    halves.update(4 * 16 * end.items for end in ends)
    assert {(way, key, parts) for way, key, parts, _, _ in case.copies} == {("concat", "", 2)}
    assert {nbytes: n for *_, nbytes, n in case.copies} == halves


def test_stages(vgg: ModelSpec) -> None:
    """Each layer on one rank, in their order; as a micro-batch has it."""
    case = case_of(vgg, division_of(vgg, "pipeline", 2))
    assert case.batch == 4
    assert case.layer_ranks == tuple(sorted(case.layer_ranks)) and set(case.layer_ranks) == {0, 1}
    (border,) = case.division.boundaries
    names = [layer.name for layer in vgg.layers]
    for name, rank in zip(case.layer_names, case.layer_ranks, strict=True):
        assert rank == (names.index(name) >= border)
    assert case_of(vgg, division_of(vgg, "filter", 2)).layer_ranks == ()


def test_a_plan_has_every_point_in_the_launch_of_its_p(vgg: ModelSpec) -> None:
    request = Request(models=(VGG,), strategies=tuple(STRATEGIES), p=(1, 2, 4))
    plan = draft(request, cluster(4), {VGG: vgg}).plan
    found = cases(plan, InPlaceCase, is_overlap=False)
    both = ["data", "fully_sharded", "channel", "filter", "pipeline", "spatial", "tensor"]
    expected = [("serial", 1), *((s, p) for p in (2, 4) for s in both)]
    expected += [("data+filter", 4), ("data+spatial", 4)]
    assert sorted((case.strategy, case.ranks) for case in found) == sorted(expected)
    assert len({case.id for case in found}) == len(found)
    # more ranks than there are: no rank runs as many of them would
    beyond = Request(models=(VGG,), strategies=("filter",), p=(16,))
    plan = draft(beyond, cluster(4), {VGG: vgg}).plan
    assert not cases(plan, InPlaceCase)


def test_gradients_from_cold_caches(vgg: ModelSpec) -> None:
    """At the sizes that data and spatial send, of one group side by side; also without `cold`."""
    strategies = ("serial", "data", "spatial", "filter", "data+filter")
    request = Request(models=(VGG,), strategies=strategies, p=(1, 2, 4), cold=True)
    plan = draft(request, cluster(4), {VGG: vgg}).plan
    cold = cases(plan, CollectiveCase, cold=True)
    found = {(case.group_size, case.nbytes) for case in cold if case.tier == 0}
    assert found == {(p, 4 * vgg.parameter_items) for p in (2, 4)} and len(cold) > len(found)
    (segmented,) = gradient_messages(vgg, division_of(vgg, "data+filter", 4))
    assert segmented.stride == 2, "which is why it is not among them"
    without = draft(request.model_copy(update={"cold": False}), cluster(4), {VGG: vgg}).plan
    kept = cases(without, CollectiveCase, cold=True)
    assert kept == [case for case in cold if case.tier == 0]


def test_what_it_says_of_itself(vgg: ModelSpec) -> None:
    """An id is of the work: not of the count of bytes that is checked by it."""
    case = case_of(vgg, division_of(vgg, "spatial", 2))
    assert case.label == f"{VGG} spatial in place on 2 ranks"
    assert case.model_copy(update={"live_bytes": 1}).id == case.id
    others = dict.fromkeys(("copies", "meetings", "layer_names"), ()) | {
        "division": Division("spatial", 2, 2 * case.batch)
    }
    ids = {case.model_copy(update={name: value}).id for name, value in others.items()}
    assert len(ids | {case.id}) == len(others) + 1


@pytest.mark.parametrize(
    ("division", "again", "items"),
    [
        (Division("serial", 1, BATCH), ("relu1", "fc2", "relu2"), 8 + 6 + 6),
        # of fc1 to fc2 a rank has half
        (Division("tensor", 2, BATCH), ("relu1", "fc2", "relu2"), 4 + 6 + 6),
        # in the first stage nothing behind relu1 saves what fc2 makes
        (Division("pipeline", 2, BATCH, boundaries=(3,)), ("relu1", "relu2"), 8 + 6),
    ],
    ids=lambda of: getattr(of, "strategy", ""),
)
def test_what_runs_again_is_of_the_rank(
    division: Division, again: tuple[str, ...], items: int
) -> None:
    model = marked(NET, "relu1", "fc2", "relu2", "fc3")
    case = in_place_case(Point(model, division, launch=division.p), "momentum")
    keys = dict(zip(case.layer_names, case.layer_keys, strict=True))
    assert case.again_keys == tuple(keys[name] for name in again)
    assert case.again_bytes == 4 * BATCH * items
    of_rank = dict(zip(case.layer_names, case.layer_ranks, strict=False))
    assert case.again_ranks == tuple(of_rank[name] for name in again if name in of_rank)
