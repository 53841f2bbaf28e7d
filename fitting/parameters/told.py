"""Laws of a collective by what NCCL was told to use, and the sizes where another becomes the fastest."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import NamedTuple, TypeVar

from calib.fitting.parameters.collectives import CollectiveFit
from calib.foundation.nccl import told_of

OWN = "NCCL's own choice"
Choice = TypeVar("Choice")


@dataclass(frozen=True)
class ToldLaw:
    """A law of one algorithm and protocol; "" is left to NCCL."""

    fit: CollectiveFit
    algorithm: str
    protocol: str

    @property
    def name(self) -> str:
        """tree/ll; NCCL's own choice where it was told nothing."""
        if not self.algorithm and not self.protocol:
            return OWN
        return f"{self.algorithm or 'any'}/{self.protocol or 'any'}"

    @property
    def factor(self) -> float:
        """95% of the times lie within the law / and * this."""
        return self.fit.pieces_error_factor or self.fit.line_error_factor

    def knows(self, nbytes: int) -> bool:
        """Whether the size lies between those that were measured."""
        return self.fit.range_nbytes[0] <= nbytes <= self.fit.range_nbytes[1]


class FastestRange(NamedTuple):
    """From `low` to `high` bytes, both included, this is the fastest."""

    low: int
    high: int
    law: ToldLaw


def fastest(laws: Iterable[ToldLaw], nbytes: int) -> ToldLaw | None:
    """The fastest of the laws that know a size; None where fewer than two do."""
    known = [law for law in laws if law.knows(nbytes)]
    if len(known) < 2:
        return None
    return min(known, key=lambda law: (law.fit.seconds(nbytes), law.name))


def sizes_of(laws: Sequence[ToldLaw], low: int, high: int) -> list[int]:
    """Sizes between which a choice among the laws is assumed to change at most once."""
    found = {low, high} | {1 << k for k in range(63)}
    for law in laws:
        found |= {point.nbytes for point in law.fit.points}
        found |= {law.fit.range_nbytes[0] - 1, law.fit.range_nbytes[1] + 1}
        for piece in law.fit.pieces:
            found |= {int(piece.from_nbytes), int(piece.to_nbytes)}
    return sorted(m for m in found if low <= m <= high)


def ranges(
    chosen: Callable[[int], Choice], sizes: Sequence[int]
) -> Iterator[tuple[int, int, Choice]]:
    """(first byte, last byte, choice) of every range with one choice.

    By bisection between neighbours of `sizes`, between which it changes at most once.
    """
    start, choice = sizes[0], chosen(sizes[0])
    for left, right in pairwise(sizes):
        begin = left
        while chosen(right) is not choice:
            end = right
            while end - begin > 1:
                middle = (begin + end) // 2
                if chosen(middle) is choice:
                    begin = middle
                else:
                    end = middle
            yield start, end - 1, choice
            start, begin, choice = end, end, chosen(end)
    yield start, sizes[-1], choice


def fastest_told(
    fits: Iterable[CollectiveFit],
) -> Iterator[tuple[list[FastestRange], ToldLaw | None]]:
    """Of each collective with two told laws or more, the fastest by size; and NCCL's own choice.

    The end of one range is where the next becomes faster.
    """
    groups: dict[tuple[object, ...], list[ToldLaw]] = defaultdict(list)
    for fit in fits:
        if (found := told_of(fit.operation)) is not None:
            operation, *told = found
            where = fit.library, fit.device, fit.level, fit.ranks, fit.nodes, fit.ranks_per_node
            groups[operation, *where].append(ToldLaw(fit, *told))
    for laws in groups.values():
        told_laws = [law for law in laws if law.name != OWN]
        if len(told_laws) < 2:
            continue
        low = min(law.fit.range_nbytes[0] for law in told_laws)
        high = max(law.fit.range_nbytes[1] for law in told_laws)
        parts = ranges(partial(fastest, told_laws), sizes_of(told_laws, low, high))
        own = next((law for law in laws if law.name == OWN), None)
        yield [FastestRange(a, b, law) for a, b, law in parts if law is not None], own
