"""Layers at the shapes that ranks run, and whole models in place."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from calib.fitting.parameters.file import TRAINING_LIBRARIES
from calib.foundation.execution import execution_of
from calib.foundation.layers import LayerShape
from calib.foundation.names import DeviceName, Library
from calib.microbench.cases import Case, InPlaceCase, LayerCase
from calib.oracle.layout.shards import (
    Shard,
    partial_parameters,
    rank_parameters,
    rank_shards,
    saving_late,
)
from calib.oracle.layout.stages import with_boundaries
from calib.oracle.layout.traffic import layer_flows, messages
from calib.oracle.layout.workload import exchanged_weights, layer_keys, workload
from calib.oracle.memory.live_bytes import live_bytes
from calib.oracle.model.recomputed import run_again
from calib.oracle.model.spec import tensors_key
from calib.oracle.strategies.halos import joins
from calib.oracle.strategies.shared_layers import cut_tensors
from calib.planning.points import PlannedLaunches, Point
from calib.planning.request import OptimizerNames, Request
from calib.training.models.specs import entry_of
from calib.training.teams import BACKENDS

# the layers that make up this much of an iteration are measured first
IMPORTANT_SHARE = 0.9
# operations in the time of moving a byte: 14e12 / 0.9e12 on a V100, 5 to 10 on a CPU core
FLOPS_PER_BYTE = 10.0
# results over 32 MiB get fresh pages each time (fitting/parameters/work.py); two sizes price that
LARGE_BYTES = (48 * 2**20, 128 * 2**20)


def layer_cases(request: Request, points: Sequence[Point]) -> list[Case]:
    """Forward and backward of every layer that a rank of a point runs; the costly ones first.

    A module that was not traced cannot be run by itself: it is measured in place.
    """
    cases: list[Case] = []
    for point in points:
        if point.model.is_profiled:
            continue
        for tier, shard in ranked(rank_shards(point.model, point.division)):
            cases += _variants(request, point, shard, tier)
    return cases + _large_cases(request, points)


def _large_cases(request: Request, points: Sequence[Point]) -> list[Case]:
    """Two large elementwise passes for each execution and number of ranks, on a CPU.

    PyTorch keeps a GPU's memory, and no page is fresh.
    """
    if request.device != "cpu":
        return []
    cases: list[Case] = []
    for ranks, execution in sorted({(point.launch, point.model.execution) for point in points}):
        for nbytes in LARGE_BYTES:
            items = nbytes // execution_of(execution).items.activation_bytes
            layer = LayerShape(kind="relu", input_shapes=((items,),), output_shape=(items,))
            case = LayerCase(
                layer=layer,
                batch=1,
                execution=layer.runs_as(execution),
                ranks=ranks,
                tier=1,
                purpose="what fresh pages cost",
            )
            cases.append(case)
    return cases


def _variants(request: Request, point: Point, shard: Shard, tier: int) -> Iterable[LayerCase]:
    """One shard: as autograd runs it, and its passes apart."""
    whole = LayerCase(
        layer=shard.layer,
        batch=shard.batch,
        needs_input_grad=shard.needs_input_grad,
        execution=shard.layer.runs_as(point.model.execution),
        device=request.device,
        ranks=point.launch,
        tier=tier,
        purpose=f"{shard.name} of {point.label}",
    )
    yield whole
    if request.passes_apart and shard.layer.is_product and shard.layer.parameter_shapes:
        yield whole.model_copy(update={"passes": "parts", "tier": 2})


def ranked(shards: Sequence[Shard]) -> list[tuple[int, Shard]]:
    """Shards by falling cost with their tier: 0 until IMPORTANT_SHARE of the iteration, then 1.

    A byte costs as much as FLOPS_PER_BYTE operations.
    """
    costs = [
        shard.layer.forward_flops(shard.batch)
        + FLOPS_PER_BYTE * shard.layer.moved_bytes(shard.batch)
        for shard in shards
    ]
    total, before = sum(costs), 0.0
    found = []
    for cost, shard in sorted(zip(costs, shards, strict=True), key=lambda pair: -pair[0]):
        found.append((0 if before < IMPORTANT_SHARE * total else 1, shard))
        before += cost
    return found


def in_place_cases(request: Request, points: Sequence[Point]) -> list[Case]:
    """Whole iterations of the models that can be built, as a rank of each point runs them.

    With momentum, training's default; with others where memory is accounted for, which they change.
    Of fully sharded training those of data parallelism, whose layers and passes a rank runs as well, and
    on a CPU how its ranks meet, by every library that training can send by.
    """
    built = [
        point
        for point in points
        if point.division.p == point.launch and entry_of(point.model) is not None
    ]
    libraries = training_libraries(request) or list(TRAINING_LIBRARIES[request.device][:1])
    met: list[Case] = [
        in_place_case(point, "momentum", request.device, library)
        for point in built
        if point.division.shards and request.device == "cpu"
        for library in libraries
    ]
    return met + [
        in_place_case(_replicated(point), optimizer, request.device, libraries[0])
        for point in built
        for optimizer in request.optimizers
        if optimizer == "momentum" or point.division.traits.whole
    ]


def training_libraries(request: Request) -> list[Library]:
    """Those of the request that training can send by on its device."""
    training = [library for library, device in BACKENDS.values() if device == request.device]
    return [name for name in request.libraries if name in training]


def _replicated(point: Point) -> Point:
    if not point.division.shards:
        return point
    return replace(point, division=replace(point.division, strategy="data"))


def overlap_cases(
    request: Request, machine: PlannedLaunches, points: Sequence[Point]
) -> list[Case]:
    """Iterations with the exchange overlapped and without, at the largest p, and at that on one host.

    What is hidden depends on who moves the bytes: a core that computes, or a link. Of models that can be
    built, by the first library that training can send by on the device; in the first execution without
    a graph, as the share that is hidden is taken for all.
    """
    plain = [name for name in request.executions if not execution_of(name).cuda_graph]
    libraries = training_libraries(request)
    possible = [
        point
        for point in points
        if point.model.execution in plain[:1]
        and "overlap" in point.division.traits.options
        and 1 < point.division.p == point.launch
        and entry_of(point.model) is not None
    ]
    if not libraries:
        return []
    sizes = {point.division.p for point in possible}
    on_a_host = [p for p in sizes if p <= machine.ranks_per_node]
    measured = {max(of) for of in (sizes, on_a_host) if of}
    chosen = [
        point
        for p in sorted(measured)
        for point in sorted(
            (point for point in possible if point.division.p == p),
            key=lambda point: -point.model.parameter_items,
        )[: request.overlap]
    ]
    return [
        in_place_case(point, request.optimizers[0], request.device, libraries[0]).model_copy(
            update={"is_overlap": True, "purpose": f"what {point.label} hides of its exchange"}
        )
        for point in chosen
    ]


def in_place_case(
    point: Point,
    optimizer: OptimizerNames,
    device: DeviceName = "cpu",
    library: Library = "torch_mpi",
) -> InPlaceCase:
    """Whole iterations, whose ranks meet by `library`, and the parts that they are the sum of."""
    model, items = point.model, point.model.items
    division = with_boundaries(model, point.division)
    batch, work = division.local_batch, workload(model, division)
    keys = {place: key for place, key in enumerate(layer_keys(model, division)) if key is not None}
    places = list(keys)
    runs_again = run_again(model, division.boundaries, saving_late(model, division))
    again = [place for place in places if runs_again[place]]

    def ranks(of: list[int]) -> tuple[int, ...]:
        stages = (bisect_right(division.boundaries, place) for place in of)
        return tuple(stages) if division.traits.stages else ()

    shapes, partial = rank_parameters(model, division), partial_parameters(model, division)
    return InPlaceCase(
        model=model.name,
        division=division,
        ranks=point.launch,
        optimizer=optimizer,
        execution=model.execution,
        device=device,
        library=library,
        layer_keys=tuple(keys.values()),
        activation_bytes=items.activation_bytes * batch * work.output_items,
        tensors_key=tensors_key(shapes),
        ntensors=len(shapes),
        gradient_bytes=items.weight_bytes * sum(math.prod(shape) for shape in shapes),
        partial=(tensors_key(partial), len(partial), exchanged_weights(model, division).nbytes)
        if partial
        else None,
        live_bytes=live_bytes(model, division, optimizer),
        meetings=_meetings(point),
        layer_names=tuple(model.layers[place].name for place in places),
        again_keys=tuple(keys[place] for place in again),
        again_bytes=items.activation_bytes
        * batch
        * sum(work.pieces[work.index[place]].shape.output_items for place in again),
        own=model.own,
        layer_ranks=ranks(places),
        again_ranks=ranks(again),
        copies=_copies(point),
        purpose=f"{point.label}, whole",
    )


def _meetings(point: Point) -> tuple[tuple[str, str, int], ...]:
    """How often the ranks that share layers, or gather them, meet, by phase and operation."""
    if point.division.shards:
        sent = Counter(of.operation for of in messages(point.model, point.division))
        return tuple(("layerwise", *of) for of in sorted(sent.items()))
    if point.division.parts == 1:
        return ()
    counts = Counter((f.phase, f.operation) for f in layer_flows(point.model, point.division))
    return tuple((*of, n) for of, n in sorted(counts.items()))


def _copies(point: Point) -> tuple[tuple[str, str, int, int, int], ...]:
    """The concats and splits that a rank makes of shards, and of halos and their parts."""
    model, division = point.model, point.division
    each = model.items.activation_bytes * division.local_batch
    found: Counter[tuple[str, str, int, int]] = Counter()
    if division.parts > 1 and division.traits.cuts == "image":
        for joined in joins(model, division).values():
            for of in joined:
                found["concat", "", of.pieces, each * of.items] += of.count
    elif division.parts > 1:
        for operation, whole in cut_tensors(model, division).items():
            for shape in whole.values():
                key = tensors_key(((division.local_batch, *shape),))
                found[operation, key, division.parts, each * math.prod(shape)] += 1
    return tuple((*of, n) for of, n in sorted(found.items()))
