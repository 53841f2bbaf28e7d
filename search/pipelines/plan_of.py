"""A pipeline as a Plan: layers with their stage, stages, phases, memory, the timeline."""

from __future__ import annotations

import math
from collections.abc import Sequence

from calib.oracle.projection import PhaseTime
from calib.search.pipelines.candidates import PipelineCandidate, PipelineOptions
from calib.search.pipelines.memory import stage_bytes
from calib.search.pipelines.partition import Split
from calib.search.pipelines.work import PricedStates, batch_of, machines_of
from calib.search.plan import (
    Baseline,
    Certificate,
    Event,
    PlanLayer,
    PlanStage,
    Searched,
    SearchedPlan,
)
from calib.search.request import SearchRequest
from calib.search.timelines.schedules import in_flight
from calib.search.timelines.simulation import lower_bound

MOST_EVENTS = 3000
StageRow = dict[str, float | int | str]


def plan_of(
    request: SearchRequest,
    asked: PipelineOptions,
    found: PipelineCandidate,
    rows: list[StageRow],
    baselines: tuple[Baseline, ...],
    notes: tuple[str, ...],
    searched: Searched,
) -> SearchedPlan:
    """The record of the pipeline that was found."""
    devices, machines = request.devices, machines_of(request)
    nodes, per_node = math.prod(machines[1:]), machines[0]
    if machines == (devices.p,):
        nodes, per_node = devices.nodes, devices.per_node
    phases = {name: as_sure(found.pieces, seconds) for name, seconds in phases_of(found).items()}
    return SearchedPlan(
        **request.head(batch=batch_of(request)[0], nodes=nodes, devices_per_node=per_node),
        layers=layers_of(found),
        stages=stages_of(found),
        details=details_of(found, asked),
        phases=phases,
        total=as_sure(found.pieces, found.seconds),
        bytes_per_device=found.device_bytes,
        searched=searched,
        certificate=certificate_of(found),
        baselines=baselines,
        timeline=timeline_of(found),
        tables={"micro-batches": rows, "stages": stage_rows(found)},
        notes=notes,
    )


def as_sure(pieces: PricedStates, seconds: float) -> PhaseTime:
    """Seconds with the relative interval of all that the model computes."""
    of = pieces.sure
    low, high = (of.low / of.seconds, of.high / of.seconds) if of.seconds else (1.0, 1.0)
    return PhaseTime(value=seconds, low=seconds * low, high=seconds * high, basis=of.basis)


def phases_of(found: PipelineCandidate) -> dict[str, float]:
    """Seconds that add up to the plan's: those of the slowest stage, or of the average device."""
    devices, times = len(found.schedule.programs), found.times
    if found.schedule.asynchronous:
        each = [
            (f + b) / r
            for f, b, r in zip(times.forward, times.backward, found.replicas, strict=True)
        ]
        slowest = max(range(len(each)), key=each.__getitem__)
        r = found.replicas[slowest]
        whole = {"forward": times.forward[slowest] / r, "backward": times.backward[slowest] / r}
        if found.holding.recompute:
            whole["recompute"] = times.forward[slowest] / r
        return whole | {"exchange": max(0.0, found.seconds - sum(whole.values()))}
    whole = {}
    for of in found.simulated.done:
        if of.kind != "send":
            whole[of.kind] = whole.get(of.kind, 0.0) + (of.stop_s - of.start_s) / devices
    return whole | {"waiting": max(0.0, found.seconds - sum(whole.values()))}


def layers_of(found: PipelineCandidate) -> tuple[PlanLayer, ...]:
    """Stage by stage, in topological order."""
    pieces, made = found.pieces, []
    for number, of in enumerate(found.partition.levels[-1]):
        replicas = found.replicas[number]
        choice = f"stage {number}" + f" x {replicas}" * (replicas > 1)
        made += [
            PlanLayer(
                name=pieces.names[i],
                kind=pieces.kinds[i],
                stage=number,
                choice=choice,
                degrees={"sample": replicas},
            )
            for i in pieces.states.layers(of.start, of.end)
        ]
    return tuple(made)


def stages_of(found: PipelineCandidate) -> tuple[PlanStage, ...]:
    """The stages of the outermost level, with those inside a machine."""
    levels, place = found.partition.levels, found.pieces.states.place
    bytes_of = {of.start: n for of, n in zip(levels[-1], found.stage_bytes, strict=True)}

    def stage(of: Split, depth: int) -> PlanStage:
        below = levels[depth + 1] if depth + 1 < len(levels) else ()
        inside = (x for x in below if of.start <= x.start and x.end <= of.end)
        inner = tuple(stage(x, depth + 1) for x in inside)
        held = max((x.bytes_per_device for x in inner), default=bytes_of.get(of.start, 0))
        return PlanStage(
            first=place(of.start),
            stop=place(of.end),
            replicas=of.replicas,
            seconds=of.compute_s / of.replicas,
            bytes_per_device=held,
            inner=inner,
        )

    return tuple(stage(of, 0) for of in levels[0])


def details_of(found: PipelineCandidate, asked: PipelineOptions) -> dict[str, str]:
    """The schedule in words."""
    details = {"schedule": asked.schedule, "microbatches": str(found.microbatches)}
    if found.schedule.asynchronous:
        details["in flight (NOAM)"] = str(in_flight(found.replicas)[0])
        details["weight versions"] = ",".join(map(str, found.simulated.by_stage))
    if asked.chunks > 1:
        details["chunks"] = str(asked.chunks)
    if asked.recompute:
        details["recompute"] = "yes"
    details["idle"] = f"{found.simulated.idle_share:.4f}"
    details["single_stage_s"] = repr(found.partition.single_stage_s * found.microbatches)
    return details


def stage_rows(found: PipelineCandidate) -> list[StageRow]:
    """A row for each innermost stage."""
    rows: list[StageRow] = []
    for number, of in enumerate(found.partition.levels[-1]):
        flying = found.simulated.by_stage[number]
        rows.append(
            {
                "first": found.pieces.states.place(of.start),
                "stop": found.pieces.states.place(of.end),
                "devices": found.replicas[number],
                "compute_s": of.compute_s,
                "send_s": found.times.send_forward[number],
                "update_s": found.times.update[number],
                "in_flight": flying,
                "weight_versions": flying if found.holding.stashing else 1,
                "bytes": stage_bytes(found.pieces, found.holding, of.start, of.end, flying),
            }
        )
    return rows


def timeline_of(found: PipelineCandidate) -> tuple[Event, ...]:
    """Work and messages by when they begin; only the first of a long pipeline."""
    made = sorted(found.simulated.done, key=lambda of: (of.start_s, of.device))[:MOST_EVENTS]
    return tuple(
        Event(
            row=f"device {of.device}" + (" sends" if of.kind == "send" else ""),
            kind=of.kind,
            label=f"stage {of.stage}, micro-batch {of.microbatch}",
            start_s=of.start_s,
            stop_s=of.stop_s,
        )
        for of in made
        if of.stop_s > of.start_s
    )


def certificate_of(found: PipelineCandidate) -> Certificate:
    """Of the partition itself, or of the schedule against the busiest device."""
    if found.schedule.asynchronous and not (found.searched and found.pieces.states.complete):
        bound = found.partition.single_stage_s / sum(found.replicas)
        return Certificate(
            kind="bound",
            lower_bound_s=bound,
            gap=found.seconds / bound - 1.0 if bound else None,
            why="not all cuts were looked at; all devices busy with compute",
        )
    if found.schedule.asynchronous:
        return Certificate(
            kind="optimal",
            lower_bound_s=found.seconds,
            gap=0.0,
            why="dynamic programming over all partitions, with this memory",
        )
    work = sum(found.simulated.busy_s) / len(found.simulated.busy_s)
    return Certificate.bounded(
        found.seconds,
        max(work, lower_bound(found.schedule, found.times)),
        f"of these stages and {found.microbatches} micro-batches: the busiest device and the way "
        "of one micro-batch" + "; their slowest stage is as fast as can be" * found.searched,
    )


def space_of(found: PipelineCandidate, machines: Sequence[int]) -> float:
    """log10 of the ways to cut a chain of these states for so many machines, as one level."""
    states = len(found.pieces.states.compute_s)
    devices = min(math.prod(machines), 10**4)
    # compositions of the devices times cuts of the states, by number of stages
    ways = sum(
        math.comb(states - 1, k) * math.comb(devices - 1, k) for k in range(min(states, devices))
    )
    return math.log10(ways) if ways else 0.0
