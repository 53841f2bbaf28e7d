"""Column layouts of nccl-tests tables, which differ by version and option."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from operator import itemgetter

# versions before 2.0 and -C have other words
RENAMED = {
    "bytes": "size",
    "N": "count",
    "op": "redop",
    "cputime": "time",
    "res": "wrong",
    "delta": "wrong",
    "error": "wrong",
}
CHOICE = ("algo", "proto", "nchannels")  # of rccl-tests -M or -A, behind all others
BLANKS = ("", "N/A")  # what stands behind a row's own tokens: a column that is not there, a half
NO_COLUMN, NO_HALF = -2, -1
USUAL = (0, 1, 2, 3)


@dataclass
class ColumnLayout:
    """Where the columns of a table stand, by the number of tokens of a row.

    `groups` are the columns of each half: time [hipevt] algbw busbw wrong [bitdiff] [i_min ...], of
    which `wanted` are time, algbw, busbw and wrong. `alone` is the half that is the only one.
    """

    groups: int = 4
    wanted: tuple[int, ...] = USUAL
    alone: str = ""  # "out-of-place", "in-place", "" of both
    choice: bool = False
    picks: dict[int, Callable[[list[str]], tuple[str, ...]] | None] = field(default_factory=dict)

    @classmethod
    @lru_cache(maxsize=64)
    def of(cls, names: tuple[str, ...], halves: tuple[str, ...] = ()) -> ColumnLayout:
        """From a header's words: size count type [redop] [root], one or two halves, and others.

        `halves` are what the line above names: out-of-place, in-place or both.
        """
        times = [index for index, name in enumerate(names) if name == "time"]
        ends = [names.index(name) for name in ("algo", "timestamp") if name in names]
        end = min([*ends, len(names)])
        first = names[times[0] : times[1] if len(times) == 2 else end] if times else ()
        alone = halves[0] if len(times) == 1 and len(halves) == 1 else ""
        layout = cls(max(4, len(first)) if alone or len(times) == 2 else 4, _wanted(first), alone)
        layout.choice = all(name in names for name in CHOICE)
        if names[:3] != ("size", "count", "type"):
            return layout
        places = {str(name): names.index(name) for name in ("redop", "root") if name in names}
        begin = times[0] if times else 3 + len(places)
        behind = 2 * ("timestamp" in names) + len(CHOICE) * layout.choice
        layout._pick(places, begin, behind)
        if "redop" in places and "root" not in places:  # alltoall up to 2.12: redop is blank
            layout._pick({}, begin - 1, behind)
        return layout

    def half(self, numbers: Sequence[str]) -> list[str]:
        """Time, algbw, busbw and wrong of the `groups` columns of a half."""
        return [numbers[index] for index in self.wanted]

    @property
    def halves(self) -> int:
        """How many halves a row has."""
        return 1 if self.alone else 2

    def _pick(self, places: dict[str, int], begin: int, behind: int) -> None:
        """Rows whose first half begins at column `begin`, with `behind` columns after the last.

        What is picked of a row's tokens and BLANKS is what Rows wants; None: all as they are.
        """
        width = begin + self.halves * self.groups + behind
        own = [[begin + half * self.groups + at for at in self.wanted] for half in range(2)]
        if self.alone:
            own[1] = [NO_HALF] * 4
            own = own[::-1] if self.alone == "in-place" else own
        order = [0, 1, 2, places.get("redop", NO_COLUMN), places.get("root", NO_COLUMN)]
        order += [*own[0], *own[1]]
        self.picks[width] = None if order == list(range(width)) else itemgetter(*order)


def _wanted(names: Sequence[str]) -> tuple[int, ...]:
    """Where time, algbw, busbw and wrong stand in a half: the usual places if its words are lost."""
    words = ("time", "algbw", "busbw", "wrong")
    return tuple(map(list(names).index, words)) if set(words) <= set(names) else USUAL
