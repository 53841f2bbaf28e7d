"""Compute and memory rates of a rank, for targets that describe them.

Times are those with as many ranks of a node at work as in the oracle's. A staircase is what Calculon
calls an efficiency: for each range of sizes its share of the highest rate.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from calib.export.reference import POSSIBLE_S, steps
from calib.export.target import ExportPoint
from calib.fitting.parameters.file import Parameters, TensorLoop
from calib.fitting.parameters.measured_passes import work_of_pass
from calib.foundation.execution import execution_of
from calib.foundation.layer_keys import parse
from calib.oracle.costs.in_place import ranks_at_work

# passes over items that move bytes and do next to nothing else
BYTES_BOUND = ("relu", "add", "concat")
COPIES = ("pack", "unpack")
MOST_STEPS = 6  # of a staircase
LEAST_EACH = 3  # kernels that a step rests on, where there are as many
MOST_BORDERS = 24  # between which steps are looked for


class Kernel(NamedTuple):
    """One measured pass: its operations, the bytes that it must move, and its seconds."""

    kind: str
    dtype: str
    flops: float
    nbytes: float
    seconds: float


def forwards(parameters: Parameters) -> list[Kernel]:
    """The measured forward of every layer whose key can be read, one kernel each."""
    active = at_work(parameters)
    found = []
    for row in parameters.layers:
        layer = parse(row.key)
        possible = POSSIBLE_S[0] <= row.forward_s.value <= POSSIBLE_S[1]
        if layer is None or layer.shape.is_free or row.active_ranks != active or not possible:
            continue
        flops, nbytes = work_of_pass(layer, "forward")
        if nbytes >= 1:
            dtype = execution_of(layer.execution).product_type
            found.append(Kernel(layer.shape.name, dtype, flops, nbytes, row.forward_s.value))
    return found


def at_work(parameters: Parameters) -> int:
    """How many ranks of a node were at work at once in the times that are used."""
    return ranks_at_work(parameters, parameters.ranks_per_node)[0]


def copies(parameters: Parameters, device: str) -> list[Kernel]:
    """Copies of one tensor into a buffer or back on this device, at the sizes that were measured.

    A copy of m bytes moves 2 m: it reads and writes them.
    """
    loops = [
        loop
        for loop in parameters.tensor_loops
        if loop.device == device and loop.operation in COPIES and loop.max_bytes >= 1
    ]
    mine = [loop for loop in loops if loop.active_ranks == at_work(parameters)] or loops
    return [kernel for loop in mine for kernel in _copies_of(loop)]


def _copies_of(loop: TensorLoop) -> list[Kernel]:
    high = int(min(loop.max_bytes, 2**50))
    low = min(max(1, math.ceil(loop.min_bytes)), high)
    found = []
    for m in steps((low, high)):
        seconds = loop.call_s + loop.s_per_tensor + loop.s_per_byte * m
        if POSSIBLE_S[0] <= seconds <= POSSIBLE_S[1]:
            dtype = execution_of(loop.execution).product_type
            found.append(Kernel(loop.operation, dtype, 0.0, 2.0 * m, seconds))
    return found


def bytes_bound(parameters: Parameters) -> list[Kernel]:
    """The forward of layers that move bytes and do next to nothing else."""
    return [kernel for kernel in forwards(parameters) if kernel.kind in BYTES_BOUND]


def points_of(kernels: Sequence[Kernel], active: int) -> list[ExportPoint]:
    """Kernels as the points of a collapse: their bytes, and the ranks that were at work."""
    return [ExportPoint(k.kind, round(k.nbytes), active, k.seconds, "measured") for k in kernels]


def one_rate(kernels: Sequence[Kernel]) -> float:
    """Bytes per second with the least mean |bytes / rate / seconds - 1|: a weighted median."""
    ordered = sorted(kernels, key=lambda kernel: kernel.seconds / kernel.nbytes)
    weights = np.cumsum([kernel.nbytes / kernel.seconds for kernel in ordered])
    middle = ordered[int(np.searchsorted(weights, weights[-1] / 2))]
    return middle.nbytes / middle.seconds


class Staircase(NamedTuple):
    """`peak` per second, and (from this size on, share of it), the largest size first; ends with 0."""

    peak: float
    steps: list[tuple[float, float]]

    def seconds(self, size: float) -> float:
        """What work of this size takes."""
        return size / (self.peak * next(share for start, share in self.steps if size >= start))


def staircase(
    sizes: Sequence[float], seconds: Sequence[float], floors: Sequence[float] | None = None
) -> Staircase:
    """The staircase with the least mean |max(size / rate, floor) / seconds - 1|.

    Up to MOST_STEPS steps, each of LEAST_EACH kernels at least; sizes > 0. Steps begin halfway (in
    logs) between two sizes, so that rounding moves no kernel to the next step. By dynamic programming
    over the borders between sizes (Bellman, CACM 4, 1961); the best share of a step makes one of its
    kernels exact.
    """
    order = np.argsort(sizes, kind="stable")
    size, time = np.asarray(sizes, float)[order], np.asarray(seconds, float)[order]
    floor = np.zeros(len(size)) if floors is None else np.asarray(floors, float)[order]
    peak = float((size / time).max())
    borders = _borders(size)
    last = len(borders) - 1
    # (steps, border) -> error so far, [(begin, share)]
    best: dict[tuple[int, int], tuple[float, list[tuple[int, float]]]] = {(0, 0): (0.0, [])}
    for end in range(1, last + 1):
        for begin in range(end):
            if borders[end] - borders[begin] < LEAST_EACH and last > 1:
                continue
            part = slice(borders[begin], borders[end])
            error, share = _share(size[part] / peak, floor[part], time[part])
            for number in range(MOST_STEPS):
                before = best.get((number, begin))
                known = best.get((number + 1, end))
                if before is None or (known and known[0] <= before[0] + error):
                    continue
                best[number + 1, end] = before[0] + error, [*before[1], (borders[begin], share)]
    ends = [best[number, last] for number in range(1, MOST_STEPS + 1) if (number, last) in best]
    found = min(ends, key=lambda entry: entry[0])[1]
    return Staircase(
        peak,
        [
            (math.sqrt(size[begin - 1]) * math.sqrt(size[begin]) if begin else 0.0, share)
            for begin, share in reversed(found)
        ],
    )


def _borders(size: NDArray[np.float64]) -> list[int]:
    """Where a step may begin or end: 0, the end, and between two sizes that differ."""
    between = [int(k) + 1 for k in np.flatnonzero(np.diff(size) > 1e-6 * size[1:])]
    inner = [k for k in between if LEAST_EACH <= k <= len(size) - LEAST_EACH]
    if len(inner) > MOST_BORDERS:
        inner = [inner[round(k)] for k in np.linspace(0, len(inner) - 1, MOST_BORDERS)]
    return [0, *inner, len(size)]


def _share(
    ideal: NDArray[np.float64], floor: NDArray[np.float64], time: NDArray[np.float64]
) -> tuple[float, float]:
    """(summed error, share) of the best step: the error is least at one of its kinks."""
    slower = np.unique(np.maximum(np.concatenate([time, floor]) / np.tile(ideal, 2), 1.0))
    errors = [float(np.abs(np.maximum(ideal * x, floor) / time - 1).sum()) for x in slower]
    at = int(np.argmin(errors))
    return errors[at], float(1 / slower[at])
