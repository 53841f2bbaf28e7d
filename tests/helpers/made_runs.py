"""A whole measured run made by hand: rows of every case of a plan, with seconds in closed form.

They go through microbench/rows.py, as those of a measurement do. No two repetitions are equal, but
the same plan gives the same run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import product

import pyarrow as pa

from calib.fitting.measured_run import MeasuredRun
from calib.fitting.sections.memory import naive_bytes
from calib.foundation.execution import execution_of
from calib.foundation.layer_keys import parse
from calib.foundation.layers import LayerShape
from calib.microbench.cases import (
    BLOCKING,
    OVERLAPPED,
    Case,
    CollectiveCase,
    InPlaceCase,
    LayerCase,
    Plan,
    SparseCase,
    TensorsCase,
)
from calib.microbench.groups import layout, level_of
from calib.microbench.machine.placement import Placement
from calib.microbench.records.cluster import Cluster
from calib.microbench.records.manifest import Manifest
from calib.microbench.records.samples import Samples
from calib.microbench.rows import case_end, to_table
from calib.microbench.timing.repeat import Repetitions
from calib.training.in_place.iterations import phases_of

LAUNCHES, REPETITIONS = 2, 6
NOISE = 0.02
CALL_S, S_PER_FLOP, S_PER_BYTE = 5e-6, 1e-11, 1e-10
MEETING_S = 1e-5
# of an iteration in place, beside its parts alone; of cold buffers, beside warm ones
IN_PLACE, GRAPH, COLD = 1.1, 1.02, 1.3
BURST_BYTES = 3e5  # of messages both ways after work, of which nine tenths are saved
IMAGES = 0.9  # of a layer with channels last, beside the same without
HIDDEN = 0.5  # of an exchange by the backward


def made_run(plan: Plan, cluster: Cluster) -> MeasuredRun:
    """The run of a plan on a cluster, whose launches fill one node after the other."""
    tables, ends = [], []
    launches = [*product(range(LAUNCHES), plan.sizes)]
    for number, (_, ranks) in enumerate(launches):
        placement = placed(cluster, ranks)
        for case in plan.cases_for(ranks):
            result = repetitions(case, placement, number)
            tables.append(to_table(case, result, placement, number, 0.0, []))
            ends.append(case_end(case, number, 0.1, result))
    manifest = Manifest(
        program_version="0",
        cluster_name=cluster.name,
        cluster_fingerprint=cluster.fingerprint,
        seed=0,
        target_half_width=0.025,
        cases=ends,
    )
    return MeasuredRun(Samples(pa.concat_tables(tables)), plan, cluster, manifest, "ab" * 32)


def placed(cluster: Cluster, ranks: int) -> Placement:
    """The ranks of a launch on the hosts of a cluster."""
    hosts = [cluster.hosts[rank // cluster.ranks_per_node] for rank in range(ranks)]
    return Placement(
        hosts=[host.name for host in hosts],
        cores=[[rank] for rank in range(ranks)],
        ranks_per_node=min(ranks, cluster.ranks_per_node),
        oversubscribed=False,
        racks=[host.rack for host in hosts],
    )


def repetitions(case: Case, placement: Placement, launch: int) -> Repetitions:
    """Repetitions of every operation of a case; all ranks take the same."""
    start = int(case.id[:8], 16) + 3 * launch  # once: an id is a hash of all that a case says
    noise = [1.0 + NOISE * math.sin(start + 7 * n) for n in range(REPETITIONS)]
    ranks = {
        name: [[t * of] * case.ranks for of in noise]
        for name, t in seconds_of(case, placement).items()
    }
    memory = peaks(case) if isinstance(case, InPlaceCase) else {}
    return Repetitions(ranks=ranks, stopped_by="interval", half_width=0.01, memory=memory)


def seconds_of(case: Case, placement: Placement) -> Mapping[str, float]:
    """Operation -> seconds."""
    if isinstance(case, CollectiveCase):
        groups = layout(placement, case.group_size, case.stride, case.groups)
        far = any(level_of(placement, group) != "node" for group in groups)
        rounds = math.log2(case.group_size)
        at_once = case.cold and case.operation == "p2p_both"
        cold = COLD if case.cold and not at_once else 1.0
        per_byte = S_PER_BYTE * (5 if far else 1) * case.groups * cold
        nbytes = case.nbytes - (0.9 * min(case.nbytes, BURST_BYTES) if at_once else 0.0)
        return {case.operation: 2e-5 * (5 if far else 1) * rounds + nbytes * per_byte}
    if isinstance(case, LayerCase):
        forward = layer_s(case.layer, case.batch, case.execution)
        if case.passes == "parts":
            data = {"backward_data": forward} if case.needs_input_grad else {}
            return {**data, "backward_weight": 1.2 * forward}
        learns = case.needs_input_grad or case.layer.parameter_shapes
        return {"forward": forward, **({"backward": 2.2 * forward} if learns else {})}
    if isinstance(case, TensorsCase):
        count = case.parts if case.parts > 1 else len(case.shapes)
        items = execution_of(case.execution).items
        shards = case.operation in ("concat", "split")
        each = items.activation_bytes if shards else items.weight_bytes
        seconds = tensors_s(count, each * sum(map(math.prod, case.shapes)))
        names = ("pack", "unpack") if case.operation == "pack" else (case.operation,)
        return dict.fromkeys(names, seconds)
    if isinstance(case, SparseCase):
        return {case.method: 1e-4 + 8e-4 / case.partitions + 1e-5 * case.partitions}
    return overlap_s(case) if case.is_overlap else in_place_s(case)


def layer_s(layer: LayerShape, batch: int, execution: str) -> float:
    """Forward of a layer alone: half the bytes take half the time, also of operations."""
    of = execution_of(execution)
    share = of.items.activation_bytes / 4 * (IMAGES if of.channels_last else 1.0)
    work = S_PER_FLOP * layer.forward_flops(batch) + S_PER_BYTE * layer.moved_bytes(batch)
    return CALL_S + share * work


def tensors_s(count: int, nbytes: float) -> float:
    """A pass over tensors alone."""
    return 1e-6 + 2e-7 * count + S_PER_BYTE * nbytes


def overlap_s(case: InPlaceCase) -> dict[str, float]:
    """Whole iterations with the exchange overlapped and without, and two phases of the latter."""
    exchange = 2e-5 + S_PER_BYTE * case.gradient_bytes
    own = in_place_s(case)
    whole = own["forward"] + own["backward"] + exchange
    return {
        OVERLAPPED: whole - min(HIDDEN * exchange, own["backward"]),
        BLOCKING: whole,
        "backward": own["backward"],
        "exchange": exchange,
    }


def in_place_s(case: InPlaceCase) -> dict[str, float]:
    """The phases of an iteration, and each layer in it; fully sharded the meetings alone."""
    if case.division.shards:
        return {"layerwise": MEETING_S * sum(count for _, _, count in case.meetings)}
    each = {}
    for name, key in zip(case.layer_names, case.layer_keys, strict=True):
        found = parse(key)
        assert found is not None
        each[name] = layer_s(found.shape, found.batch, found.execution)
    more = GRAPH if execution_of(case.execution).cuda_graph else IN_PLACE
    forward = more * sum(each.values()) * case.division.segments
    seconds = {"forward": forward, "backward": 2.2 * forward}
    weights = IN_PLACE * tensors_s(50, case.gradient_bytes)
    for phase in phases_of(case)[2:]:
        if phase in ("halo", "layerwise"):
            calls = sum(count for of, _, count in case.meetings if of == phase)
            seconds[phase] = MEETING_S * calls
        elif phase == "copies":
            copied = [tensors_s(parts, nbytes) * n for _, _, parts, nbytes, n in case.copies]
            seconds[phase] = IN_PLACE * sum(copied)
        else:
            seconds[phase] = weights
    for direction, times in (("forward", 1.0), ("backward", 2.2)):
        seconds |= {f"layer_{direction}:{name}": times * t for name, t in each.items()}
    return seconds


def peaks(case: InPlaceCase) -> dict[str, int]:
    """Bytes of an iteration as training/footprint.py accounts for them."""
    if not case.division.traits.whole or case.division.shards or case.is_overlap:
        return {}
    naive = naive_bytes(case).total
    on_a_gpu = {"peak_reserved": round(0.8 * naive), "device_used": naive, "outside": 2**28}
    return {"peak_live": round(0.7 * naive), **(on_a_gpu if case.device == "cuda" else {})}
