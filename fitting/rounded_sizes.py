"""Match sizes of one sweep that each run rounded to its own items and ranks.

nccl-tests gives each rank a multiple of 16 bytes, or of an item (before 2.13), so 32 MiB of a sweep are
33553920 B on 40 ranks, 33554400 B on 10 and 33554432 B on 8; calib rounds up, to whole items. To a fit
these would be three sizes, with a border between any two.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable

# what each rank has an equal part of, in whole items
EQUAL_PARTS = ("allgather", "reduce_scatter", "all_to_all", "gather", "scatter")
# bytes that a part may be rounded to; a whole buffer to items of 8 or less
ITEMS = (16, 8, 4, 2, 1)
# relative; sizes farther apart may be one size of a sweep, but their times differ
ALIKE = 0.01


def rounding(operation: str, ranks: int, nbytes: float) -> int:
    """How far this size may be from the one that was asked for: one item of every part.

    0 where the parts have no whole bytes.
    """
    shared = operation.partition(" ")[0] in EQUAL_PARTS
    parts, items = (ranks, ITEMS) if shared else (1, ITEMS[1:])
    return parts * next((item for item in items if nbytes % (item * parts) == 0), 0)


def is_alike(operation: str, ranks: int, measured: float, nbytes: int) -> bool:
    """Whether `nbytes` is the measured size up to rounding, so that it takes the same time."""
    apart = abs(nbytes - measured)
    return apart <= min(rounding(operation, ranks, measured), ALIKE * measured)


def joined(
    operation: str, sizes: Iterable[tuple[float, int, Hashable]], alike: float = 1.0
) -> dict[float, float]:
    """Every size -> the one of its sweep, the largest that it was rounded to.

    `sizes` are (bytes, ranks, run). Two sizes of one run are two, and so are sizes that are more than
    `alike` of the smaller apart.
    """
    runs: dict[float, set[Hashable]] = defaultdict(set)
    reach: dict[float, int] = defaultdict(int)
    for nbytes, ranks, run in sizes:
        runs[nbytes].add(run)
        reach[nbytes] = max(reach[nbytes], rounding(operation, ranks, nbytes))
    result: dict[float, float] = {}
    same: list[float] = []
    for nbytes in sorted(runs):
        apart = nbytes - same[0] if same else 0.0
        # half a size is the most that rounding takes away
        one = same and apart < min(max(reach[same[0]], reach[nbytes]), alike * same[0])
        if not one or any(runs[nbytes] & runs[other] for other in same):
            same = []
        same.append(nbytes)
        result.update(dict.fromkeys(same, nbytes))
    return result
