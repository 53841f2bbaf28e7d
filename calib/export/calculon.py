"""Calculon (github.com/calculon-ai/calculon): the system JSON of a machine.

Keys and formulas as in its calculon/{system,processor,memory,network}.py and systems/a100_80e.json:

- a kernel takes operations / (tflops 1e12 e), where e is of the first row [GFLOP, e] that its
  operations reach, or, processing_mode "roofline", the time of its bytes in mem1, if that is longer;
- an operation of a network takes latency + scalar (1 + offset / p) bytes / (bandwidth 1e9 efficiency).

`matrix` is fitted to the measured forward of convolutions and linear layers, `vector` to that of
element-wise layers with the operations that Calculon counts for them, mem1 to the bytes of the simplest.
The bandwidth of a network is the fitted one and its efficiency 1: only their product counts.

The format cannot hold latency by p or size (2 (p - 1) alpha becomes one number), pieces, intervals,
contention, measured overlap, a backward at another rate than the forward, calls that take time without
operations, or layers that Calculon lacks (pooling, losses, embeddings).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from calib.export.collapse import bounded, collapse_of, least_by_bytes, least_relative
from calib.export.devices import (
    COPIES,
    Kernel,
    Staircase,
    at_work,
    bytes_bound,
    copies,
    forwards,
    points_of,
    staircase,
)
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
    strided,
)
from calib.export.reference import Reference
from calib.export.target import Collapse, Exported, ExportPoint, ExportRequest
from calib.foundation.errors import MissingParameter
from calib.foundation.words import number, seconds_words

NAME = "calculon"
FILENAME = "system.json"
DIRECTORY = False
RECEIVES = "rates of matrix and vector kernels and of memory by size, a network per level"
LOSES = (
    "pieces and latency by p, intervals, contention, backward rates, layers it has not; more than one "
    "latency and bandwidth of a level"
)
NEEDS = (
    "layer times of conv or linear and of passes over items, device memory, allreduce or p2p, of "
    "several nodes also between them"
)
OPTIONS = frozenset({"ranks", "nbytes", "nodes", "execution"})

MATRIX = ("conv", "linear")
# Calculon's operations for each that forward_flops counts: a batch norm is its layer norm, a ReLU its
# element-wise layer; an add counts both inputs here, one there
VECTOR = {
    "relu": 1.0,
    "add": 0.5,
    "dropout": 1.0,
    "softmax": 5.0,
    "batch_norm": 9.0,
    "layer_norm": 9.0,
}
DATA_TYPES = ("float8", "float16", "float32", "bfloat16")  # System.TypeSizes
MODE = "roofline"  # a measured layer's time has its memory's in it: the two are not added up
# ours, its name, (scalar, offset): formats.md
OPERATIONS: dict[str, tuple[str, float, int | None]] = {
    "p2p": ("p2p", 1.0, None),
    "reduce_scatter": ("reduce_scatter", 1.0, -1),
    "allgather": ("all_gather", 1.0, -1),
    "allreduce": ("all_reduce", 2.0, -1),
}
# nothing fits into 0 GiB, so Calculon refuses to use it; its rate divides a size of 0
NO_MEMORY: dict[str, Any] = {"GiB": 0, "GBps": 1, "MB_efficiency": [[0, 1.0]]}
MEASURE = "`calib measure --models resnet50-mini,vgg16-mini -o RUN` and `calib fit RUN` add them"


class CalculonNetwork(NamedTuple):
    """One tier: `size` ranks, `latency_s` of a call, and its bandwidth."""

    size: int
    latency_s: float
    bytes_per_s: float

    def seconds(self, point: ExportPoint) -> float:
        """What Calculon takes for it (Network.time)."""
        return self.latency_s + sent(point) / self.bytes_per_s

    @property
    def words(self) -> str:
        """12.3 µs, 4.10 GB/s."""
        return f"{seconds_words(self.latency_s)}, {number(self.bytes_per_s / 1e9)} GB/s"

    @property
    def entry(self) -> dict[str, Any]:
        """As system.json has it."""
        return {
            "bandwidth": self.bytes_per_s / 1e9,
            "efficiency": 1.0,
            "size": self.size,
            "latency": self.latency_s,
            "ops": {name: [scalar, offset] for name, scalar, offset in OPERATIONS.values()},
            # no group has to fill a tier, and nobody measured what communication takes of a processor
            "must_be_filled": False,
            "processor_usage": 0.0,
        }


def export(request: ExportRequest) -> Exported:
    """system.json. Raises MissingParameter for what Calculon needs and the parameters lack."""
    parameters = request.parameters
    if parameters.device_memory_bytes == 0:
        raise MissingParameter(
            "calculon needs the device's memory, and the parameters do not say it (imported?); "
            "`calib probe` and `calib measure` on the machine add it"
        )
    matrix, vector = by_type(request, MATRIX), by_type(request, tuple(VECTOR))
    types = [name for name in DATA_TYPES if name in matrix and name in vector]
    if not types:
        lacking = "conv or linear" if not matrix else ", ".join(VECTOR)
        raise MissingParameter(
            f"calculon needs measured times of {lacking} layers, in one of {', '.join(DATA_TYPES)}, "
            f"and the parameters hold none; {MEASURE}"
        )
    reference = Reference(request)
    reference.needed(NAME, *reversed(OPERATIONS))
    memory, memory_found = memory_of(request)
    processors: dict[str, dict[str, Any]] = {"matrix": {}, "vector": {}}
    collapses = []
    for name in types:
        for engine, kernels in (("matrix", matrix[name]), ("vector", vector[name])):
            entry, collapse = processor(engine, name, kernels, memory, at_work(parameters))
            processors[engine][name] = entry
            collapses.append(collapse)
    networks, network_found, holds, notes = networks_of(request, reference)
    content = {
        **processors,
        "mem1": {
            "GiB": parameters.device_memory_bytes / 2**30,
            "GBps": memory.peak / 1e9,
            "MB_efficiency": rows(memory, 1e6),
        },
        "mem2": NO_MEMORY,
        "processing_mode": MODE,
        "networks": [network.entry for network in networks],
    }
    return Exported(
        files={"": json.dumps(content, indent=2) + "\n"},
        holds_for=(f"kernels of {', '.join(types)}, no larger than those measured", *holds),
        collapses=(*collapses, memory_found, *network_found),
        lost=lost(request, reference, types, memory_found),
        notes=(
            f"processing_mode {MODE}: a measured layer's time has its memory's in it",
            "mem2 was not measured: 0 GiB, so that Calculon refuses to offload; its GBps is unused",
            "processor_usage was not measured: 0, so communication takes no processor time",
            "Calculon runs the backward at the forward's rates",
            *notes,
        ),
        library=reference.library,
    )


def by_type(request: ExportRequest, kinds: Sequence[str]) -> dict[str, list[Kernel]]:
    """The measured forwards of these kinds with at least one operation, by item type."""
    found: dict[str, list[Kernel]] = {}
    for kernel in forwards(request.parameters):
        flops = kernel.flops * VECTOR.get(kernel.kind, 1.0)
        if kernel.kind in kinds and flops >= 1:
            found.setdefault(kernel.dtype, []).append(kernel._replace(flops=flops))
    return found


def memory_of(request: ExportRequest) -> tuple[Staircase, Collapse]:
    """mem1's rate by size. Raises MissingParameter where nothing was measured for it."""
    parameters = request.parameters
    kernels = bytes_bound(parameters) or copies(parameters, parameters.device_kind)
    if not kernels:
        raise MissingParameter(
            "calculon needs the memory's rate, and the parameters hold no time of a pass over items or "
            f"of a copy; {MEASURE}"
        )
    found = staircase([kernel.nbytes for kernel in kernels], [kernel.seconds for kernel in kernels])
    values = [found.seconds(kernel.nbytes) for kernel in kernels]
    kinds = ", ".join(sorted({kernel.kind for kernel in kernels}))
    points = points_of(kernels, at_work(parameters))
    into, written = "GBps and MB_efficiency of mem1", in_steps(found, 1e9, "GB/s")
    return found, collapse_of(f"bytes of {kinds}", into, written, points, values)


def processor(
    engine: str, name: str, kernels: Sequence[Kernel], memory: Staircase, active: int
) -> tuple[dict[str, Any], Collapse]:
    """tflops and gflops_efficiency of one engine and type, and their error."""
    floors = [memory.seconds(kernel.nbytes) for kernel in kernels]
    found = staircase(
        [kernel.flops for kernel in kernels], [kernel.seconds for kernel in kernels], floors
    )
    values = [
        max(found.seconds(kernel.flops), floor)
        for kernel, floor in zip(kernels, floors, strict=True)
    ]
    kinds = ", ".join(sorted({kernel.kind for kernel in kernels}))
    collapse = collapse_of(
        f"forward of {len(kernels)} layers ({kinds}, {name})",
        f"tflops and gflops_efficiency of {engine}",
        in_steps(found, 1e12, "Tflop/s"),
        points_of(kernels, active),
        values,
    )
    return {"tflops": found.peak / 1e12, "gflops_efficiency": rows(found, 1e9)}, collapse


def in_steps(found: Staircase, unit: float, name: str) -> str:
    """0.123 Tflop/s x 0.05 to 1.00."""
    shares = [share for _, share in found.steps]
    low, high = f"{min(shares):.2g}", f"{max(shares):.2g}"
    return f"{number(found.peak / unit)} {name} x {low if low == high else f'{low} to {high}'}"


def rows(found: Staircase, unit: float) -> list[list[float]]:
    """[[size, efficiency], ...], the largest first and 0 last."""
    return [[start / unit if start else 0, share] for start, share in found.steps]


def networks_of(
    request: ExportRequest, reference: Reference
) -> tuple[list[CalculonNetwork], list[Collapse], list[str], list[str]]:
    """A network per level, the smallest first; then collapses, what they hold for, and notes.

    Raises MissingParameter for a level that was not measured.
    """
    operations = measured(reference, *OPERATIONS)
    counts = {name: reference.ranks(name) if name != "p2p" else (2,) for name in operations}
    asked = [p for each in counts.values() for p in each] + list(request.ranks)
    levels = machine(request, asked)
    require_measured(NAME, reference, levels)
    networks: list[CalculonNetwork] = []
    collapses: list[Collapse] = []
    holds: list[str] = []
    notes = [*racks_note(request, levels)]
    for at in range(len(levels)):
        points = times(reference, levels, at, counts)
        least = (0.0, least_by_bytes(points))
        latency, s_per_byte = least_relative(
            [(1.0, sent(point)) for point in points], [point.seconds for point in points], least
        )
        network = CalculonNetwork(strided(levels, at + 1), float(latency), 1 / float(s_per_byte))
        networks.append(network)
        into = f"bandwidth and latency of networks[{at}]"
        found = [network.seconds(point) for point in points]
        collapses += collapses_of(points, found, into, network.words, levels[at].name)
        holds += held(reference, points, levels, at)
        notes += bounded(f"networks[{at}]", float(s_per_byte), points)
    return networks, collapses, holds, notes


def times(
    reference: Reference,
    levels: Sequence[MachineLevel],
    at: int,
    counts: dict[str, tuple[int, ...]],
) -> list[ExportPoint]:
    """What a tier is fitted to: groups whose slowest level is this one, else one that fills it."""
    below, size = strided(levels, at), strided(levels, at + 1)
    stride = apart(reference.request, levels, at)
    found = []
    for operation, ranks in counts.items():
        if operation == "p2p":
            found += reference.points("p2p", [2], stride=stride)
            continue
        last = at + 1 == len(levels)
        mine = [p for p in ranks if below < p and (p <= size or last)] or [size]
        found += reference.points(operation, mine)
    return found


def sent(point: ExportPoint) -> float:
    """scalar (1 + offset / p) bytes."""
    _, scalar, offset = OPERATIONS[point.operation]
    return scalar * (1 + (offset or 0) / point.ranks) * point.nbytes


def lost(
    request: ExportRequest, reference: Reference, types: Sequence[str], memory: Collapse
) -> tuple[str, ...]:
    """What these parameters have and the file lacks."""
    layers, active = request.parameters.layers, at_work(request.parameters)
    loops = COPIES if any(name in memory.what for name in COPIES) else ()
    found = left_out(reference, list(OPERATIONS), loops)
    kinds = sorted({row.kind for row in layers} - {*MATRIX, *VECTOR})
    if kinds:
        found.append(f"times of {', '.join(kinds)} layers")
    others = sorted({kernel.dtype for kernel in forwards(request.parameters)} - set(types))
    if others:
        found.append(f"times of layers of {', '.join(others)}")
    if elsewhere := sum(row.active_ranks != active for row in layers):
        found.append(
            f"{elsewhere} times of layers with another number of ranks at work than {active}"
        )
    if layers:
        found.append(f"backward times of layers ({len(layers)})")
    return tuple(found)
