"""Where the columns of a table of nccl-tests stand: they differ by version and by option."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from operator import itemgetter

# versions before 2.0 and -C have other words
RENAMED = {"bytes": "size", "N": "count", "op": "redop", "cputime": "time", "res": "error"}


@dataclass
class Layout:
    """Where the columns of a table stand, by the number of tokens of a row."""

    groups: int = 4  # columns of each half: time algbw busbw wrong [bitdiff] [i_min i_max ...]
    picks: dict[int, Callable[[list[str]], tuple[str, ...]] | None] = field(default_factory=dict)

    @classmethod
    @lru_cache(maxsize=64)
    def of(cls, names: tuple[str, ...]) -> Layout:
        """From a header's words: size count type [redop] [root] and two halves [timestamp]."""
        times = [index for index, name in enumerate(names) if name == "time"]
        layout = cls(max(4, times[1] - times[0]) if len(times) == 2 else 4)
        places = {str(name): names.index(name) for name in ("redop", "root") if name in names}
        stamps = 2 if "timestamp" in names else 0
        halves = [times[0] if times else 3 + len(places)]
        halves.append(halves[0] + layout.groups)
        width = halves[1] + layout.groups + stamps
        if names[:3] != ("size", "count", "type"):
            return layout
        layout.picks[width] = _pick(places, halves, width)
        if "redop" in places and "root" not in places:  # alltoall up to 2.12: redop is blank
            halves = [place - 1 for place in halves]
            layout.picks[width - 1] = _pick({}, halves, width - 1)
        return layout


def _pick(
    places: dict[str, int], halves: list[int], width: int
) -> Callable[[list[str]], tuple[str, ...]] | None:
    """From a row's `width` tokens and one "" after them to those that Rows wants; None: as they are."""
    order = [0, 1, 2, places.get("redop", -1), places.get("root", -1)]
    order += [half + column for half in halves for column in range(4)]
    return None if order == list(range(width)) else itemgetter(*order)
