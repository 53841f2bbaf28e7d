"""ASTRA-sim (astra-sim.github.io): network.yml of its analytical backend, and system.json.

Keys as in its examples/network/analytical and inputs/system; what they do is in
calib/export/astra_times.py. Every dimension is a Switch, whose latency is written by halves, as a
message passes two links: so a step costs one latency between any two ranks, and its formulas are those
of the oracle's laws (in a Ring a step costs as many as the ranks are apart). The algorithm of a
dimension is the ring, or halving and doubling where that is closer. It holds for the congestion-unaware
backend. A GB is 2^30 B there (astra-network-analytical, NetworkFunction.cc).

What it cannot hold: more than one latency and one bandwidth of a dimension (no pieces, no algorithm that
changes with the size or p), intervals, contention of groups, layers' times (they are in the workload's
trace), broadcasts, halos.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace

from calib.export.about import lines, ranks_in_words
from calib.export.astra_times import (
    DIRECT,
    ENDPOINT_NS,
    HALVING,
    Asked,
    Dimension,
    fitted,
    seconds_of,
    sizes_of,
)
from calib.export.collapse import collapse_of
from calib.export.devices import (
    Level,
    bytes_bound,
    copies,
    errors_by_operation,
    machine,
    measured,
    one_rate,
    strided,
)
from calib.export.reference import Reference
from calib.export.target import Collapse, Exported, Point, Request
from fitting.differences import exact
from foundation.errors import InputError

NAME = "astra-sim"
FILENAME = "astra-sim"
DIRECTORY = True
RECEIVES = (
    "network.yml: a Switch per level with latency and bandwidth; system.json: algorithms, memory"
)
LOSES = "pieces and algorithms by size, intervals, contention, layer times, broadcast, halo"
NEEDS = "times of allreduce, reduce_scatter, allgather, all_to_all or p2p"
OPTIONS = frozenset({"ranks", "nbytes", "nodes"})

OPERATIONS = ("allreduce", "reduce_scatter", "allgather", "all_to_all")
NETWORK, SYSTEM_FILE = "network.yml", "system.json"
MOST_NPUS = 2**31 - 1  # it counts them in a C++ int
# a memory that takes no time, where none was measured: what a reduction takes is in the network's times
NO_TIME_GB_PER_S = 1e9
UNIT_NOTE = (
    "bandwidths of network.yml are in units of 2^30 B/s, as astra-network-analytical reads them; a copy "
    "of it that takes a GB as 1e9 B makes them 6.9% slower than meant"
)
BACKEND_NOTE = (
    "for the congestion-unaware backend; the congestion-aware one sends every message over a Switch's "
    "two links one after the other, and there the bandwidths must be doubled"
)


def export(request: Request) -> Exported:
    """network.yml and system.json. Raises MissingParameter where nothing that it runs was measured."""
    reference = Reference(request)
    operations = measured(reference, *OPERATIONS) or [reference.needed(NAME, *OPERATIONS, "p2p")]
    ranks = {operation: reference.ranks(operation) for operation in operations}
    levels = levels_of(request, [p for each in ranks.values() for p in each])
    memory, notes = memory_of(request)
    asked, left = times(reference, levels, ranks)
    dimensions: list[Dimension] = []
    collapses, found = [], []
    for at, level in enumerate(levels):
        mine = [one for one in asked if len(one.sizes) == at + 1]
        if not mine:
            mine = filling(reference, levels, operations, at)
        dimensions.append(fitted(mine, level.size, dimensions, memory))
        points = [one.point for one in mine]
        values = [seconds_of(one, dimensions, memory) for one in mine]
        collapses.append(
            collapse_of(", ".join(dict.fromkeys(point.operation for point in points)),
                        f"latency and bandwidth of the {level.name}'s dimension", points, values)
        )  # fmt: skip
        if len({point.operation for point in points}) > 1:
            notes.append(f"{level.name}: off on average {errors_by_operation(points, values)}")
        if dimensions[-1].algorithm == HALVING:
            notes.append(f"{level.name}: {HALVING} is closer to these times than a ring")
        found += points
    exported = Exported(
        files={},
        holds_for=holds(collapses, levels),
        collapses=tuple(collapses),
        lost=lost(reference, operations, left),
        notes=(UNIT_NOTE, BACKEND_NOTE, rounding(found), *notes),
    )
    files = {
        NETWORK: network(levels, dimensions, lines(NAME, request, exported)),
        SYSTEM_FILE: system(dimensions, memory),
    }
    return replace(exported, files=files)


def levels_of(request: Request, ranks: Sequence[int]) -> list[Level]:
    """The dimensions: of the whole machine, or as many ranks of it as the request's largest p.

    Raises InputError for p that are no whole nodes, and for more than ASTRA-sim can count.
    """
    whole = machine(request, ranks)
    found = whole
    if request.ranks:
        for p in request.ranks:
            if sizes_of(p, whole) is None:
                raise InputError(
                    f"{p} ranks do not fill whole nodes of {request.parameters.ranks_per_node}, and "
                    "ASTRA-sim's dimensions are whole ones; give other --ranks"
                )
        if not request.nodes:
            sizes = sizes_of(max(request.ranks), whole) or ()
            found = [
                level._replace(size=size)
                for level, size in zip(whole, sizes, strict=False)
                if size > 1
            ]
    total = math.prod(level.size for level in found)
    if total > MOST_NPUS:
        raise InputError(
            f"a machine of {total} ranks is more than ASTRA-sim can count ({MOST_NPUS}); give fewer "
            "--nodes or --ranks"
        )
    return found


def times(
    reference: Reference, levels: Sequence[Level], ranks: dict[str, tuple[int, ...]]
) -> tuple[list[Asked], list[int]]:
    """What is asked of the file, and the p that are left out as they do not fill whole levels."""
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
            found += [Asked(point, sizes) for point in reference.points(operation, [p])]
    return found, sorted(left)


def messages(reference: Reference, levels: Sequence[Level], at: int) -> list[Asked]:
    """p2p between two ranks that are apart at the level `at` only."""
    sizes = (*[1] * at, 2)
    points = reference.points("p2p", [2], stride=strided(levels, at))
    return [Asked(point, sizes) for point in points]


def filling(
    reference: Reference, levels: Sequence[Level], operations: Sequence[str], at: int
) -> list[Asked]:
    """What fills the levels up to `at`, where none of the p that were asked for does."""
    sizes = tuple(level.size for level in levels[: at + 1])
    p = math.prod(sizes)
    return [
        Asked(point, sizes)
        for operation in operations
        for point in reference.points(operation, [p])
    ]


def memory_of(request: Request) -> tuple[float, list[str]]:
    """local-mem-bw in GB/s, and what must be said of it."""
    kernels = copies(request.parameters) or bytes_bound(request.parameters)
    if kernels:
        low, high = (round(end(kernel.nbytes for kernel in kernels)) for end in (min, max))
        return one_rate(kernels) / 1e9, [
            f"local-mem-bw is of {', '.join(sorted({kernel.kind for kernel in kernels}))} that move "
            f"{exact(low)} to {exact(high)}, one rate for all sizes"
        ]
    return NO_TIME_GB_PER_S, [
        "no copy was measured: local-mem-bw stands for a memory that takes no time, so that what "
        "reductions take stays in the network's times"
    ]


def holds(collapses: Sequence[Collapse], levels: Sequence[Level]) -> tuple[str, ...]:
    """For which sizes and ranks the numbers are."""
    return tuple(
        f"{collapse.what} of {exact(collapse.nbytes[0])} to {exact(collapse.nbytes[1])} on "
        f"{ranks_in_words(collapse.ranks)} ranks ({level.name})"
        for collapse, level in zip(collapses, levels, strict=True)
    )


def rounding(points: Sequence[Point]) -> str:
    """What ASTRA-sim does with small messages."""
    most = max(point.ranks for point in points)
    return (
        "ASTRA-sim rounds every message down to whole bytes and ns, and fails on one of 0 B: buffers "
        f"of at least as many bytes as ranks ({most} B)"
    )


def lost(reference: Reference, operations: Sequence[str], left: Sequence[int]) -> tuple[str, ...]:
    """What these parameters have and the files have not."""
    parameters, found = reference.parameters, []
    others = sorted({fit.operation for fit in reference.fits} - set(operations))
    if others:
        found.append(f"the times of {', '.join(others)}")
    if left:
        found.append(f"times on {ranks_in_words(left)} ranks, which do not fill whole levels")
    for name in ("contention", "layers", "work", "memory", "overlap"):
        if getattr(parameters, name):
            found.append(f"{len(getattr(parameters, name))} laws or times of {name}")
    return tuple(found)


def network(levels: Sequence[Level], dimensions: Sequence[Dimension], about: Sequence[str]) -> str:
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
