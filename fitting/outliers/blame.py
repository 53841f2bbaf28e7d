"""Whom slow units have in common: the fewest culprits that explain them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Literal, NamedTuple

from calib.fitting.outliers.slowness import Scope, Unit
from calib.foundation.statistics import binomial_at_most
from calib.microbench.records.peers import device_of, host_of

CulpritKind = Literal["switch", "rail", "node", "device", "pair"]
# the more general first: of two that explain as much, it is named
GENERAL: tuple[CulpritKind, ...] = ("switch", "rail", "node", "device", "pair")
# of what a culprit takes part in, the share that is slow at least; fewer than two have nothing in common
LEAST_SLOW, FEWEST_SLOW = 0.75, 2
SURE = 1e-3  # of what slow pairs have in common: how likely it would be by chance


class Culprit(NamedTuple):
    """Who is slow: its kind and name, its slow units, and in how many it took part."""

    kind: CulpritKind
    name: str
    slow: tuple[Unit, ...]
    units: int


def blame(
    scope: Scope, units: Collection[Unit], slow: Collection[Unit], racks: Mapping[str, str]
) -> list[Culprit]:
    """The culprits, largest first; a slow unit that no other shares is one by itself.

    One bad node is likelier than as many bad pairs as it has, so what is in nearly all of its units slow
    is named and its units are set aside, until nothing more is found.

    Parameters
    ----------
    scope
        What the units are.
    units
        All that were compared.
    slow
        Those that are slow.
    racks
        Host -> rack or leaf switch, where known.
    """
    takes_part: dict[tuple[CulpritKind, str], set[Unit]] = defaultdict(set)
    for unit in units:
        for key in _in(scope, unit, racks):
            takes_part[key].add(unit)
    left, bad = set(units), set(slow)
    found: list[Culprit] = []
    while bad:
        best = max(
            (
                (_gain(of & left, bad), -GENERAL.index(key[0]), key)
                for key, of in sorted(takes_part.items())
                if _explains(of & left, bad)
            ),
            default=None,
        )
        if best is None:
            break
        kind, name = best[2]
        mine = takes_part[kind, name] & left
        found.append(Culprit(kind, name, tuple(sorted(mine & bad)), len(mine)))
        left, bad = left - mine, bad - mine
    return found + [Culprit(*_by_itself(scope, unit), (unit,), 1) for unit in sorted(bad)]


def _by_itself(scope: Scope, unit: Unit) -> tuple[CulpritKind, str]:
    """A unit as its own culprit: the places of a pair, a node, or the device of one with several."""
    if scope == "pair":
        return "pair", " and ".join(unit)
    if scope == "device" and device_of(unit[0]):
        return "device", unit[0]
    return "node", host_of(unit[0])


def _in(scope: Scope, unit: Unit, racks: Mapping[str, str]) -> set[tuple[CulpritKind, str]]:
    """All that a unit's slowness may be due to, beside itself."""
    found: set[tuple[CulpritKind, str]] = {("node", host_of(place)) for place in unit}
    if scope != "pair":
        return found
    found |= {("device", place) for place in unit if device_of(place)}
    devices = {device_of(place) for place in unit}
    if len(devices) == 1 and "" not in devices:
        found.add(("rail", devices.pop()))
    across = {racks.get(host_of(place), "") for place in unit}
    if len(across) == 2 and "" not in across:
        found |= {("switch", rack) for rack in across}
        found.add(("switch", " to ".join(sorted(across))))
    return found


def _explains(mine: Collection[Unit], slow: Collection[Unit]) -> bool:
    bad = len(set(mine) & set(slow))
    return bad >= FEWEST_SLOW and bad >= LEAST_SLOW * len(mine)


def _gain(mine: Collection[Unit], slow: Collection[Unit]) -> int:
    """Slow units that it explains, less twice the good ones that it does not."""
    bad = len(set(mine) & set(slow))
    return bad - 2 * (len(mine) - bad)


def in_common(units: Collection[Unit], slow: Collection[Unit]) -> list[tuple[str, int, int]]:
    """What slow pairs share more often than by chance: (host or device, slow units, all units with it).

    It is no culprit, as other units with it are good; but it says where to look.
    """
    if len(slow) < 3:
        return []
    with_it: dict[str, set[Unit]] = defaultdict(set)
    for unit in units:
        for word in {word for place in unit for word in (host_of(place), device_of(place)) if word}:
            with_it[word].add(unit)
    found = []
    for word, of in with_it.items():
        bad = len(of & set(slow))
        share = len(of) / len(units)
        by_chance = 1.0 - binomial_at_most(bad - 1, len(slow), share)
        if bad >= LEAST_SLOW * len(slow) and by_chance * len(with_it) < SURE:
            found.append((word, bad, len(of)))
    return sorted(found, key=lambda each: (-each[1], each[2]))
