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

The files cannot hold start-up times of allreduce and p2p, pieces, other operations, levels, contention
of other layouts, layers, memory, or intervals.
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
    farthest,
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
from calib.oracle.costs.levels import NODE, GroupLayout, Levels
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


def export(request: ExportRequest) -> Exported:
    """Up to four JSON files.

    Raises MissingParameter without allreduce, InputError where ranks are no power of two.
    """
    reference = Reference(request)
    reference.needed(NAME, "allreduce")
    notes: list[str] = []
    profile = Profile(reference, *_machine(request, notes), notes)
    profile.allreduce()
    profile.p2p()
    profile.times()
    profile.overlap()
    return Exported(
        files=profile.files,
        holds_for=tuple(profile.holds_for),
        collapses=tuple(profile.collapses),
        lost=(*profile.left_out(), *profile.lost),
        notes=tuple(profile.notes),
        library=reference.library,
    )


def _machine(request: ExportRequest, notes: list[str]) -> tuple[int, int]:
    """(nodes, ranks of a node), all ranks together a power of two, as Galvatron halves them.

    Nodes that nobody asked for are rounded down to such a number.
    """
    nodes, ranks = whole_machine(request)
    if ranks & (ranks - 1):
        raise InputError(f"{NAME} halves its ranks: {ranks} ranks of a node are no power of two")
    if nodes & (nodes - 1):
        if request.nodes:
            raise InputError(f"{NAME} halves its ranks: --nodes {nodes} is no power of two")
        fewer = 1 << (nodes.bit_length() - 1)
        notes.append(f"the machine has {nodes} nodes: written for {fewer}, a power of two")
        nodes = fewer
    if nodes * ranks < 2:
        raise InputError(f"{NAME} describes groups of ranks, and there is one rank; give --nodes 2")
    if nodes * ranks > MOST_RANKS:
        raise InputError(f"{NAME}: {nodes * ranks} ranks are over {MOST_RANKS}; give --nodes")
    return nodes, ranks


@dataclass
class Profile:
    """The files of `nodes` nodes of `ranks` ranks, one method each; `written` are their operations."""

    reference: Reference
    nodes: int
    ranks: int
    notes: list[str]
    files: dict[str, str] = field(default_factory=dict)
    holds_for: list[str] = field(default_factory=list)
    collapses: list[Collapse] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    written: set[str] = field(default_factory=set)

    @property
    def world(self) -> int:
        return self.nodes * self.ranks

    @property
    def halves(self) -> list[int]:
        """p of Galvatron's groups, the largest first: 8, 4, 2."""
        return [self.world >> k for k in range(self.world.bit_length() - 1)]

    def name(self, kind: str) -> str:
        """What Galvatron calls a file of this machine."""
        return f"{kind}_{self.nodes}nodes_{self.ranks}gpus_per_node.json"

    def put(self, name: str, content: dict[str, float]) -> None:
        """Add a file."""
        self.files[name] = json.dumps(content, indent=4, allow_nan=False) + "\n"

    def lack(self, operation: str, ranks: int) -> str:
        """What was not measured of an operation, and what measures it; "" if all was."""
        levels = {place.level for place in self.reference.places(operation)}
        if not levels:
            return f"no {operation} was measured"
        if self.nodes > 1 and levels == {NODE}:
            return (
                f"no {operation} between nodes was measured (on two nodes `calib calibrate --launcher "
                "slurm` measures it; --nodes 1 needs none)"
            )
        if ranks > 1 and NODE not in levels:
            return f"no {operation} inside a node was measured (`calib measure -n 2 -o RUN` does)"
        return ""

    def sizes(self, operation: str) -> tuple[int, int]:
        """The sizes asked for; else the measured ones, from 1 MiB on if there are such.

        A bandwidth says nothing about small messages, and Galvatron measures it from 16 MB on.
        """
        low, high = self.reference.nbytes(operation)
        if self.reference.request.nbytes is not None or high <= MIB:
            return low, high
        return max(low, MIB), high

    def bandwidth(
        self, points: Sequence[ExportPoint], share: float, what: str, key: str
    ) -> tuple[str, float]:
        """The key's MiB/ms: of time = share m / bandwidth, with the least mean relative error."""
        moved = [[share * point.nbytes] for point in points]
        (per_byte,) = least_relative(moved, [point.seconds for point in points]).tolist()
        found = [row[0] * per_byte for row in moved]
        bandwidth = 1.0 / per_byte / MIB / 1e3
        written = f"{number(bandwidth)} MiB/ms"
        self.collapses.append(collapse_of(what, key, written, points, found))
        return key, bandwidth

    def allreduce(self) -> None:
        """allreduce_bandwidth. Raises MissingParameter where it cannot be."""
        machine = f"{counted(self.nodes, 'node')} of {counted(self.ranks, 'rank')}"
        if lack := self.lack("allreduce", self.ranks):
            raise MissingParameter(f"{NAME} describes {machine}, and {lack}")
        ends = self.sizes("allreduce")
        content, every, layouts = dict[str, float](), list[ExportPoint](), list[GroupLayout]()
        for p in self.halves:
            groups = self.world // p
            for consecutive in (1, 0) if groups > 1 else (1,):
                layout = GroupLayout(p, 1 if consecutive else groups, groups)
                points = self._points("allreduce", ends, layout)
                every += points
                layouts.append(layout)
                apart = "side by side" if consecutive else f"{layout.stride} apart"
                what = f"allreduce by {counted(groups, 'group')} of {p} {apart}"
                key = f"allreduce_size_{p}_consec_{consecutive}"
                content |= [self.bandwidth(points, 2 * (p - 1) / p, what, key)]
        self._made("allreduce", self.name("allreduce_bandwidth"), content, layouts)
        beyond = extrapolated(every, self.reference.places("allreduce"))
        self.holds_for.append(f"allreduce of {sizes_in_words(ends)} on {machine}{beyond}")

    def p2p(self) -> None:
        """p2p_bandwidth, if it was measured; of several nodes of the message between two of them."""
        file = self.name("p2p_bandwidth")
        if lack := self.lack("p2p", self.ranks if self.nodes == 1 else 1):
            self.notes.append(f"{file} is not written: {lack}; {OPENED}")
            return
        parameters, ends = self.reference.parameters, self.sizes("p2p")
        # where there are several nodes (or racks), some stage sends to the next node (rack)
        least, _, of_where = farthest(parameters, self.nodes)
        content, every, layouts = dict[str, float](), list[ExportPoint](), list[GroupLayout]()
        for stages in reversed(self.halves):
            pipelines = self.world // stages
            layout = GroupLayout(2, max(pipelines, least), pipelines)
            points = self._points("p2p", ends, layout)
            every += points
            layouts.append(layout)
            what = f"p2p by {counted(pipelines, 'pipeline')} of {stages}"
            content |= [self.bandwidth(points, 1.0, what, f"pp_size_{stages}")]
        self._made("p2p", file, content, layouts)
        places, names = self.reference.places("p2p"), Levels.of(parameters).names
        unused = {place.level for place in places}.difference(*map(names, layouts))
        lost = dict.fromkeys(where(parameters, level) for level in WHERE if level in unused)
        self.lost += [f"times of p2p {place}" for place in lost]
        beyond = extrapolated(every, places)
        self.holds_for.append(f"p2p of {sizes_in_words(ends)} {of_where}{beyond}")

    def _points(
        self, operation: str, ends: tuple[int, int], layout: GroupLayout
    ) -> list[ExportPoint]:
        of = (layout.size, layout.stride, layout.groups)
        return [self.reference.seconds(operation, m, *of) for m in steps(ends)]

    def _made(
        self, operation: str, file: str, content: dict[str, float], layouts: Sequence[GroupLayout]
    ) -> None:
        self.put(file, content)
        self.notes += stands_in(self.reference, operation, layouts)
        self.written.add(operation)

    def times(self) -> None:
        """sp_time: milliseconds on those p whose times Galvatron's line can describe."""
        names, content = {"allreduce": "allreduce"}, dict[str, float]()
        if lack := self.lack("all_to_all", self.ranks):
            self.notes.append(
                f"sp_time has no all2all times: {lack}; Galvatron ends where it weighs Ulysses' "
                "sequence parallelism, so search without it"
            )
        else:
            names["all_to_all"] = "all2all"
        for operation, name in names.items():
            every = [times_of(self.reference, operation, p, self.world // p) for p in self.halves]
            chosen = [times for times in every if times.points]
            for times in chosen:
                content |= {
                    f"{name}_size_{point.ranks}_{point.nbytes // MIB}MB_time": point.seconds * 1e3
                    for point in times.points
                }
                self.collapses.append(times.collapse(name))
            self._about_times(operation, name, every)
            if chosen and operation == "allreduce":
                self.notes.append(self._about_halves(chosen))
        if content:
            self.put(self.name("sp_time"), content)
        else:
            self.notes.append(f"{self.name('sp_time')} is not written; {OPENED}")

    def _about_times(self, operation: str, name: str, every: Sequence[Chosen]) -> None:
        """What sp_time holds for, and what it lacks of an operation."""
        points = [point for times in every for point in times.points]
        if points:
            self.written.add(operation)
            sizes = sizes_in_words((min(p.nbytes for p in points), max(p.nbytes for p in points)))
            rest = extrapolated(points, self.reference.places(operation))
            self.holds_for.append(f"sp_time: {name} of {sizes}{rest}")
        beyond = [point for point in points if point.basis == BASIS_ORDER[-1]]
        if beyond:
            self.notes.append(
                f"sp_time: {len(beyond)} of {len(points)} {name} times are extrapolated beyond the "
                f"measured sizes, ranks or groups at once, first {beyond[0].nbytes // MIB} MB on "
                f"{beyond[0].ranks} ranks"
            )
        for why in dict.fromkeys(times.why for times in every if times.why):
            ranks = ranks_in_words(sorted(times.ranks for times in every if times.why == why))
            self.notes.append(f"sp_time, {name} on {ranks} ranks: {why}")

    def _about_halves(self, chosen: Sequence[Chosen]) -> str:
        """What Galvatron makes of the allreduce times, beside the operations that they stand for."""
        found = []
        for operation in HALVED:
            if self.lack(operation, self.ranks):
                continue
            ratios = [
                point.seconds
                / 2
                / self.reference.seconds(operation, point.nbytes, p, 1, groups).seconds
                for p, groups, points in ((of.ranks, of.groups, of.points) for of in chosen)
                for point in points
            ]
            found.append(f"{min(ratios):.2g} to {max(ratios):.3g} times the {operation}")
        beside = (
            f": that is {' and '.join(found)} here"
            if found
            else ", of which none was measured here"
        )
        halved = " or a ".join(HALVED)
        return f"sp_time: half an allreduce is what Galvatron takes for an {halved}{beside}"

    def overlap(self) -> None:
        """overlap_coefficient.json, where eta was measured."""
        costs = CollectiveCosts(self.reference.parameters)
        law = costs.overlap(self.world)
        if law is None:
            self.notes.append(
                f"overlap_coefficient.json is not written: no overlap was measured; {OPENED}"
            )
            return
        eta = law.eta
        self.put("overlap_coefficient.json", {"overlap_coe": 2.0 - eta.value})
        if any(record.eta.value != eta.value for record in self.reference.parameters.overlap):
            self.lost.append(
                f"eta of other ranks: overlap_coe is of {eta.value:.3f}, that nearest {self.world}"
            )
        if law.slowdown.value > 0:
            self.lost.append(
                f"iterations with overlap took {law.slowdown.value:.1%} longer than without: "
                "overlap_coe is that of two parts one after the other"
            )
        beyond = "" if costs.knows_overlap(self.world) else f" (not measured on {self.world} ranks)"
        self.notes.append(
            f"overlap_coe is 2 - eta = {2 - eta.value:.3f}, from {2 - eta.high:.3f} to "
            f"{2 - eta.low:.3f}{beyond}; it is right where the exchange takes no longer than the "
            "backward"
        )

    def left_out(self) -> Iterator[str]:
        """What these parameters have and no file holds."""
        bandwidths = " and ".join(sorted(self.written & {"allreduce", "p2p"}))
        yield f"start-up times of {bandwidths}: a bandwidth has none"
        yield from other_times(self.reference, self.written)
        for operation in sorted(self.written - {"p2p"}):
            known = {p for place in self.reference.places(operation) for p in place.ranks}
            if others := sorted(known.difference(self.halves)):
                yield f"times of {operation} on {ranks_in_words(others)} ranks"
        sections = [name for name in SECTIONS if name not in ("overlap", "contention")]
        yield from other_sections(self.reference.parameters, *sections)
