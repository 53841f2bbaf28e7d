"""A plan measures all that predictions of its models, strategies and p will look up, once each."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.calib.planning.clusters import cases, cluster
from tests.helpers.divided import divide
from tests.helpers.sequence_models import Gpt
from tests.helpers.token_models import OneRegion
from tests.oracle.handmade import mlp

from calib.foundation.division import STRATEGIES, Division
from calib.foundation.errors import InputError
from calib.foundation.execution import execution_of
from calib.foundation.names import DeviceName
from calib.foundation.own import Own
from calib.microbench.cases import (
    Case,
    CollectiveCase,
    InPlaceCase,
    LayerCase,
    Plan,
    SparseCase,
    TensorsCase,
)
from calib.microbench.groups import fits
from calib.microbench.records.cluster import Cluster
from calib.oracle.layout.shards import rank_parameters, rank_shards
from calib.oracle.layout.traffic import messages
from calib.oracle.layout.units import model_units
from calib.oracle.model.spec import ModelSpec, tensors_key
from calib.oracle.template import groups
from calib.oracle.trace.tracing import trace
from calib.planning.collectives import (
    AFTER_WORK_BYTES,
    ENOUGH_BYTES,
    powers,
    size_grid,
    two_dimensional,
)
from calib.planning.layers import FLOPS_PER_BYTE, ranked
from calib.planning.plan import Draft, draft, joined, plan_for_run, specs_of
from calib.planning.points import planned_launches, points_of
from calib.planning.request import FULL, QUICK, Effort, Request, Sparse, request_of
from calib.training.models import OWN_BATCH, entry
from calib.training.models.specs import batch_of, spec

MINIS = ("vgg16-mini", "resnet50-mini", "cosmoflow-mini")
# distinct cases of the default plan on 2 ranks before there were strategies and levels to plan for
BEFORE_FULL, BEFORE_QUICK = 408, 378


@pytest.fixture(scope="module")
def specs() -> dict[str, ModelSpec]:
    return specs_of(Request(models=MINIS, p=(1,)))


def default(
    effort: Effort, specs: dict[str, ModelSpec], p: tuple[int, ...] = (1, 2, 4), **more: Any
) -> Draft:
    return draft(request_of(effort, p=p, seed=3, **more), cluster(4), specs)


def vgg(on: Cluster, specs: dict[str, ModelSpec], p: tuple[int, ...], **more: Any) -> Draft:
    """vgg16-mini alone, measured as a request has it by default."""
    return draft(Request(models=("vgg16-mini",), p=p, **more), on, specs)


def every(specs: dict[str, ModelSpec]) -> Plan:
    """vgg16-mini under every strategy."""
    return vgg(cluster(4), specs, (1, 2, 4), strategies=tuple(STRATEGIES)).plan


@pytest.fixture(scope="module", params=[FULL, QUICK], ids=["full", "quick"])
def plan(request: pytest.FixtureRequest, specs: dict[str, ModelSpec]) -> Plan:
    return default(request.param, specs).plan


def collectives(plan: Plan, **fields: object) -> list[CollectiveCase]:
    return cases(plan, CollectiveCase, **fields)


def plain(plan: Plan, operation: str, p: int) -> set[int]:
    """The sizes of one group, warm, from a barrier."""
    found = collectives(
        plan,
        operation=operation,
        group_size=p,
        groups=1,
        stride=1,
        cold=False,
        start="barrier",
        library="torch_mpi",
    )
    return {case.nbytes for case in found}


@given(factor=st.integers(2, 1000))
def test_grid(factor: int) -> None:
    """8 B to 64 MiB, both included, geometric but for the last step; whole float32 items."""
    grid = size_grid(factor)
    assert (grid[0], grid[-1]) == (8, 64 * 2**20)
    assert all(b == factor * a for a, b in pairwise(grid[:-1]))
    assert grid[-2] < grid[-1] <= factor * grid[-2]
    assert all(nbytes % 4 == 0 for nbytes in grid)


def test_small_helpers() -> None:
    assert [*map(powers, (0, 1, 2, 3))] == [[], [], [2], [2, 3]]
    assert [*map(powers, (8, 12))] == [[2, 4, 8], [2, 4, 8, 12]]
    assert [two_dimensional(p) for p in (2, 4, 6, 7, 12)] == [None, (2, 2), (3, 2), None, (4, 3)]
    assert [groups(p, 4) for p in (2, 3, 4, 8)] == [(), (), (2,), (4, 2)]
    assert groups(24, 4) == (4, 2, 3, 6, 8, 12)
    assert joined(["a", "b", "a"]) == "a; b"
    assert joined(["a", "b", "c", "d"]) == "a; b and 2 more"


def test_every_layer_of_every_model_is_measured_at_every_size(
    plan: Plan, specs: dict[str, ModelSpec]
) -> None:
    for size in (1, 2, 4):
        keys = {case.key for case in cases(plan, LayerCase, ranks=size, passes="whole")}
        needed = {
            layer.shape.key(entry(name).batch_per_rank, "float32", layer.needs_input_grad)
            for name, model in specs.items()
            for layer in model.layers
            if layer.shape.kind != "flatten"
        }
        # and two of over 32 MiB, which no mini has: what fresh pages cost; and two for the peaks
        large = {f"relu()|1*{n}->{n}|-|float32" for n in (12 * 2**20, 2**25)}
        peaks = cases(plan, LayerCase, ranks=size, purpose="peak of operations")
        peaks += cases(plan, LayerCase, ranks=size, purpose="peak of memory")
        assert len(peaks) == 2 and keys - needed == large | {case.key for case in peaks}
        assert keys > needed


def test_default_collectives(plan: Plan, specs: dict[str, ModelSpec]) -> None:
    """In the largest launch alone: gradients exactly, allreduce and p2p over the grid."""
    gradients = {4 * model.parameter_items for model in specs.values()}
    assert {case.ranks for case in plan.cases if isinstance(case, CollectiveCase)} == {4}
    step = 2 if plan.budget_seconds == FULL.budget_s else 8
    for p in (2, 4):
        sizes = plain(plan, "allreduce", p)
        assert sizes == {*size_grid(step), *gradients}
        exact = collectives(plan, operation="allreduce", group_size=p, tier=0)
        assert {case.nbytes for case in exact} == gradients
    assert plain(plan, "p2p", 2) == set(size_grid(step))


def test_other_operations_have_a_coarse_grid(plan: Plan) -> None:
    """Nothing that serial and data-parallel training sends: the last to be measured."""
    coarse = set(size_grid(8, ENOUGH_BYTES))  # no further than the minis' messages go
    for operation in ("allgather", "allgatherv", "reduce_scatter", "all_to_all", "broadcast"):
        for p in (2, 4):
            assert plain(plan, operation, p) == coarse
        assert {case.tier for case in collectives(plan, operation=operation)} == {2}
    assert plain(plan, "p2p_both", 2) == coarse
    grids = {case.grid for case in collectives(plan, operation="halo")}
    assert grids == {(2,), (4,), (2, 2)}
    hierarchical = collectives(plan, operation="hierarchical_allreduce")
    assert {(case.group_size, case.inner) for case in hierarchical} == {(4, 2)}


def test_extras_of_the_full_plan(plan: Plan) -> None:
    """Cold buffers, several groups: tier 2, and not in the quick plan.

    But for exchanges of gradients, whose buffers no cache holds: those are looked up. No law is fitted
    to starts in windows and to what other messages disturb, so neither is planned.
    """
    full = plan.budget_seconds == FULL.budget_s
    cold = collectives(plan, operation="allreduce", cold=True)
    exchanged = [case for case in cold if case.tier == 0]
    warm = collectives(plan, operation="allreduce", cold=False)
    sent = {case.nbytes for case in warm if case.tier == 0}
    assert {case.nbytes for case in exchanged} and {case.nbytes for case in exchanged} <= sent
    coarse = {8 * 8**k for k in range(8)}  # 8 B to 16 MiB
    variants = [
        ([c for c in cold if c.group_size == 4 and c not in exchanged], {2**21, 2**24}),
        (collectives(plan, operation="allreduce", group_size=2, groups=2), coarse),
    ]
    for those, sizes in variants:
        assert {case.nbytes for case in those} == (sizes if full else set())
        assert all(case.tier == 2 for case in those)
    assert not collectives(plan, start="window")
    apart = cases(plan, LayerCase, passes="parts")
    assert bool(apart) == full
    assert {case.layer.kind for case in apart} <= {"conv", "linear"}
    assert all(case.tier == 2 for case in apart)


def test_tensor_lists(plan: Plan, specs: dict[str, ModelSpec]) -> None:
    """The update of every model at every size; its packing where there is somebody to send to."""
    for size in (1, 2, 4):
        lists = cases(plan, TensorsCase, ranks=size)
        for model in specs.values():
            key = tensors_key(model.parameter_shapes)
            mine = {case.operation: case for case in lists if case.key == key}
            assert set(mine) == {"update", "accumulate"} | ({"pack"} if size > 1 else set())
            assert mine["accumulate"].tier == 1
            assert mine["update"].shapes == model.parameter_shapes
            assert mine["update"].tier == 0
        assert all(case.key == tensors_key(case.shapes) for case in lists)


def test_models_in_place(plan: Plan, specs: dict[str, ModelSpec]) -> None:
    """Its parts are what the other cases measure: one layer key for each layer that runs."""
    for size in (1, 2, 4):
        parts = [*cases(plan, LayerCase, ranks=size), *cases(plan, TensorsCase, ranks=size)]
        keys = {case.key for case in parts}
        found = {
            case.model: case for case in cases(plan, InPlaceCase, ranks=size, is_overlap=False)
        }
        assert set(found) == set(MINIS)
        for name, model in specs.items():
            case = found[name]
            running = [layer for layer in model.layers if layer.shape.kind != "flatten"]
            assert len(case.layer_keys) == len(running)
            assert {*case.layer_keys, case.tensors_key} <= keys
            assert case.gradient_bytes == 4 * model.parameter_items
            items = sum(layer.shape.output_items for layer in running)
            assert case.activation_bytes == 4 * entry(name).batch_per_rank * items


def test_a_sparse_variable(plan: Plan, specs: dict[str, ModelSpec]) -> None:
    """A small one in the full plan; one that is asked for by every method, on 2 ranks and more."""
    full = plan.budget_seconds == FULL.budget_s
    assert len(cases(plan, SparseCase)) == (2 * 6 if full else 0)
    asked = Sparse(rows=100, width=2, shares=(0.1, 0.5), partitions=(1, 2, 4, 100))
    sparse = cases(default(QUICK, specs, (1, 2, 4, 64), sparse=asked).plan, SparseCase)
    server = [("server", p) for p in asked.partitions]
    assert [(c.ranks, c.share, c.method, c.partitions) for c in sparse] == [
        (ranks, share, *way)
        for ranks in (2, 4)
        for share in asked.shares
        for way in (*server, ("allgatherv", 1), ("allreduce", 1))
    ]


def overlapping(drafted: Draft) -> list[tuple[str, str, int]]:
    found = cases(drafted.plan, InPlaceCase, is_overlap=True)
    return [(case.model, case.library, case.ranks) for case in found]


def test_overlap(specs: dict[str, ModelSpec]) -> None:
    """Of the two models with the most weights, at the largest p, and at that of one host."""
    heavy = sorted(specs, key=lambda name: -specs[name].parameter_items)
    assert overlapping(default(FULL, specs)) == [(m, "torch_mpi", 4) for m in heavy[:2]]
    assert overlapping(default(FULL, specs, (1,))) == []
    assert overlapping(default(QUICK, specs)) == []
    assert len(overlapping(default(FULL, specs, overlap=3))) == 3
    assert overlapping(default(FULL, specs, strategies=("filter",))) == []
    gloo = default(FULL, specs, (1, 2), libraries=("mpi", "torch_gloo"), overlap=1)
    assert overlapping(gloo) == [(heavy[0], "torch_gloo", 2)]
    two_hosts = draft(request_of(FULL, p=(2, 4, 8), ranks=8), cluster(4, nodes=2), specs)
    assert [p for *_, p in overlapping(two_hosts)] == [4, 4, 8, 8]
    apart = draft(request_of(FULL, p=(1, 2), ranks=2), cluster(1, nodes=2), specs)
    assert [p for *_, p in overlapping(apart)] == [2, 2]


def test_messages_after_work_go_between_nodes(specs: dict[str, ModelSpec]) -> None:
    """At every level but that of a node's ranks, which share a memory."""
    assert not collectives(default(FULL, specs).plan, operation="p2p_both", cold=True)
    three = cluster(2, nodes_per_rack=2, nodes=4)
    plan = draft(request_of(FULL, p=(8,), ranks=8), three, specs).plan
    found = collectives(plan, operation="p2p_both", cold=True)
    assert {case.stride for case in found} == {2, 4}
    for stride in (2, 4):
        assert sorted(c.nbytes for c in found if c.stride == stride) == AFTER_WORK_BYTES


def test_no_case_twice(plan: Plan) -> None:
    """Equal work has one id, and an id is one work."""
    assert max(Counter(case.id for case in plan.cases).values()) == 1
    work = [case.model_copy(update={"purpose": "", "tier": 0}) for case in plan.cases]
    assert len(set(map(str, work))) == len(work)


def test_tiers_are_in_order(plan: Plan) -> None:
    tiers = [case.tier for case in plan.cases]
    assert tiers == sorted(tiers)
    assert set(tiers) == {0, 1, 2}


def test_the_default_plan_stays_small(specs: dict[str, ModelSpec]) -> None:
    """Each case costs 20 ms and more in every launch: calibrate must not become much slower."""
    assert len(default(FULL, specs, (1, 2)).plan.cases) <= 1.5 * BEFORE_FULL
    assert len(default(QUICK, specs, (1, 2)).plan.cases) <= 1.3 * BEFORE_QUICK


def test_every_strategy_finds_its_layers_and_messages(specs: dict[str, ModelSpec]) -> None:
    """Each shard of each point has its case in the launch of p, each message its case in that of 4."""
    plan, model = every(specs), specs["vgg16-mini"]
    keys = {(case.ranks, case.key) for case in cases(plan, LayerCase)}
    lists = {(c.ranks, c.operation, c.key): c.tier for c in cases(plan, TensorsCase)}
    sent = {
        (c.operation, c.nbytes, c.group_size, c.stride, c.groups, c.grid, c.inner)
        for c in collectives(plan, ranks=4, tier=0)
    }
    count = 0
    for strategy in list(STRATEGIES)[1:]:
        for p in (2, 4):
            if ("+" in strategy and p == 2) or strategy == "sequence":  # which needs attention
                continue
            division = divide(model, strategy, p, 8 * p, 2 if "+" in strategy else 1, segments=4)
            for shard in rank_shards(model, division):
                key = shard.layer.key(shard.batch, "float32", shard.needs_input_grad)
                assert (p, key) in keys
                count += 1
            for m in messages(model, division):
                wanted = (m.operation, m.nbytes, m.group_size, m.stride, m.groups, m.grid, m.inner)
                assert wanted in sent
            weights = tensors_key(rank_parameters(model, division))
            assert lists[p, "update", weights] == 0
            if strategy in ("data", "spatial", "data+filter", "data+spatial"):
                assert lists[p, "pack", weights] == 0
    assert count > 300


def test_cut_and_join_at_the_sizes_of_filter_and_channel() -> None:
    """Layers 12 -> 8 -> 6 -> 4 at B = 8: filter joins y of all and cuts their dL/dy; channel cuts x of
    the last two and joins their dL/dx; data+filter does it at B/p1 in 2 parts.
    """

    def found(strategy: str) -> set[tuple[str, tuple[int, ...], int]]:
        request = Request(models=("hand.json",), strategies=(strategy,), p=(4,), batch=8)
        plan = draft(request, cluster(4), {"hand.json": mlp([12, 8, 6, 4])}).plan
        cuts = [case for case in cases(plan, TensorsCase) if case.parts > 1]
        assert {case.tier for case in cuts} == {0}
        return {(case.operation, case.shapes[0], case.parts) for case in cuts}

    both = ("concat", "split")
    assert found("filter") == {(o, (8, n), 4) for o in both for n in (8, 6, 4)}
    assert found("channel") == {(o, (8, n), 4) for o in both for n in (8, 6)}
    assert found("data+filter") == {(o, (4, n), 2) for o in both for n in (8, 6, 4)}


def test_messages_of_one_size_have_a_second_one() -> None:
    """fc1 and fc2 in two parts send y of fc2 alone, 8 x 6 items: with 8 B that is a line."""
    request = Request(models=("hand.json",), strategies=("tensor",), p=(2,), batch=8)
    plan = draft(request, cluster(2), {"hand.json": mlp([12, 8, 6, 4])}).plan
    first = {case.nbytes for case in collectives(plan, operation="allreduce") if case.tier == 0}
    assert first == {8, 4 * 8 * 6}


def test_what_a_strategy_uses_is_interpolated_in_before_the_rest(
    specs: dict[str, ModelSpec],
) -> None:
    """With filter and the hybrids, allgather, halo and contention are of tier 1."""
    plan = every(specs)
    for operation in ("allgather", "halo", "hierarchical_allreduce"):
        assert {case.tier for case in collectives(plan, operation=operation)} == {0, 1}
    assert {case.tier for case in collectives(plan, groups=2, stride=1)} == {0, 1}
    assert {case.tier for case in collectives(plan, operation="all_to_all")} == {2}


def test_layers_that_cost_most_come_first(specs: dict[str, ModelSpec]) -> None:
    """Tier 0 is the smallest set of the costliest layers with 90% of the cost."""
    model = specs["resnet50-mini"]
    order = ranked(rank_shards(model, divide(model, "serial", 1, 8)))

    def cost(items: list[int]) -> float:
        chosen = [order[i][1] for i in items]
        return sum(
            s.layer.forward_flops(8) + FLOPS_PER_BYTE * s.layer.moved_bytes(8) for s in chosen
        )

    costs = [cost([i]) for i in range(len(order))]
    assert costs == sorted(costs, reverse=True)
    first = [i for i, (tier, _) in enumerate(order) if tier == 0]
    assert first == list(range(len(first)))
    assert cost(first) >= 0.9 * sum(costs) > cost(first[:-1])
    assert {tier for tier, _ in order} == {0, 1}


def test_levels_on_racks(specs: dict[str, ModelSpec]) -> None:
    """2 racks of 2 nodes of 4: pairs and fours in a node, two nodes of a rack, a node of each rack."""
    plan = vgg(cluster(4, nodes_per_rack=2, nodes=4), specs, (1, 16)).plan
    assert plan.sizes == [1, 16]
    single = collectives(plan, operation="allreduce", groups=1, cold=False, start="barrier")
    sizes: dict[tuple[int, int], int] = Counter((case.group_size, case.stride) for case in single)
    assert set(sizes) == {(2, 1), (4, 1), (2, 4), (2, 8), (16, 1)}
    assert all(count >= 9 for count in sizes.values())
    ping = {case.stride for case in collectives(plan, operation="p2p")}
    assert ping == {1, 4, 8}


def test_contention_on_nodes(specs: dict[str, ModelSpec]) -> None:
    """2 nodes of 4: one and two pairs in a node; across the nodes 1, 2 and 4 pairs share the link."""
    plan = vgg(cluster(4, nodes=2), specs, (8,), strategies=("data+filter",)).plan
    pairs = {
        (case.stride, case.groups)
        for case in collectives(plan, operation="allreduce", group_size=2, tier=1)
    }
    assert pairs == {(1, 1), (1, 2), (4, 1), (4, 2), (4, 4)}
    exchange = collectives(plan, operation="allreduce", tier=0, group_size=2, stride=4)
    assert {case.groups for case in exchange} == {4}  # p1 x p2 = 2 x 4: the shards' gradients


@given(
    ranks_per_node=st.integers(1, 8),
    nodes_per_rack=st.integers(1, 3),
    racks=st.integers(1, 3),
    ranks=st.integers(1, 40),
)
def test_every_group_fits_its_launch(
    ranks_per_node: int, nodes_per_rack: int, racks: int, ranks: int
) -> None:
    machine = cluster(ranks_per_node, nodes_per_rack, nodes_per_rack * racks)
    request = Request(
        models=("hand.json",),
        strategies=("serial", "data"),
        p=(1, ranks),
        ranks=ranks,
        batch_per_rank=2,
        grid_factor=512,
    )
    plan = draft(request, machine, {"hand.json": mlp([4, 3, 2])}).plan
    found = collectives(plan)
    assert bool(found) == (ranks > 1)
    assert all(fits(case.ranks, case.group_size, case.stride, case.groups) for case in found)
    if ranks > 1:
        assert ranks in {case.group_size for case in found if case.operation == "allreduce"}


def is_of_peaks(case: Case) -> bool:
    return case.purpose.startswith("peak of ")


def test_more_ranks_than_the_machine_has(specs: dict[str, ModelSpec]) -> None:
    """Shapes of p = 64 are measured in the launch of 4; its messages are left out, and that is said."""
    made = vgg(cluster(4), specs, (1, 16, 64), strategies=("data", "filter"), batch=64)
    assert made.plan.sizes == [1, 4]
    of_models = [case for case in cases(made.plan, LayerCase) if not is_of_peaks(case)]
    assert {case.batch for case in of_models} == {64, 4, 1}
    said = "\n".join(made.left_out)
    assert "features.0 has only 16 filters, so p is at most 16" in said
    assert (
        "messages of vgg16-mini filter 16: the largest launch has 4 ranks; they will be ex" in said
    )
    assert all(case.group_size <= 4 for case in collectives(made.plan))


def test_the_largest_launch() -> None:
    """The largest p that there are ranks for, or what is asked for, crowded if need be."""
    machine = cluster(4, nodes=2)
    assert planned_launches(Request(p=(1, 2)), machine).ranks == 2
    assert planned_launches(Request(p=(1, 6)), machine).ranks == 6
    assert planned_launches(Request(p=(1, 64)), machine).ranks == 8
    crowded = planned_launches(Request(p=(1, 64), ranks=16), machine)
    assert (crowded.ranks, crowded.ranks_per_node) == (16, 8)


def test_a_launch_of_its_own_size_alone() -> None:
    """Under a launcher there is one size: nothing is planned for another."""
    request = Request(models=("hand.json",), p=(3,), ranks=3, batch_per_rank=2)
    assert draft(request, cluster(1), {"hand.json": mlp([4, 2])}).plan.sizes == [3]


def test_libraries(specs: dict[str, ModelSpec]) -> None:
    """The first has the exact sizes and the grid; others what points send by, and at the end more."""
    plan = vgg(cluster(2), specs, (2,), libraries=("mpi", "torch_gloo", "torch_mpi")).plan
    for library in ("torch_gloo", "torch_mpi"):
        found = collectives(plan, library=library)
        # one more is of the size that data parallelism sends
        compared = {("allreduce", 1): 10, ("allgather", 2): 8, ("p2p", 2): 8}
        assert Counter((case.operation, case.tier) for case in found) == compared
        assert {case.device for case in found} == {"cpu"}
    sharded = vgg(
        cluster(2), specs, (2,), strategies=("fully_sharded",), libraries=("mpi", "torch_gloo")
    ).plan
    found = collectives(sharded, library="torch_gloo")
    sent = {("allgather", 1), ("reduce_scatter", 1), ("allreduce", 2), ("p2p", 2)}
    assert {(case.operation, case.tier) for case in found} == sent
    exact = collectives(sharded, library="mpi", tier=0)
    assert {(x.operation, x.nbytes) for x in exact} < {(x.operation, x.nbytes) for x in found}
    for libraries in (("torch_mpi", "torch_gloo"), ("torch_gloo",)):
        plan = vgg(cluster(2), specs, (2,), strategies=("fully_sharded",), libraries=libraries).plan
        whole = cases(plan, InPlaceCase, is_overlap=False)
        assert tuple(case.library for case in whole if case.meetings) == libraries
        (data,) = (case for case in whole if not case.meetings)
        assert data.library == libraries[0]
    plan = vgg(cluster(2), specs, (2,), libraries=("nccl", "mpi"), device="cuda").plan
    exact = collectives(plan, tier=0)
    assert exact and {(case.library, case.device) for case in exact} == {("nccl", "cuda")}
    assert {case.device for case in collectives(plan, library="mpi")} == {"cpu", "cuda"}


def test_the_plan_of_gpus_is_that_of_cpus_but_for_what_only_hosts_do(
    specs: dict[str, ModelSpec],
) -> None:
    """No fresh pages, nothing cold, other peaks; the library is what training sends by there."""

    def plan_on(device: DeviceName) -> Plan:
        return vgg(cluster(2), specs, (1, 2), device=device).plan

    def as_on_a_gpu(case: Case) -> Case:
        library = {"library": "torch_nccl"} if hasattr(case, "library") else {}
        return case.model_copy(update={"device": "cuda", **library})

    hosts, gpus = (
        [case for case in plan_on(device).cases if not is_of_peaks(case)]
        for device in ("cpu", "cuda")
    )
    of_hosts = [
        case
        for case in hosts
        if case.purpose != "what fresh pages cost" and not getattr(case, "cold", False)
    ]
    assert gpus == [as_on_a_gpu(case) for case in of_hosts]
    assert {case.kind for case in of_hosts} == {"collective", "layer", "tensors", "in_place"}
    assert any(isinstance(case, InPlaceCase) and case.is_overlap for case in of_hosts)


def executed(specs: dict[str, ModelSpec], *executions: str, **more: Any) -> Draft:
    return vgg(cluster(2), specs, (1, 2), executions=executions, **more)


@pytest.mark.parametrize(
    ("executions", "products"),
    [
        (("float32", "bfloat16-mixed"), ["float32", "bfloat16"]),
        (("float16", "tf32+channels_last"), ["float16", "tf32"]),
        (("bfloat16+cuda_graph",), ["bfloat16"]),
    ],
)
def test_every_execution_is_measured(
    executions: tuple[str, ...], products: list[str], specs: dict[str, ModelSpec]
) -> None:
    """Each layer, list and model as each runs it, with bytes of its items."""
    plan = executed(specs, *executions, device="cuda").plan
    peaks = cases(plan, LayerCase, purpose="peak of operations", ranks=1)
    assert [case.execution for case in peaks] == products
    model = specs["vgg16-mini"]
    batch = entry("vgg16-mini").batch_per_rank
    for size in (1, 2):
        of_launch = [case for case in plan.cases if case.ranks == size]
        keys = {case.key for case in of_launch if isinstance(case, LayerCase)}
        lists = {
            (case.operation, case.key, case.execution)
            for case in of_launch
            if isinstance(case, TensorsCase)
        }
        in_place = [c for c in of_launch if isinstance(c, InPlaceCase) and not c.is_overlap]
        whole = {case.execution: case for case in in_place}
        assert list(whole) == list(executions) and len(in_place) == len(executions)
        for name in executions:
            items = execution_of(name).items
            needed = {
                layer.shape.key(batch, name, layer.needs_input_grad)
                for layer in model.layers
                if layer.shape.kind != "flatten"
            }
            assert needed == set(whole[name].layer_keys) <= keys
            weights = tensors_key(model.parameter_shapes)
            kernels = execution_of(name).kernels.name
            for operation in ("update", "accumulate", *(["pack"] if size > 1 else [])):
                assert (operation, weights, kernels) in lists
            case = whole[name]
            outputs = sum(x.shape.output_items for x in model.layers if x.shape.kind != "flatten")
            assert case.activation_bytes == items.activation_bytes * batch * outputs
            assert case.gradient_bytes == items.weight_bytes * model.parameter_items


def test_what_executions_share_is_measured_once(specs: dict[str, ModelSpec]) -> None:
    """A graph runs the same kernels; channels last changes nothing of a linear layer."""
    one = executed(specs, "float32", device="cuda").plan
    graph = executed(specs, "float32", "float32+cuda_graph", device="cuda").plan
    more = [case for case in graph.cases if case.id not in {case.id for case in one.cases}]
    assert {(case.kind, getattr(case, "execution", "")) for case in more} == {
        ("in_place", "float32+cuda_graph")
    }
    both = executed(specs, "float32", "float32+channels_last", device="cuda").plan
    marked = [case for case in cases(both, LayerCase) if "channels_last" in case.execution]
    kinds = {case.layer.kind for case in marked}
    assert "conv" in kinds and not kinds & {"linear", "cross_entropy"}
    assert max(Counter(case.id for case in both.cases).values()) == 1


def test_executions_that_a_strategy_does_not_have(specs: dict[str, ModelSpec]) -> None:
    made = executed(
        specs,
        "float32",
        "bfloat16+channels_last",
        strategies=("data", "filter", "pipeline"),
        libraries=("torch_mpi",),
    )
    for strategy in ("filter", "pipeline"):
        line = (
            f"vgg16-mini {strategy} 2 (bfloat16+channels_last): channels_last is of serial, data and "
            f"fully_sharded, not of {strategy}"
        )
        assert line in made.left_out
    found = cases(made.plan, InPlaceCase, is_overlap=False)
    assert {(case.strategy, case.execution) for case in found} == {
        ("serial", "float32"),
        ("serial", "bfloat16+channels_last"),
        ("data", "float32"),
        ("data", "bfloat16+channels_last"),
        ("filter", "float32"),
        ("pipeline", "float32"),
    }


def test_shards_are_of_the_type_of_activations(specs: dict[str, ModelSpec]) -> None:
    """Copies in place count the bytes of the lists that are measured for them."""
    for strategy in ("filter", "spatial"):
        one, two = (
            cases(executed(specs, name, strategies=(strategy,)).plan, InPlaceCase, ranks=2)[0]
            for name in ("float32", "bfloat16-mixed")
        )
        assert one.copies and [(*of[:3], of[4]) for of in one.copies] == [
            (*of[:3], of[4]) for of in two.copies
        ]
        assert [of[3] for of in one.copies] == [2 * of[3] for of in two.copies]
        assert one.gradient_bytes == two.gradient_bytes
        assert one.meetings == two.meetings


def test_overlap_is_of_the_first_execution_without_a_graph(specs: dict[str, ModelSpec]) -> None:
    names = ("float32+cuda_graph", "bfloat16", "float32")
    plan = executed(specs, *names, device="cuda").plan
    assert [case.execution for case in cases(plan, InPlaceCase, is_overlap=True)] == ["bfloat16"]
    graphs = executed(specs, names[0], device="cuda").plan
    assert cases(graphs, InPlaceCase, is_overlap=True) == []


def test_fresh_pages_are_priced_for_every_execution(specs: dict[str, ModelSpec]) -> None:
    plan = executed(specs, "float32", "bfloat16+channels_last").plan
    large = cases(plan, LayerCase, purpose="what fresh pages cost", ranks=1)
    items = [(case.execution, case.layer.output_items) for case in large]
    assert sorted(items) == [
        *(("bfloat16", 2**20 * n) for n in (24, 64)),
        *(("float32", 2**20 * n) for n in (12, 32)),
    ]


def test_nccl_is_told_what_the_tuner_export_compares(specs: dict[str, ModelSpec]) -> None:
    """On every p: every algorithm with every protocol, on the sizes of NCCL's own choice."""
    nccl: dict[str, Any] = {"libraries": ("torch_mpi", "nccl"), "device": "cuda"}
    plan = vgg(cluster(4), specs, (2, 4), **nccl).plan
    told = [case for case in collectives(plan) if case.algorithm]
    assert {(case.tier, case.device, case.ranks) for case in told} == {(2, "cuda", 4)}
    rest = {"ring/ll", "ring/ll128", "ring/simple", "nvls/simple"}
    expected = {
        "allreduce": rest | {"tree/ll", "tree/ll128", "tree/simple"},
        "allgather": rest,
        "reduce_scatter": rest,
    }
    for p, fewest in ((2, 4), (4, 6)):
        own = {"library": "nccl", "group_size": p, "algorithm": "", "cold": False}
        of_p = [case for case in told if case.group_size == p]
        for operation, choices in expected.items():
            assert {case.told for case in of_p if case.operation == operation} == choices
            beside = {case.nbytes for case in collectives(plan, operation=operation, **own)}
            for how in choices:
                mine = [case for case in of_p if (case.operation, case.told) == (operation, how)]
                assert len(mine) >= fewest and {case.nbytes for case in mine} <= beside
    assert len(told) < 300
    pat = vgg(cluster(4), specs, (4,), algorithms=("pat",), **nccl).plan
    assert {case.operation for case in collectives(pat, algorithm="pat")} == {
        "allgather",
        "reduce_scatter",
    }
    for none in ({**nccl, "algorithms": ()}, {**nccl, "libraries": ("torch_nccl",)}):
        untold = vgg(cluster(4), specs, (4,), **none).plan
        assert not any(case.algorithm for case in collectives(untold))


def test_graphs_are_planned_where_they_are_asked_for(specs: dict[str, ModelSpec]) -> None:
    nccl: dict[str, Any] = {"libraries": ("torch_nccl", "nccl"), "device": "cuda"}
    plain = vgg(cluster(4), specs, (2, 4), **nccl).plan
    plan = vgg(cluster(4), specs, (2, 4), graphs=True, **nccl).plan
    found = [case for case in collectives(plan) if case.mode == "graph"]
    assert [case for case in plan.cases if case not in found] == list(plain.cases)
    assert {(case.library, case.operation, case.group_size, case.tier) for case in found} == {
        (library, operation, 4, 2)
        for library in nccl["libraries"]
        for operation in ("allreduce", "allgather", "reduce_scatter")
    }
    sizes = {case.nbytes for case in found if case.operation == "allreduce"}
    assert sizes <= {case.nbytes for case in collectives(plain, operation="allreduce")}
    with pytest.raises(InputError, match="graphs are of libraries nccl and torch_nccl"):
        request_of(QUICK, p=(2,), graphs=True)


@pytest.mark.parametrize(
    ("version", "is_left_out"), [("2.29.7", True), ("2.31.2", False), ("2.32.3", False)]
)
def test_an_nccl_that_cannot_be_told_is_left_its_own_choice(
    specs: dict[str, ModelSpec], version: str, is_left_out: bool
) -> None:
    machine = cluster(2)
    machine.hosts[0].versions["nvidia-nccl-cu13"] = version
    drafted = vgg(machine, specs, (2,), libraries=("nccl",), device="cuda")
    assert any(case.algorithm for case in collectives(drafted.plan)) != is_left_out
    line = f"algorithms of NCCL: a call can name one from NCCL 2.31 on, and {version} is installed"
    assert (line in drafted.left_out) == is_left_out


def test_optimizers(specs: dict[str, ModelSpec]) -> None:
    plan = vgg(cluster(1), specs, (1,), optimizers=("sgd", "adam")).plan
    for optimizer in ("sgd", "adam"):
        updates = cases(plan, TensorsCase, operation="update", optimizer=optimizer)
        assert len(updates) == len({c.key for c in updates}) > 10
    assert [case.optimizer for case in cases(plan, InPlaceCase)] == ["sgd", "adam"]


def test_models_that_share_layers_share_cases() -> None:
    """Two nets, the second is the first under another name: no more to measure, and more purposes."""
    nets = {"a.json": mlp([12, 8, 3], "a"), "b.json": mlp([12, 8, 3], "b")}

    def made(models: tuple[str, ...]) -> Draft:
        return draft(Request(models=models, p=(1,), batch_per_rank=4), cluster(1), nets)

    one, two = made(("a.json",)), made(("a.json", "b.json"))
    assert [case.id for case in two.plan.cases] == [case.id for case in one.plan.cases]
    large = 4  # of no model: for fresh pages and for the peaks
    assert two.duplicates == 2 * one.duplicates + len(one.plan.cases) - large
    first, *_ = cases(two.plan, LayerCase)
    assert first.purpose == "fc1 of a serial 1; fc1 of b serial 1"


def test_the_smallest_tier_is_kept() -> None:
    """In one net a layer is most of the cost, in another next to nothing: measured early."""
    big = {"a.json": mlp([40, 40], "a"), "b.json": mlp([40, 40, 4000, 4000], "b")}
    request = Request(models=("b.json", "a.json"), p=(1,), batch_per_rank=4)
    for chosen, tier in ((("b.json",), 1), (("b.json", "a.json"), 0)):
        plan = draft(request.model_copy(update={"models": chosen}), cluster(1), big).plan
        found = [
            case.tier
            for case in cases(plan, LayerCase, passes="whole", needs_input_grad=False)
            if case.layer.parameter_shapes == ((40, 40), (40,))
        ]
        assert found == [tier]


def test_points(specs: dict[str, ModelSpec]) -> None:
    """One rank is serial whatever the strategy; a hybrid takes the largest group of a node."""
    request = Request(models=("vgg16-mini",), strategies=tuple(STRATEGIES), p=(1, 2, 8))
    machine = planned_launches(request, cluster(4, nodes=2))
    points, left_out = points_of(request, machine, specs)
    single = ("data", "fully_sharded", "spatial", "pipeline", "filter", "channel", "tensor")
    expected = ["serial 1", *(f"{strategy} {p}" for p in (2, 8) for strategy in single)]
    expected += ["data+filter 2x4", "data+spatial 2x4"]
    assert [point.label for point in points] == [f"vgg16-mini {label}" for label in expected]
    assert [line for line in left_out if "sequence" not in line] == [
        f"{strategy} 2: p = 2 is not p1 x p2 with both at least 2"
        for strategy in ("data+filter", "data+spatial")
    ]


def test_a_hybrid_falls_back_to_smaller_groups(specs: dict[str, ModelSpec]) -> None:
    """cosmoflow-mini ends in 4 outputs: groups of 8 cannot share them, groups of 4 can."""
    request = Request(models=("cosmoflow-mini",), strategies=("data+filter",), p=(16,))
    points, _ = points_of(request, planned_launches(request, cluster(8, nodes=2)), specs)
    assert [point.label for point in points] == ["cosmoflow-mini data+filter 4x4"]


def test_nothing_to_plan(specs: dict[str, ModelSpec]) -> None:
    with pytest.raises(InputError, match="serial runs on 1 rank: add 1 to p"):
        vgg(cluster(2), specs, (2,), strategies=("serial",))
    with pytest.raises(InputError, match="so p is at most 16"):
        vgg(cluster(2), specs, (32,), strategies=("filter",))


def test_effort_and_seed_are_in_the_plan(specs: dict[str, ModelSpec]) -> None:
    request = request_of(QUICK, p=(2,), seed=9, budget_s=7.5, target=0.05)
    plan = draft(request, cluster(2), specs).plan
    assert (plan.budget_seconds, plan.launches, plan.seed, plan.sizes) == (7.5, 3, 9, [2])
    assert plan.target_half_width == 0.05
    assert plan == draft(request, cluster(2), specs).plan
    assert Plan.model_validate_json(plan.model_dump_json()) == plan


def test_plan_of_a_run_directory(tmp_path: Path) -> None:
    """Written once with its request; found again; another request is refused with what differs."""
    request = request_of(QUICK, models=("vgg16-mini",), p=(1, 2), seed=1)
    plan = plan_for_run(tmp_path / "run", request, cluster(2))
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    assert set(before) == {"plan.json", "plan.toml"}
    assert Request.read(tmp_path / "run" / "plan.toml") == request
    assert plan_for_run(tmp_path / "run", request, cluster(2)) == plan
    other = request_of(QUICK, models=("vgg16-mini",), p=(1, 4), seed=1, budget_s=60.0)
    with pytest.raises(
        InputError, match=r"\(p was 1,2, now 1,4; budget_s was 30.0, now 60.0\); give"
    ):
        plan_for_run(tmp_path / "run", other, cluster(2))
    with pytest.raises(InputError, match="its models, the machine or this program have changed"):
        plan_for_run(tmp_path / "run", request, cluster(1))
    assert {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()} == before
    (tmp_path / "run" / "plan.toml").unlink()
    with pytest.raises(InputError, match=r"its plan\.toml is missing"):
        plan_for_run(tmp_path / "run", other, cluster(2))


def test_ids_are_those_of_earlier_runs(specs: dict[str, ModelSpec]) -> None:
    """Ids of the first calibrations with strategies (2026-11-21), which measured MPI without torch's
    share of a call: another id is other work.

    Where one must change, runs that were begun are measured anew: say so in the changelog.
    """
    plan = default(FULL, specs, libraries=("mpi",)).plan
    golden = {
        "mpi allreduce 8 B on 4 ranks": "501702f0c018d236",
        "mpi halo 8 B on 4 ranks as 2x2": "3d20af7ee8e0804a",
        "vgg16-mini data in place on 2 ranks": "b8582782123f4486",
        "linear -> 4x512 on 1 ranks": "0061da3b3e159ebf",
        "pack of 32 tensors on 2 ranks": "6dc4c771b2d1df0a",
    }
    ids = {case.label: case.id for case in plan.cases}
    assert {label: ids[label] for label in golden} == golden
    again = default(FULL, specs, libraries=("mpi",)).plan
    assert [case.id for case in plan.cases] == [case.id for case in again.cases]


def test_batch_of() -> None:
    vgg, hand = spec("vgg16-mini"), mlp([4, 3])
    assert batch_of(vgg, 3) == batch_of(hand, 3) == 3
    assert batch_of(vgg, None) == entry("vgg16-mini").batch_per_rank
    assert batch_of(hand.model_copy(update={"built_by": "mine:net"}), None) == OWN_BATCH
    with pytest.raises(InputError, match="no batch of its own"):
        batch_of(hand, None)


def test_fully_sharded(specs: dict[str, ModelSpec]) -> None:
    """Its collectives, packed units and shards, their update; in place data's and meetings."""
    made = {
        names: vgg(cluster(2), specs, (2,), strategies=names).plan
        for names in (("data",), ("fully_sharded",), ("data", "fully_sharded"))
    }
    alone = made["fully_sharded",]
    model = specs["vgg16-mini"]
    division = Division("fully_sharded", 2, 2 * 16)
    sent = {(case.operation, case.nbytes) for case in cases(alone, CollectiveCase, tier=0)}
    assert {(m.operation, m.nbytes) for m in messages(model, division)} <= sent
    shards = tuple((unit.shard_items(2),) for unit in model_units(model))
    passes = {(case.operation, case.shapes) for case in cases(alone, TensorsCase, tier=0)}
    assert ("update", shards) in passes
    for unit in model_units(model):
        assert {("pack", unit.shapes), ("pack", ((unit.shard_items(2),),))} <= passes
    data, sharded, both = (
        {case.id: case for case in cases(plan, InPlaceCase, is_overlap=False)}
        for plan in made.values()
    )
    (met,) = [case for name, case in sharded.items() if name not in data]
    assert data.keys() < sharded.keys() == both.keys()
    assert met.meetings == (("layerwise", "allgather", 32), ("layerwise", "reduce_scatter", 16))


def test_tensor(specs: dict[str, ModelSpec]) -> None:
    """Layers at the shapes of a part, the sums, the update of what a rank has, and no copies."""
    plan = vgg(cluster(2), specs, (2,), strategies=("tensor",)).plan
    model, division = specs["vgg16-mini"], Division("tensor", 2, 16)
    parts = {
        shard.layer.key(16, needs_input_grad=shard.needs_input_grad)
        for shard in rank_shards(model, division)
        if shard.split
    }
    assert len(parts) == 4  # two linear layers, a ReLU and a dropout between them
    assert parts <= {case.key for case in cases(plan, LayerCase, passes="whole")}
    sent = {(case.operation, case.nbytes) for case in cases(plan, CollectiveCase, tier=0)}
    assert {(m.operation, m.nbytes) for m in messages(model, division)} <= sent
    passes = {(case.operation, case.shapes) for case in cases(plan, TensorsCase, tier=0)}
    assert ("update", rank_parameters(model, division)) in passes
    (whole,) = [of for of in cases(plan, InPlaceCase, is_overlap=False) if of.division == division]
    assert whole.meetings == (("layerwise", "allreduce", 2),) and not whole.copies


def test_tokens_of_tensor() -> None:
    """Beside what tensor runs, parts of tokens, their messages and passes, and whole iterations."""
    model = trace(OneRegion(), (6, 16), "one", "mse").model_copy(update={"built_by": "mine:net"})
    request = Request(models=("one.json",), strategies=("tensor",), p=(2,), batch=8)
    plan = draft(request, cluster(2), {"one.json": model}).plan
    division = Division("tensor", 2, 8, sequence_parallel=True)
    parts = {
        shard.layer.key(8, needs_input_grad=shard.needs_input_grad)
        for shard in rank_shards(model, division)
    }
    assert parts <= {case.key for case in cases(plan, LayerCase, passes="whole")}
    assert any("layer_norm" in key and "|8*3x16" in key for key in parts)
    sent = {(case.operation, case.nbytes) for case in cases(plan, CollectiveCase, tier=0)}
    assert {(m.operation, m.nbytes) for m in messages(model, division)} <= sent
    passes = {(case.operation, case.shapes) for case in cases(plan, TensorsCase, tier=0)}
    whole = ((8, 6, 16),)
    assert {("pack", ((16,), (16,), (16,))), ("concat", whole), ("split", whole)} <= passes
    plain, apart = cases(plan, InPlaceCase, is_overlap=False, strategy="tensor")
    assert apart.division == division and plain.division == Division("tensor", 2, 8)
    assert apart.partial == (tensors_key(((16,), (16,), (16,))), 3, 4 * 48) and not plain.partial
    assert apart.tensors_key == plain.tensors_key
    assert {operation: n for _, operation, n in apart.meetings} == Counter(
        m.operation for m in messages(model, division)[:-1]
    )
    assert Counter(name for name, *_, n in apart.copies for _ in range(n)) == {
        "split": 3,
        "concat": 3,
    }
    assert apart.purpose == "one tensor-sequence 2, whole"


def test_sequence() -> None:
    """Layers at the shapes of a part, all-to-alls, their copies, and the exchange of all weights."""
    model = trace(Gpt(), (8,), "gpt", "cross_entropy").model_copy(update={"built_by": "mine:net"})
    request = Request(models=("gpt.json",), strategies=("sequence",), p=(2,), batch=16)
    plan = draft(request, cluster(2), {"gpt.json": model}).plan
    division = Division("sequence", 2, 16)
    parts = {
        shard.layer.key(16, needs_input_grad=shard.needs_input_grad)
        for shard in rank_shards(model, division)
        if shard.split
    }
    assert parts <= {case.key for case in cases(plan, LayerCase, passes="whole")}
    sent = {(case.operation, case.nbytes) for case in cases(plan, CollectiveCase, tier=0)}
    assert {(m.operation, m.nbytes) for m in messages(model, division)} <= sent
    passes = {(case.operation, case.shapes) for case in cases(plan, TensorsCase, tier=0)}
    assert {("update", model.parameter_shapes), ("pack", model.parameter_shapes)} <= passes
    # tokens in front, of two heads; heads in front, of half of the tokens; and of what heads make
    for operation in ("split", "concat"):
        shapes = {of for name, of in passes if name == operation}
        assert {((16, 8, 2, 4),), ((16, 4, 4, 4),), ((16, 8, 8),), ((16, 16, 4),)} <= shapes
    (whole,) = [of for of in cases(plan, InPlaceCase, is_overlap=False) if of.division == division]
    assert whole.meetings == (("layerwise", "all_to_all", 16),)
    assert Counter(name for name, *_, n in whole.copies for _ in range(n)) == {
        "split": 17,
        "concat": 16,
    }


def test_a_model_that_says_how_it_is_built_is_run_in_place() -> None:
    """Like a registered one; of another there are its layers, and a line that says why."""
    built = mlp([12, 8, 3], "built").model_copy(update={"built_by": "mine:net"})
    specs = {"built.json": built, "hand.json": mlp([12, 8, 3], "hand")}
    request = Request(models=tuple(specs), p=(1, 2), batch_per_rank=2, executions=("float32",))
    drafted = draft(request, cluster(2), specs)
    whole = [case for case in drafted.plan.cases if isinstance(case, InPlaceCase)]
    assert {(case.model, case.strategy, case.ranks) for case in whole} == {
        ("built", "serial", 1),
        ("built", "data", 2),
    }
    assert {case.is_overlap for case in whole} == {False, True}
    assert {case.own for case in whole} == {Own("mine:net", (12,), "cross_entropy", 3)}
    [line] = drafted.left_out
    assert line.startswith("hand is predicted from its layers alone")
