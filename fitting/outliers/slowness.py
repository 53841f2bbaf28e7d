"""Peer times -> how much slower than the good ones each device, node and pair is."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from calib.fitting.outliers.levels import FEW, Level, good_level, visits_noise
from calib.foundation.statistics import median
from calib.microbench.records.peers import PeerTime

Scope = Literal["device", "node", "pair"]
Kind = Literal["time", "start-up"]
# a size is large where time grows with it: by this power at least
LARGE_POWER = 0.5
MOST_OF_START_UP = (
    8192  # B: no larger a message takes long for its bytes, whatever sizes lie around it
)
# what is less is not worth a name, however sure it is; start-ups also vary with who wakes up when
LEAST_SLOWDOWN: dict[Kind, float] = {"time": 1.10, "start-up": 1.5}
# of the units, how many share what is good; start-ups differ by cores and switches, too
SHARED_BY: dict[Kind, float] = {"time": FEW, "start-up": 0.5}

Unit = tuple[str, ...]  # the places that worked together, sorted


@dataclass(frozen=True)
class Comparison:
    """Units that did equal work: how many times the good ones' time each took, as a log.

    `sizes` has that of each size, `logs` their median. `good` is the level of the good units among
    these, `largest` the times of the largest size and `base_s` what is good there.
    """

    scope: Scope
    what: str
    kind: Kind
    sizes: Mapping[Unit, Sequence[float]]
    good: Level
    base_s: float
    largest: Mapping[Unit, PeerTime] = field(repr=False)

    @cached_property
    def logs(self) -> dict[Unit, float]:
        """Log of a unit's time over that of the good ones, the median over sizes."""
        return {unit: median(of) - self.good.log for unit, of in self.sizes.items()}

    @cached_property
    def slow(self) -> set[Unit]:
        """The units that are slower than the good ones, beyond their spread."""
        limit = self.good.limit(LEAST_SLOWDOWN[self.kind]) - self.good.log
        return {unit for unit, log in self.logs.items() if log > limit}


def scope_of(time: PeerTime) -> Scope | None:
    """What a time is of; None of more than two nodes, which have no like."""
    if len(time.places) == 1:
        return "device" if time.is_of_device else None
    hosts = len(time.hosts)
    return "node" if hosts == 1 else "pair" if hosts == 2 else None


def unit_of(time: PeerTime) -> Unit:
    """The places of a time, whatever their order."""
    return tuple(sorted(time.places))


def compare(times: Iterable[PeerTime]) -> list[Comparison]:
    """A comparison for each kind of work, of its large sizes and of its small ones.

    Sizes are compared each by itself, and a unit's slowness is the median of its own over them: a level
    of each, not a law, so that a size at which the protocol changes does no harm.
    """
    grouped: dict[tuple[Scope, str, int, int], list[PeerTime]] = defaultdict(list)
    for time in times:
        scope = scope_of(time)
        if scope is not None and not time.failed and time.seconds and min(time.seconds) > 0:
            grouped[scope, time.what, len(time.places), time.nbytes].append(time)
    by_work: dict[tuple[Scope, str, int], dict[int, list[PeerTime]]] = defaultdict(dict)
    for (scope, what, ranks, nbytes), of in grouped.items():
        by_work[scope, what, ranks][nbytes] = of
    found = []
    for (scope, what, _), sizes in by_work.items():
        for kind, chosen in _kinds(scope, sizes).items():
            found.append(_comparison(scope, what, kind, chosen))
    return found


def _kinds(
    scope: Scope, sizes: Mapping[int, Sequence[PeerTime]]
) -> dict[Kind, dict[int, Sequence[PeerTime]]]:
    """The sizes at which time grows with the bytes, and those at which it does not."""
    if scope == "device":
        return {"time": dict(sizes)}
    ordered = sorted(sizes)
    base = {size: _base(sizes[size]).log for size in ordered}
    first = ordered[-1]  # of the large ones
    for size, above in zip(reversed(ordered[:-1]), reversed(ordered[1:]), strict=True):
        if base[above] - base[size] <= LARGE_POWER * math.log(above / max(size, 1)):
            break
        first = size
    found: dict[Kind, dict[int, Sequence[PeerTime]]] = {"time": {}, "start-up": {}}
    for size in ordered:
        is_large = size >= first and (size > MOST_OF_START_UP or len(ordered) == 1)
        found["time" if is_large else "start-up"][size] = sizes[size]
    return {kind: of for kind, of in found.items() if of}


def _base(times: Sequence[PeerTime], kind: Kind = "time") -> Level:
    noise = visits_noise([time.seconds for time in times])
    return good_level([_log(time, kind) for time in times], noise, SHARED_BY[kind])


def _log(time: PeerTime, kind: Kind) -> float:
    """Of its visits the median; of a start-up the shortest: what else runs can only delay a message."""
    return math.log(min(time.seconds) if kind == "start-up" else median(time.seconds))


def _comparison(
    scope: Scope, what: str, kind: Kind, sizes: Mapping[int, Sequence[PeerTime]]
) -> Comparison:
    each: dict[Unit, list[float]] = defaultdict(list)
    last: dict[Unit, PeerTime] = {}
    base_s = noise = 0.0
    for nbytes in sorted(sizes):
        level = _base(sizes[nbytes], kind)
        base_s = math.exp(level.log)
        noise = max(noise, visits_noise([time.seconds for time in sizes[nbytes]]))
        for time in sizes[nbytes]:
            each[unit_of(time)].append(_log(time, kind) - level.log)
            last[unit_of(time)] = time
    good = good_level(list(map(median, each.values())), noise, SHARED_BY[kind])
    return Comparison(scope, what, kind, each, good, base_s * math.exp(good.log), last)
