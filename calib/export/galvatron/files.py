"""Galvatron's hardware profile: bandwidths and times of groups of ranks, and the cost of overlap.

galvatron/utils/config_utils.py of PKU-DAIR/Hetu-Galvatron reads it, galvatron/core/profiler writes it,
galvatron/core/cost_model uses it. N nodes of G ranks, p = N G, N G / 2, ... 2; a MB there is 2^20 bytes:

- allreduce_bandwidth_{N}nodes_{G}gpus_per_node.json, allreduce_size_{p}_consec_{1,0} in MiB/ms: time =
  2 (p-1)/p m / bandwidth. 1 are adjacent ranks, 0 those that are N G / p apart; all groups at once.
- p2p_bandwidth_...json, pp_size_{k} in MiB/ms: time = m / bandwidth of a message from one of k stages to
  the next, by all pipelines at once. Of two nodes or more one message of a pipeline crosses nodes, of
  two racks or more one crosses racks; it is this one, as stages wait for the slowest (profile_p2p.py
  times the one in the middle of the pipeline).
- sp_time_...json, {allreduce,all2all}_size_{p}_{MB}MB_time in ms (calib/export/galvatron/times.py). The
  MB are of what each rank gives (profile_all2all.py, nccl-tests, the published files); the cost model
  looks an all2all up by the tensor of all p ranks together, so its times of sequence parallelism are
  too long, with any file.
- overlap_coefficient.json, overlap_coe: what runs beside something else takes that much longer. A
  backward of B and an exchange of C <= B take B + (coe - 1) C (bct_dp_overlap); here they take
  B + C - eta C. So coe = 2 - eta.

It cannot hold start-up times of allreduce and p2p, pieces, other operations, levels, contention of
other layouts, layers and memory, nor any interval.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from calib.export.about import ranks_in_words
from calib.export.collapse import collapse_of, least_relative
from calib.export.galvatron.times import Chosen, times_of
from calib.export.measured import (
    SECTIONS,
    WHERE,
    extrapolated,
    other_sections,
    other_times,
    sizes_in_words,
    stands_in,
    where,
)
from calib.export.reference import Reference, steps, whole_machine
from calib.export.target import Collapse, Exported, ExportPoint, ExportRequest
from calib.foundation.errors import InputError, MissingParameter
from calib.foundation.words import counted, number
from calib.oracle.costs.collectives import CollectiveCosts
from calib.oracle.costs.levels import NODE, RACK, SYSTEM, GroupLayout, Levels
from calib.oracle.projection import BASIS_ORDER

NAME = "galvatron"
FILENAME = "galvatron"
DIRECTORY = True
RECEIVES = "allreduce and p2p bandwidths, allreduce and all-to-all times, the overlap coefficient"
LOSES = (
    "start-up times and pieces: one bandwidth for all sizes; other operations and p; levels, but as "
    "groups cross them; layers, memory, intervals"
)
NEEDS = "allreduce; p2p, all_to_all and overlap where its other files are wanted"
OPTIONS = frozenset({"nbytes", "nodes"})

MIB = 1 << 20
MOST_RANKS = 1 << 20  # p goes down by halves: the files stay small, and no machine is larger
HALVED = ("allgather", "reduce_scatter")  # what half an allreduce of sp_time stands for there
OPENED = "Galvatron opens that file before a search, so keep one of its own there"


@dataclass
class Parts:
    """What has been made so far."""

    files: dict[str, str] = field(default_factory=dict)
    holds_for: list[str] = field(default_factory=list)
    collapses: list[Collapse] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    written: set[str] = field(default_factory=set)  # operations


def export(request: ExportRequest) -> Exported:
    """Up to four JSON files.

    Raises MissingParameter without allreduce, InputError where ranks are no power of two.
    """
    reference = Reference(request)
    reference.needed(NAME, "allreduce")
    parts = Parts()
    nodes, ranks = _machine(request, parts)
    if lack := _lack(reference, "allreduce", nodes, ranks):
        raise MissingParameter(
            f"{NAME} describes {counted(nodes, 'node')} of {counted(ranks, 'rank')}, and {lack}"
        )
    name = f"{nodes}nodes_{ranks}gpus_per_node"
    sizes = _sizes(reference, "allreduce")
    _put(
        parts,
        f"allreduce_bandwidth_{name}.json",
        dict(_allreduce(reference, nodes, ranks, sizes, parts)),
    )
    # of several nodes it is the message between two of them that is written
    if lack := _lack(reference, "p2p", nodes, ranks if nodes == 1 else 1):
        parts.notes.append(f"p2p_bandwidth_{name}.json is not written: {lack}; {OPENED}")
    else:
        ends = _sizes(reference, "p2p")
        _put(parts, f"p2p_bandwidth_{name}.json", dict(_p2p(reference, nodes, ranks, ends, parts)))
    if times := _times(reference, nodes, ranks, parts):
        _put(parts, f"sp_time_{name}.json", times)
    else:
        parts.notes.append(f"sp_time_{name}.json is not written; {OPENED}")
    _overlap(request, reference, nodes * ranks, parts)
    _leave_out(reference, halves(nodes * ranks), parts)
    return Exported(
        parts.files,
        tuple(parts.holds_for),
        tuple(parts.collapses),
        tuple(parts.lost),
        tuple(parts.notes),
        reference.library,
    )


def _leave_out(reference: Reference, ranks: list[int], parts: Parts) -> None:
    """What these parameters have and the files have not."""
    bandwidths = " and ".join(sorted(parts.written & {"allreduce", "p2p"}))
    found = [f"start-up times of {bandwidths}: a bandwidth has none"]
    found += other_times(reference, parts.written)
    for operation in sorted(parts.written - {"p2p"}):
        known = {p for place in reference.places(operation) for p in place.ranks}
        if others := sorted(known.difference(ranks)):
            found.append(f"times of {operation} on {ranks_in_words(others)} ranks")
    sections = [name for name in SECTIONS if name not in ("overlap", "contention")]
    parts.lost[:0] = [*found, *other_sections(reference.parameters, *sections)]


def _put(parts: Parts, name: str, content: dict[str, float]) -> None:
    parts.files[name] = json.dumps(content, indent=4, allow_nan=False) + "\n"


def _machine(request: ExportRequest, parts: Parts) -> tuple[int, int]:
    """(nodes, ranks of a node), of which all ranks together are a power of two.

    Galvatron halves them. Nodes that nobody asked for are rounded down to such a number.
    """
    nodes, ranks = whole_machine(request)
    if ranks & (ranks - 1):
        raise InputError(f"{NAME} halves its ranks: {ranks} ranks of a node are no power of two")
    if nodes & (nodes - 1):
        if request.nodes:
            raise InputError(f"{NAME} halves its ranks: --nodes {nodes} is no power of two")
        fewer = 1 << (nodes.bit_length() - 1)
        parts.notes.append(f"the machine has {nodes} nodes: written for {fewer}, a power of two")
        nodes = fewer
    if nodes * ranks < 2:
        raise InputError(f"{NAME} describes groups of ranks, and there is one rank; give --nodes 2")
    if nodes * ranks > MOST_RANKS:
        raise InputError(f"{NAME}: {nodes * ranks} ranks are over {MOST_RANKS}; give --nodes")
    return nodes, ranks


def _lack(reference: Reference, operation: str, nodes: int, ranks: int) -> str:
    """What of an operation was not measured on such a machine, and what measures it; "" if nothing."""
    levels = {place.level for place in reference.places(operation)}
    if not levels:
        return f"no {operation} was measured"
    if nodes > 1 and levels == {NODE}:
        return (
            f"no {operation} between nodes was measured (on two nodes `calib calibrate --launcher "
            "slurm` measures it; --nodes 1 needs none)"
        )
    if ranks > 1 and NODE not in levels:
        return f"no {operation} inside a node was measured (`calib measure -n 2 -o RUN` does)"
    return ""


def _sizes(reference: Reference, operation: str) -> tuple[int, int]:
    """The sizes asked for; else of those that were measured the ones from 1 MiB on, if any.

    A bandwidth says nothing of small messages, and Galvatron measures it from 16 MB on.
    """
    low, high = reference.nbytes(operation)
    if reference.request.nbytes is not None or high <= MIB:
        return low, high
    return max(low, MIB), high


def halves(world: int) -> list[int]:
    """p of Galvatron's groups, the largest first: 8, 4, 2."""
    return [world >> k for k in range(world.bit_length() - 1)]


def _bandwidth(
    parts: Parts, points: Sequence[ExportPoint], share: float, what: str, key: str
) -> tuple[str, float]:
    """The key's MiB/ms: of time = share m / bandwidth, with the least mean relative error."""
    moved = [[share * point.nbytes] for point in points]
    (per_byte,) = least_relative(moved, [point.seconds for point in points]).tolist()
    found = [row[0] * per_byte for row in moved]
    bandwidth = 1.0 / per_byte / MIB / 1e3
    written = f"{number(bandwidth)} MiB/ms"
    parts.collapses.append(collapse_of(what, key, written, points, found))
    return key, bandwidth


def _allreduce(
    reference: Reference, nodes: int, ranks: int, ends: tuple[int, int], parts: Parts
) -> Iterator[tuple[str, float]]:
    world, every, layouts = nodes * ranks, list[ExportPoint](), list[GroupLayout]()
    for p in halves(world):
        groups = world // p
        for consecutive in (1, 0) if groups > 1 else (1,):
            stride = 1 if consecutive else groups
            points = [reference.seconds("allreduce", m, p, stride, groups) for m in steps(ends)]
            every += points
            layouts.append(GroupLayout(p, stride, groups))
            apart = "side by side" if consecutive else f"{stride} apart"
            what = f"allreduce by {counted(groups, 'group')} of {p} {apart}"
            key = f"allreduce_size_{p}_consec_{consecutive}"
            yield _bandwidth(parts, points, 2 * (p - 1) / p, what, key)
    parts.notes += stands_in(reference, "allreduce", layouts)
    parts.written.add("allreduce")
    parts.holds_for.append(
        f"allreduce of {sizes_in_words(ends)} on {counted(nodes, 'node')} of "
        f"{counted(ranks, 'rank')}{extrapolated(every, reference.places('allreduce'))}"
    )


def _p2p(
    reference: Reference, nodes: int, ranks: int, ends: tuple[int, int], parts: Parts
) -> Iterator[tuple[str, float]]:
    world, per_rack, every = nodes * ranks, reference.parameters.nodes_per_rack, list[ExportPoint]()
    # where there are several nodes (or racks), some stage sends to the next node (rack)
    farthest, level = (1, NODE) if nodes == 1 else (ranks, RACK)
    if 0 < per_rack < nodes:
        farthest, level = ranks * per_rack, SYSTEM
    of_where = "between nodes" if level == RACK else where(reference.parameters, level)
    layouts = []
    for stages in reversed(halves(world)):
        pipelines = world // stages
        stride = max(pipelines, farthest)
        points = [reference.seconds("p2p", m, 2, stride, pipelines) for m in steps(ends)]
        every += points
        layouts.append(GroupLayout(2, stride, pipelines))
        what = f"p2p by {counted(pipelines, 'pipeline')} of {stages}"
        yield _bandwidth(parts, points, 1.0, what, f"pp_size_{stages}")
    parts.notes += stands_in(reference, "p2p", layouts)
    parts.written.add("p2p")
    used = {
        level for names in map(Levels.of(reference.parameters).names, layouts) for level in names
    }
    unused = {place.level for place in reference.places("p2p")} - used
    lost = dict.fromkeys(where(reference.parameters, level) for level in WHERE if level in unused)
    parts.lost += [f"times of p2p {place}" for place in lost]
    parts.holds_for.append(
        f"p2p of {sizes_in_words(ends)} {of_where}{extrapolated(every, reference.places('p2p'))}"
    )


def _times(reference: Reference, nodes: int, ranks: int, parts: Parts) -> dict[str, float]:
    """The milliseconds of sp_time, of those p whose times Galvatron's line describes."""
    world, found = nodes * ranks, dict[str, float]()
    names = {"allreduce": "allreduce"}
    if lack := _lack(reference, "all_to_all", nodes, ranks):
        parts.notes.append(
            f"sp_time has no all2all times: {lack}; Galvatron ends where it weighs Ulysses' sequence "
            "parallelism, so search without it"
        )
    else:
        names["all_to_all"] = "all2all"
    for operation, name in names.items():
        every = [times_of(reference, operation, p, world // p) for p in halves(world)]
        chosen = [times for times in every if times.points]
        for times in chosen:
            found |= {
                f"{name}_size_{point.ranks}_{point.nbytes // MIB}MB_time": point.seconds * 1e3
                for point in times.points
            }
            parts.collapses.append(times.collapse(name))
        _about_times(reference, operation, name, every, parts)
        if chosen and operation == "allreduce":
            known = [of for of in HALVED if not _lack(reference, of, nodes, ranks)]
            parts.notes.append(_about_halves(reference, chosen, known))
    return found


def _about_times(
    reference: Reference, operation: str, name: str, every: Sequence[Chosen], parts: Parts
) -> None:
    """What sp_time holds for, and what of an operation it has not."""
    points = [point for times in every for point in times.points]
    if points:
        parts.written.add(operation)
        sizes = sizes_in_words((min(p.nbytes for p in points), max(p.nbytes for p in points)))
        rest = extrapolated(points, reference.places(operation))
        parts.holds_for.append(f"sp_time: {name} of {sizes}{rest}")
    beyond = [point for point in points if point.basis == BASIS_ORDER[-1]]
    if beyond:
        parts.notes.append(
            f"sp_time: {len(beyond)} of {len(points)} {name} times are extrapolated beyond the measured "
            f"sizes, ranks or groups at once, first {beyond[0].nbytes // MIB} MB on {beyond[0].ranks} "
            "ranks"
        )
    for why in dict.fromkeys(times.why for times in every if times.why):
        ranks = ranks_in_words(sorted(times.ranks for times in every if times.why == why))
        parts.notes.append(f"sp_time, {name} on {ranks} ranks: {why}")


def _about_halves(reference: Reference, chosen: Sequence[Chosen], known: Sequence[str]) -> str:
    """What Galvatron makes of the allreduce times, beside what it stands for where that was measured."""
    found = []
    for operation in known:
        ratios = [
            point.seconds
            / 2
            / reference.seconds(operation, point.nbytes, point.ranks, 1, times.groups).seconds
            for times in chosen
            for point in times.points
        ]
        found.append(f"{min(ratios):.2g} to {max(ratios):.3g} times the {operation}")
    beside = (
        f": that is {' and '.join(found)} here" if found else ", of which none was measured here"
    )
    return (
        f"sp_time: half an allreduce is what Galvatron takes for an {' or a '.join(HALVED)}{beside}"
    )


def _overlap(request: ExportRequest, reference: Reference, world: int, parts: Parts) -> None:
    """overlap_coefficient.json, where eta was measured."""
    costs = CollectiveCosts(request.parameters)
    law = costs.overlap(world)
    if law is None:
        parts.notes.append(
            f"overlap_coefficient.json is not written: no overlap was measured; {OPENED}"
        )
        return
    eta = law.eta
    _put(parts, "overlap_coefficient.json", {"overlap_coe": 2.0 - eta.value})
    if {record.eta.value for record in request.parameters.overlap} - {eta.value}:
        parts.lost.append(
            f"eta of other ranks: overlap_coe is of {eta.value:.3f}, that nearest {world}"
        )
    if law.slowdown.value > 0:
        parts.lost.append(
            f"iterations with overlap took {law.slowdown.value:.1%} longer than without: overlap_coe "
            "is that of two parts one after the other"
        )
    beyond = "" if costs.knows_overlap(world) else f" (not measured on {world} ranks)"
    parts.notes.append(
        f"overlap_coe is 2 - eta = {2 - eta.value:.3f}, from {2 - eta.high:.3f} to {2 - eta.low:.3f}"
        f"{beyond}; it is right where the exchange takes no longer than the backward"
    )
