"""MPI factors of a SimGrid platform: message costs that give the oracle's allreduce times.

SimGrid plays a collective message by message. A ring ("lr"; "smp_rsag_lr" among hosts) of m bytes on p
ranks is 2 (p - 1) steps of m / p bytes, recursive doubling ("rdb") log2 p of all m; so a step must take
the oracle's time over the steps. What SimGrid 3.32 gives a message of s bytes (from its own times):
  latency * lat-factor + (s + 16) / (bandwidth * bw-factor), factors by s + 16
  + smpi/ois in collectives, + smpi/os in MPI_Send of less than 64 KiB
so any law in pieces whose lines rise from above 0 is held, and one that jumps, too. Where point-to-point
was measured as well the message takes the smaller of both times and the other gets the rest.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from calib.export.collapse import least_relative
from calib.foundation.arrays import Floats
from calib.foundation.errors import InputError
from calib.foundation.layers import ITEM_BYTES
from calib.foundation.words import counted, number

HEADER_BYTES = 16  # that SMPI adds to every message
DETACHED_BYTES = 65536  # SimGrid's own smpi/send-is-detached-thresh
# a line may be off by this from the times of its sizes before it is cut in two
TOLERANCE = 0.01
# a stretch of equal times has no infinite bandwidth, but at most the largest one over this
LEAST_SHARE = 0.1
MOST_BYTES = 1 << 28  # factors are fitted up to here, by the oracle's extrapolation
LEAST_S = 1e-9  # SimGrid's own surf/precision, with which smpirun starts it
ROUNDING = 1e-9


@dataclass(frozen=True)
class Algorithm:
    """One of SMPI's for an allreduce: `steps` messages in a row, each of m / `parts`.

    A remainder is sent afterwards, or (`whole`) with the largest part.
    """

    name: str
    steps: Callable[[int], int]
    parts: Callable[[int], int]
    whole: bool = False

    def step_of(
        self, seconds: float, ranks: int, smallest_s: float, alone_s: float | None = None
    ) -> float:
        """Seconds of a step of an allreduce that takes `smallest_s` at its fewest bytes.

        Few sizes are multiples of a p that is no power of two: others have a remainder to send, too.
        """
        steps = self.steps(ranks)
        if self.whole or ranks & (ranks - 1) == 0:
            return seconds / steps
        more = rest_steps(ranks)
        least = 1 / (steps + more)
        rest = smallest_s * least if alone_s is None else alone_s
        return max((seconds - more * rest) / steps, seconds * least)


RING = Algorithm("lr", lambda p: 2 * (p - 1), lambda p: p)
# with one rank on each host only: inside one it is a tree
LEADERS_RING = Algorithm("smp_rsag_lr", lambda p: 2 * (p - 1), lambda p: p, whole=True)
DOUBLING = Algorithm(
    "rdb", lambda p: p.bit_length() - 1 + 2 * (p & (p - 1) > 0), lambda _p: 1, whole=True
)


def rest_steps(ranks: int) -> int:
    """Messages in a row that SMPI sends for what p does not divide (found from its times)."""
    return ranks.bit_length()


class FactorLine(NamedTuple):
    """start_s + s_per_byte * bytes, for messages of `from_nbytes` and more."""

    from_nbytes: int
    start_s: float
    s_per_byte: float


@dataclass(frozen=True)
class Messages:
    """SimGrid's times of messages; lines are for a route of `links` links.

    `route`: by bytes + HEADER_BYTES. `isend`, `send`: what collectives and MPI_Send add. `loopback`:
    factors on the route's start and seconds per byte between ranks of one host.
    """

    route: tuple[FactorLine, ...]
    isend: tuple[FactorLine, ...]
    send: tuple[FactorLine, ...]
    links: int
    loopback: tuple[float, float] = (1.0, 1.0)
    algorithm: Algorithm = RING

    @property
    def words(self) -> str:
        """5 pieces, to 4.10 GB/s."""
        fastest = max(1 / line.s_per_byte for line in self.route)
        return f"{counted(len(self.route), 'piece')}, to {number(fastest / 1e9)} GB/s"

    def on_route(self, nbytes: int, links: int) -> float:
        """Seconds between two hosts that are so many links apart."""
        line = line_at(self.route, nbytes)
        return line.start_s * links / self.links + (nbytes + HEADER_BYTES) * line.s_per_byte

    def inside(self, nbytes: int) -> float:
        """Seconds between two ranks of a host."""
        line, (start, per_byte) = line_at(self.route, nbytes), self.loopback
        return line.start_s * start + (nbytes + HEADER_BYTES) * line.s_per_byte * per_byte

    def alone(self, nbytes: int, links: int) -> float:
        """MPI_Send and its MPI_Recv; 0 links are two ranks of a host."""
        found = self.on_route(nbytes, links) if links else self.inside(nbytes)
        return found + (extra(self.send, nbytes) if nbytes < DETACHED_BYTES else 0.0)

    def step(self, nbytes: int, links: int, shared: bool) -> float:
        """A step of a collective, over routes of at most `links`; `shared`: some stay in a host."""
        found = self.on_route(nbytes, links) if links else self.inside(nbytes)
        if shared:
            found = max(found, self.inside(nbytes))
        return found + extra(self.isend, nbytes)

    def allreduce(self, nbytes: int, ranks: int, links: int, shared: bool) -> float:
        """m >= 4 p bytes on p ranks; what p does not divide is sent by itself."""
        part, rest = divmod(nbytes // ITEM_BYTES, self.algorithm.parts(ranks))
        if self.algorithm.whole:
            part, rest = part + rest, 0
        found = self.algorithm.steps(ranks) * self.step(part * ITEM_BYTES, links, shared)
        if rest:
            found += self._rest(rest * ITEM_BYTES, ranks, links, shared)
        return found

    def _rest(self, nbytes: int, ranks: int, links: int, shared: bool) -> float:
        """What p does not divide: MPI_Sends to the first rank, one after the other over its link."""
        per_byte = line_at(self.route, nbytes).s_per_byte * (1.0 if links else self.loopback[1])
        isend = extra(self.isend, nbytes)
        one = self.step(nbytes, links, shared) - isend + extra(self.send, nbytes)
        waits = (ranks - 2) * (nbytes + HEADER_BYTES) * per_byte
        return rest_steps(ranks) * one + isend + waits


def line_at(lines: Sequence[FactorLine], nbytes: int) -> FactorLine:
    """The line of a message."""
    return lines[max(0, bisect_right(lines, nbytes, key=lambda line: line.from_nbytes) - 1)]


def extra(lines: Sequence[FactorLine], nbytes: int) -> float:
    """Seconds of smpi/ois or os; 0 without one."""
    if not lines:
        return 0.0
    line = line_at(lines, nbytes)
    return line.start_s + line.s_per_byte * nbytes


def sizes(low: int, high: int, more: Iterable[float] = ()) -> list[int]:
    """Messages of whole items from `low` to `high`: both, powers of two, 1.5 times them, `more`."""
    found = {low, high, *(int(size) for size in more)}
    for k in range(2, high.bit_length()):
        found |= {1 << k, 3 << (k - 1)}
    whole = {max(ITEM_BYTES, size - size % ITEM_BYTES) for size in found}
    return sorted(size for size in whole if low <= size <= high)


def middle(times: Sequence[float]) -> float:
    """The t with the least sum of |t / time - 1|: the median weighted by 1 / time."""
    ordered = sorted(times)
    weights = np.cumsum(1.0 / np.array(ordered))
    return ordered[int(np.searchsorted(weights, weights[-1] / 2))]


def messages_of(
    nbytes: NDArray[np.int64],
    step_s: Floats,
    alone_s: Floats,
    links: int,
    algorithm: Algorithm = RING,
) -> Messages:
    """The factors that give these times, in as few pieces as TOLERANCE allows.

    A message of `nbytes` [n] takes `step_s` [n] in a collective and `alone_s` [n] alone, NaN where
    unknown. Raises InputError where a step takes no longer than LEAST_S.
    """
    if not (step_s > LEAST_S).all():
        raise InputError(
            f"a step of these times takes under {LEAST_S:g} s, which SimGrid cannot hold"
        )
    alone = np.where(np.isfinite(alone_s), alone_s, step_s)
    least = np.minimum(step_s, alone)
    eager = nbytes < DETACHED_BYTES
    x = nbytes.astype(float)
    route = _lines(nbytes, x + HEADER_BYTES, least, least, least_slope(x, least))
    isend = _lines(nbytes, x, step_s - least, step_s, 0.0)
    send = _lines(nbytes[eager], x[eager], (alone - least)[eager], alone[eager], 0.0)
    return Messages(route, isend, send, links, algorithm=algorithm)


def least_slope(nbytes: Floats, seconds: Floats) -> float:
    """The smallest seconds per byte that a line is given (LEAST_SHARE)."""
    return LEAST_SHARE * float((seconds / (nbytes + HEADER_BYTES)).min())


def _lines(
    nbytes: NDArray[np.int64], x: Floats, y: Floats, scale: Floats, least: float
) -> tuple[FactorLine, ...]:
    """y(x) in as few lines as TOLERANCE of `scale` allows, the longest first; none where y is 0."""
    if not y.any():
        return ()
    n, lines, start = len(x), [], 0
    while start < n:
        end = start + 1
        while end < n and _is_line(
            x[start : end + 1], y[start : end + 1], scale[start : end + 1], least
        ):
            end += 1
        border = 0 if start == 0 else int(nbytes[start - 1] + nbytes[start]) // 2 + 1
        # between the sizes of a short stretch the sizes next to it decide; below all sizes the
        # smallest ones
        near = slice(start - 1, end + 1) if start else slice(0, end)
        own = slice(start - near.start, end - near.start)
        lines.append(FactorLine(border, *_line(x[near], y[near], scale[near], least, own)))
        start = end
    return tuple(lines)


def _is_line(x: Floats, y: Floats, scale: Floats, least: float) -> bool:
    a, b = _line(x, y, scale, least, slice(None))
    return bool((np.abs(a + b * x - y) <= TOLERANCE * scale).all())


def _line(x: Floats, y: Floats, scale: Floats, least: float, own: slice) -> tuple[float, float]:
    """(a >= 0, b >= least) with the least sum |a + b x - y| / scale, x rising from above 0.

    Over its `own` points; of equally good lines the one nearest to all points. The best line goes
    through two points, or through one with a or b at its bound (least absolute deviations are a linear
    program, whose solution is a corner).
    """
    first, second = np.triu_indices(len(x), 1)
    slopes = (y[second] - y[first]) / (x[second] - x[first])
    b = np.concatenate([slopes, np.full(len(x), least), y / x])
    a = np.concatenate([y[first] - slopes * x[first], y - least * x, np.zeros(len(x))])
    a[(a < 0) & (a > -ROUNDING * y.max())] = 0.0
    possible = (a >= 0) & (b >= least)
    a, b = a[possible], b[possible]
    off = np.abs(a[:, None] + b[:, None] * x - y) / scale
    mine = off[:, own].sum(axis=1)
    equal = mine <= mine.min() + ROUNDING
    best = int(np.argmin(np.where(equal, off.sum(axis=1), np.inf)))
    return float(a[best]), float(b[best])


def refitted(
    messages: Messages, nbytes: Floats, seconds: Floats, links: Floats, least_s_per_byte: float
) -> Messages:
    """The route's lines, fitted again to the messages [n] of several p: least mean relative error.

    Their routes may have different numbers of links. Only where nothing but the route takes time.
    """
    borders = [line.from_nbytes for line in messages.route]
    piece = np.searchsorted(borders, nbytes, side="right") - 1
    lines = []
    for k, line in enumerate(messages.route):
        mine = piece == k
        if mine.any():
            rows = np.column_stack([links[mine] / messages.links, nbytes[mine] + HEADER_BYTES])
            a, b = least_relative(rows, seconds[mine], [0.0, least_s_per_byte], any_will_do=True)
            lines.append(FactorLine(line.from_nbytes, float(a), float(b)))
        else:
            lines.append(line)
    return replace(messages, route=tuple(lines))


def loopback_of(
    messages: Messages, nbytes: Sequence[int], seconds: Sequence[float], slowest: float | None
) -> tuple[float, float]:
    """Factors on the route's start and seconds per byte for messages inside a host.

    With the least mean relative error, and at most `slowest`, so that a ring over several hosts does
    not wait for the messages inside one.
    """
    lines = [line_at(messages.route, size) for size in nbytes]
    rows = np.array(
        [
            (line.start_s, (size + HEADER_BYTES) * line.s_per_byte)
            for line, size in zip(lines, nbytes, strict=True)
        ]
    )
    start, per_byte = least_relative(rows, seconds, [1e-3, 1e-3], any_will_do=True)
    if slowest is not None:
        start, per_byte = min(start, slowest), min(per_byte, 1.0)
    return float(start), float(per_byte)
