"""ASTRA-sim (astra-sim.github.io): network.yml of its analytical backend, and system.json.

Keys as in its examples/network/analytical and inputs/system; calib/export/astra/times.py says what they
do. Every dimension is a Switch with half the latency, as a message passes two links: so a step costs one
latency between any two ranks, and the formulas are those of the oracle's laws (in a Ring a step costs
one latency per rank that it passes). The algorithm of a dimension is the ring, or halving and doubling
where that is closer. The files are for the congestion-unaware backend. A GB is 2^30 B there
(astra-network-analytical, NetworkFunction.cc).

The size of an all-gather in a workload is what each rank gives (Ring.cc), in calib the whole result: the
numbers are fitted so that ASTRA-sim's all-gather of m / p takes as long as calib's of m.

The files cannot hold more than one latency and bandwidth of a dimension (no pieces, no algorithm by
size or p), intervals, contention of groups, layer times (they are in the workload's trace), broadcasts,
halos.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace

from calib.export.about import lines, ranks_in_words
from calib.export.astra.times import (
    DIRECT,
    ENDPOINT_NS,
    GB,
    HALVING,
    PASSES,
    RING,
    AstraTime,
    Dimension,
    fitted,
    seconds_of,
    sizes_of,
    work_of,
)
from calib.export.collapse import bounded, collapse_of
from calib.export.devices import COPIES, at_work, bytes_bound, copies, one_rate, points_of
from calib.export.machine_levels import (
    MachineLevel,
    apart,
    collapses_of,
    held,
    left_out,
    machine,
    measured,
    racks_note,
    require_measured,
)
from calib.export.reference import Reference
from calib.export.target import Collapse, Exported, ExportRequest
from calib.foundation.errors import InputError
from calib.foundation.words import number

NAME = "astra-sim"
FILENAME = "astra-sim"
DIRECTORY = True
RECEIVES = (
    "network.yml: a Switch per level with latency and bandwidth; system.json: algorithms, memory"
)
LOSES = (
    "pieces and algorithms by size, intervals, contention, layer times, broadcast, halo; more than one "
    "latency and bandwidth of a level"
)
NEEDS = (
    "times of allreduce, reduce_scatter, allgather, all_to_all or p2p, of several nodes also between "
    "them"
)
OPTIONS = frozenset({"ranks", "nbytes", "nodes", "execution"})

OPERATIONS = ("allreduce", "reduce_scatter", "allgather", "all_to_all")
NETWORK, SYSTEM_FILE = "network.yml", "system.json"
# a memory that takes no time, where none was measured: reductions are in the network's times then
NO_TIME_GB_PER_S = 1e9
# reductions are of large buffers; small copies measure start-up times, not a rate
LARGE_NBYTES = 1 << 20
NO_TIME_WORDS = (
    "local-mem-bw stands for a memory that takes no time, so that what reductions take stays in the "
    "network's times"
)
MOST_NPUS = 2**31 - 1  # it counts them in a C++ int
UNIT_NOTE = (
    "bandwidths of network.yml are in units of 2^30 B/s, as astra-network-analytical reads them; a copy "
    "of it that takes a GB as 1e9 B makes them 6.9% slower than meant"
)
BACKEND_NOTE = (
    "for the congestion-unaware backend; the congestion-aware one sends every message over a Switch's "
    "two links one after the other, and there the bandwidths must be doubled"
)
ALLGATHER_NOTE = (
    "an all-gather's size in a workload is what each rank gives: the times of one of m bytes in all are "
    "those of m / p there"
)
SPLITS_NOTE = (
    "the times are those of preferred-dataset-splits 1: with more, a collective is cut into as many, "
    "each with latencies of its own"
)


def export(request: ExportRequest) -> Exported:
    """network.yml and system.json.

    Raises MissingParameter where nothing that it runs was measured, or nothing between its nodes.
    """
    reference = Reference(request)
    operations = measured(reference, *OPERATIONS) or [reference.needed(NAME, *OPERATIONS, "p2p")]
    ranks = {operation: reference.ranks(operation) for operation in operations}
    levels = levels_of(request, [p for each in ranks.values() for p in each])
    require_measured(NAME, reference, levels)
    every, left = times(reference, levels, ranks)
    plan = [
        [one for one in every if len(one.sizes) == at + 1]
        or filling(reference, levels, operations, at)
        for at in range(len(levels))
    ]
    memory, collapses, notes = memory_of(reference, [one for each in plan for one in each])
    dimensions: list[Dimension] = []
    holds = []
    for at, (level, mine) in enumerate(zip(levels, plan, strict=True)):
        points = [one.point for one in mine]
        dimensions.append(fitted(mine, level.size, dimensions, memory))
        values = [seconds_of(one, dimensions, memory) for one in mine]
        into = f"latency and bandwidth of the {level.name}'s dimension"
        collapses += collapses_of(points, values, into, dimensions[-1].words)
        holds += held(reference, points, levels, at)
        notes += bounded(f"the {level.name}", 1 / dimensions[-1].bandwidth / GB, points)
        if dimensions[-1].algorithm == HALVING:
            notes.append(f"{level.name}: {HALVING} is closer to these times than a ring")
    most = max(one.point.ranks for each in plan for one in each)
    exported = Exported(
        files={},
        holds_for=tuple(holds),
        collapses=tuple(collapses),
        lost=lost(reference, operations, left, collapses),
        notes=(
            UNIT_NOTE,
            BACKEND_NOTE,
            rounding(most),
            SPLITS_NOTE,
            ALLGATHER_NOTE,
            *racks_note(request, levels),
            *notes,
        ),
        library=reference.library,
    )
    files = {
        NETWORK: network(levels, dimensions, lines(NAME, request, exported)),
        SYSTEM_FILE: system(dimensions, memory),
    }
    return replace(exported, files=files)


def levels_of(request: ExportRequest, ranks: Sequence[int]) -> list[MachineLevel]:
    """The dimensions of the whole machine, or of as many ranks as the request's largest p.

    Raises InputError for p that fill no whole levels, and for more ranks than ASTRA-sim can count.
    """
    each = request.parameters.ranks_per_node
    if request.ranks and not request.nodes:
        request = replace(request, nodes=-(-max(request.ranks) // each))
        levels = machine(request, ranks)
        sizes = sizes_of(max(request.ranks), levels) or ()
        found = [level._replace(size=n) for level, n in zip(levels, sizes, strict=False) if n > 1]
    else:
        levels = found = machine(request, ranks)
    for p in request.ranks:
        if sizes_of(p, levels) is None:
            names = ", ".join(f"{level.name} of {level.size}" for level in levels)
            raise InputError(
                f"{p} ranks do not fill whole levels ({names}), and ASTRA-sim's dimensions are whole "
                "ones; give other --ranks"
            )
    total = math.prod(level.size for level in found)
    if total > MOST_NPUS:
        raise InputError(
            f"a machine of {total} ranks is more than ASTRA-sim can count ({MOST_NPUS}); give fewer "
            "--nodes or --ranks"
        )
    return found


def times(
    reference: Reference, levels: Sequence[MachineLevel], ranks: dict[str, tuple[int, ...]]
) -> tuple[list[AstraTime], list[int]]:
    """The times that the file is fitted to, and the p left out as they do not fill whole levels."""
    found, left = [], set()
    for operation, counts in ranks.items():
        if operation == "p2p":
            for at in range(len(levels)):
                found += messages(reference, levels, at)
            continue
        for p in counts:
            sizes = sizes_of(p, levels)
            if sizes is None:
                left.add(p)
                continue
            found += [AstraTime(point, sizes) for point in reference.points(operation, [p])]
    return found, sorted(left)


def messages(reference: Reference, levels: Sequence[MachineLevel], at: int) -> list[AstraTime]:
    """p2p between two ranks that differ at the level `at` only."""
    sizes = (*[1] * at, 2)
    points = reference.points("p2p", [2], stride=apart(reference.request, levels, at))
    return [AstraTime(point, sizes) for point in points]


def filling(
    reference: Reference, levels: Sequence[MachineLevel], operations: Sequence[str], at: int
) -> list[AstraTime]:
    """Operations that fill the levels up to `at`, where none of the p asked for does."""
    sizes = tuple(level.size for level in levels[: at + 1])
    p = math.prod(sizes)
    return [
        AstraTime(point, sizes)
        for operation in operations
        for point in reference.points(operation, [p])
    ]


def memory_of(
    reference: Reference, asked: Sequence[AstraTime]
) -> tuple[float, list[Collapse], list[str]]:
    """local-mem-bw in GB/s (the rate of reductions), the error of having one rate, and notes.

    It is of the device that has the library's buffers. Where layers ran on it: of those that only move
    bytes, as a reduction does (two reads and a write, like an add), else of copies; elsewhere of copies
    alone.
    """
    layers_on = reference.parameters.device_kind
    device = next((fit.device for fit in reference.fits), layers_on)
    known = [copies(reference.parameters, device)]
    if device == layers_on:
        known.insert(0, bytes_bound(reference.parameters))
    large = [[kernel for kernel in each if kernel.nbytes >= LARGE_NBYTES] for each in known]
    kernels = next((each for each in large + known if each), [])
    if not kernels:
        why = f"no pass that moves bytes was measured on {device}"
        return NO_TIME_GB_PER_S, [], [f"{why}: {NO_TIME_WORDS}"]
    rate = one_rate(kernels)
    collectives = [one for one in asked if one.point.operation != "p2p"]
    if over := sum(reductions_s(one, rate) > one.point.seconds for one in collectives):
        why = (
            f"by the passes measured on {device} the memory alone would take longer than {over} of "
            f"{len(asked)} collectives"
        )
        return NO_TIME_GB_PER_S, [], [f"{why}: {NO_TIME_WORDS}"]
    points = points_of(kernels, at_work(reference.parameters))
    values = [kernel.nbytes / rate for kernel in kernels]
    kinds = ", ".join(sorted({kernel.kind for kernel in kernels}))
    written = f"{number(rate / 1e9)} GB/s"
    what = f"bytes of {kinds} ({device})"
    return rate / 1e9, [collapse_of(what, "local-mem-bw", written, points, values)], []


def reductions_s(one: AstraTime, rate: float) -> float:
    """Seconds that a collective's reductions take at so many bytes per second, by rings."""
    work = work_of(one.point.operation, one.sizes, [RING] * len(one.sizes))
    return PASSES * work.reduced * one.point.nbytes / rate


def rounding(ranks: int) -> str:
    """What ASTRA-sim does with small messages."""
    return (
        "ASTRA-sim rounds every message down to whole bytes and ns, and fails on one of 0 B: buffers "
        f"of at least as many bytes as ranks ({ranks} B)"
    )


def lost(
    reference: Reference, operations: Sequence[str], left: Sequence[int], made: Sequence[Collapse]
) -> tuple[str, ...]:
    """What these parameters have and the files lack."""
    copied = any(name in collapse.what for collapse in made for name in COPIES)
    found = left_out(reference, operations, COPIES if copied else ())
    if left:
        found.append(f"times on {ranks_in_words(left)} ranks, which do not fill whole levels")
    if layers := reference.parameters.layers:
        found.append(f"forward and backward times of layers ({len(layers)})")
    return tuple(found)


def network(
    levels: Sequence[MachineLevel], dimensions: Sequence[Dimension], about: Sequence[str]
) -> str:
    """network.yml."""
    names = ", ".join(level.name for level in levels)
    rows = [
        *(f"# {line}" for line in about),
        f"# dimensions: {names}",
        _row("topology", ["Switch"] * len(dimensions)),
        _row("npus_count", [dimension.size for dimension in dimensions]),
        f"{_row('bandwidth', [d.bandwidth for d in dimensions])}  # in 2^30 B/s",
        f"{_row('latency', [d.latency_ns for d in dimensions])}  # ns, half of a step's: two links",
    ]
    return "\n".join(rows) + "\n"


def _row(key: str, values: Sequence[object]) -> str:
    return f"{key}: [ {', '.join(map(str, values))} ]"


def system(dimensions: Sequence[Dimension], memory: float) -> str:
    """system.json; one chunk at a time, so that times are those of the fit."""
    algorithms = [dimension.algorithm for dimension in dimensions]
    content = {
        "scheduling-policy": "LIFO",
        "endpoint-delay": ENDPOINT_NS,
        "active-chunks-per-dimension": 1,
        "preferred-dataset-splits": 1,
        "all-reduce-implementation": algorithms,
        "all-gather-implementation": algorithms,
        "reduce-scatter-implementation": algorithms,
        "all-to-all-implementation": [DIRECT] * len(dimensions),
        "collective-optimization": "localBWAware",
        "local-mem-bw": memory,
    }
    return json.dumps(content, indent=2) + "\n"
