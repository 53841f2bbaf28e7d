"""The peaks of the device: a large matrix product and a large sum of arrays, on each launch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from calib.foundation.execution import execution_of
from calib.microbench.cases import Case
from calib.microbench.peaks import square_product, sum_of_arrays
from calib.planning.points import PlannedLaunches, Point
from calib.planning.request import Request

# of a CPU's rank: about 3 ms a core. The arrays are together larger than the cache that a core of most
# machines sees (32 MiB), and each is small enough that its pages are not new ones in every call
# (FRESH_OVER_BYTES of fitting/parameters/work.py)
CPU_SIDE, CPU_ARRAY_BYTES = 512, 30 * 2**20
# of a GPU, by its memory, which grows with its speed: a matrix takes a 512th of it at most, which keeps
# all its processors busy for milliseconds at most; an array a 128th, and L2 is under a 300th
MATRIX_SHARE, ARRAY_SHARE = 512, 128
MOST_SIDE = 4096  # 80 GiB have that, and larger products are no faster
ASSUMED_GPU_BYTES = 16 * 2**30  # where the memory is not known
ITEM_BYTES = 4


def peak_cases(request: Request, machine: PlannedLaunches, points: Sequence[Point]) -> list[Case]:
    """The product of every item type and one sum, for each number of ranks."""
    dtypes = dict.fromkeys(execution_of(name).product_type for name in request.executions)
    side, items = sizes(request.device, machine.gpu_memory_bytes)
    cases: list[Case] = []
    for ranks in sorted({point.launch for point in points}):
        about: dict[str, Any] = {"ranks": ranks, "device": request.device, "tier": 1}
        cases += [
            square_product(side, execution=dtype, purpose="peak of operations", **about)
            for dtype in dtypes
        ]
        cases.append(sum_of_arrays(items, purpose="peak of memory", **about))
    return cases


def sizes(device: str, gpu_memory_bytes: int) -> tuple[int, int]:
    """(rows of the square matrices, items of an array) for a rank's CPU cores or GPU."""
    if device == "cpu":
        return CPU_SIDE, CPU_ARRAY_BYTES // ITEM_BYTES
    memory = gpu_memory_bytes or ASSUMED_GPU_BYTES
    largest = math.isqrt(memory // MATRIX_SHARE // ITEM_BYTES)
    side = min(MOST_SIDE, 2 ** (largest.bit_length() - 1))
    return side, memory // ARRAY_SHARE // ITEM_BYTES
