"""ClusterCheck: who is not like the others, from the times of devices, nodes and pairs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

from pydantic import Field

from calib.fitting.outliers.blame import Culprit as Blamed
from calib.fitting.outliers.blame import CulpritKind, blame, in_common
from calib.fitting.outliers.expectation import Expectation, expectation_of, rate_of
from calib.fitting.outliers.slowness import (
    Comparison,
    Kind,
    Scope,
    Unit,
    compare,
    scope_of,
    unit_of,
)
from calib.foundation.files import read_record, write_json
from calib.foundation.quantities import (
    Count,
    CountOrNone,
    Flops,
    FormatVersion,
    Magnitude,
    Ratio,
    WholeBytes,
)
from calib.foundation.records import Estimate, RatioEstimate, Record, TimeEstimate
from calib.foundation.statistics import median, quantile
from calib.microbench.records.peers import PeerTime, PeerTimes, host_of

CHECK_FORMAT = 1
FINE, SLOWER = 0, 1  # exit codes
Aspect = Literal["time", "start-up", "failed"]


class Symptom(Record):
    """One kind of work in which a culprit is slow, or which it fails."""

    scope: Scope = Field(description="of what: device, node or pair")
    what: str = Field(description="work of a device, or a collective")
    aspect: Aspect = Field(
        description="time: of large sizes; start-up: of sizes at which time does not grow; failed"
    )
    slowdown: RatioEstimate | None = Field(
        default=None,
        description="its time / that of the good ones: the median, and 95% of its pairs and sizes; "
        "null: it failed",
    )
    nbytes: WholeBytes = Field(default=0, description="B of the largest size that was compared")
    flops: Flops = Field(default=0.0, description="floating point operations of a call; 0 none")
    seconds: TimeEstimate | None = Field(
        default=None,
        description="of it at that size, from its fastest to its slowest; null: it failed",
    )
    usual: TimeEstimate | None = Field(
        default=None, description="of the good ones at that size; null: it failed"
    )
    places: Count = Field(description="how many work together")
    slow: Count = Field(description="of what it takes part in, how many are slow, or failed")
    units: Count = Field(description="how many it takes part in")
    reason: str = Field(default="", description='why it failed, as the log says; "" not known')


class Culprit(Record):
    """Somebody who is not like the others."""

    kind: CulpritKind = Field(description="node, device, rail, switch or pair")
    name: str = Field(description="its host, HOST/DEVICE, rack, or the two places of a pair")
    hosts: list[str] = Field(description="the hosts that it is of; of a rail all that have it")
    symptoms: list[Symptom] = Field(min_length=1, description="the worst first")
    disturbed: str = Field(default="", description='what disturbed its host meanwhile; "" nothing')


class Level(Record):
    """What good ones take, of one kind of work at its largest size."""

    scope: Scope = Field(description="device, node or pair")
    what: str = Field(description="work of a device, or a collective")
    aspect: Kind = Field(description="time of large sizes, or start-up of small ones")
    nbytes: WholeBytes = Field(description="B")
    flops: Flops = Field(description="floating point operations of a call; 0 none")
    places: Count = Field(description="how many work together")
    units: Count = Field(description="how many were compared")
    slow: CountOrNone = Field(description="how many of them are slow")
    seconds: TimeEstimate = Field(description="95% of the good ones lie within")
    rate: Magnitude = Field(description="FLOP/s, or B/s: of collectives the bus bandwidth")
    expected: Expectation | None = Field(
        default=None, description="of a sound machine, by data sheets and topology; null: not known"
    )

    @property
    def is_below(self) -> bool:
        """Whether even the good ones are slower than sound ones may be expected to be."""
        return self.expected is not None and self.rate < self.expected.low


class Slowness(Record):
    """How one device, node or pair compares with the good ones, in one kind of work."""

    scope: Scope = Field(description="device, node or pair")
    what: str = Field(description="work of a device, or a collective")
    aspect: Aspect = Field(description="time of large sizes, start-up of small ones, or failed")
    places: list[str] = Field(description="who")
    slowdown: Ratio | None = Field(description="its time / that of the good ones; null: it failed")
    slow: bool = Field(description="whether that is beyond their spread")


class InCommon(Record):
    """What most slow pairs share, though others that share it are good."""

    word: str = Field(description="a host, or a device at either end")
    slow: Count = Field(description="slow pairs with it")
    pairs: Count = Field(description="all pairs with it")


class ClusterCheck(Record):
    """cluster_check.json: what of a cluster is not like the others, and how it was found."""

    format_version: FormatVersion = CHECK_FORMAT
    culprits: list[Culprit] = Field(description="those that cost most first")
    levels: list[Level] = Field(description="what the good ones take")
    slowness: list[Slowness] = Field(description="of every device, node and pair")
    common: list[InCommon] = Field(default_factory=list, description="of slow pairs")
    good_hosts: list[str] = Field(description="hosts without those that are to be left out")
    excluded: list[str] = Field(description="the fewest hosts without which nothing is slow")
    notes: list[str] = Field(default_factory=list, description="what could not be judged, and why")
    peers: PeerTimes = Field(description="what was timed")

    @property
    def code(self) -> int:
        """0 where all are alike and as expected, 1 where something is slower or fails."""
        below = any(level.is_below for level in self.levels)
        return SLOWER if self.culprits or below else FINE

    @classmethod
    def read(cls, path: Path) -> ClusterCheck:
        """Read the file. Raises FileError."""
        return read_record(cls, path, "cluster check", CHECK_FORMAT)

    def write(self, path: Path) -> None:
        """Write the file, whole or not at all."""
        write_json(path, self.model_dump(mode="json"))


def check(peers: PeerTimes, notes: Sequence[str] = ()) -> ClusterCheck:
    """Compare what is alike, and name who is slow or fails."""
    comparisons = compare(peers.times)
    symptoms: dict[tuple[CulpritKind, str], list[tuple[Blamed, Symptom]]] = {}

    def add(blamed: Blamed, symptom: Symptom) -> None:
        symptoms.setdefault((blamed.kind, blamed.name), []).append((blamed, symptom))

    for of in comparisons:
        for blamed in blame(of.scope, of.logs.keys(), of.slow, peers.racks):
            add(blamed, _slow(of, blamed))
    for blamed, symptom in _failures(peers):
        add(blamed, symptom)
    culprits = [_culprit(kind, name, of, peers) for (kind, name), of in symptoms.items()]
    culprits.sort(key=_cost, reverse=True)
    hosts = sorted({host for time in peers.times for host in time.hosts})
    left_out = fewest_hosts(culprits)
    return ClusterCheck(
        culprits=culprits,
        levels=[_level(of, peers) for of in comparisons],
        slowness=[each for of in comparisons for each in _units(of)] + _failed(peers),
        common=_common(comparisons),
        good_hosts=[host for host in hosts if host not in left_out],
        excluded=left_out,
        notes=[*notes, *_unjudged(peers, comparisons)],
        peers=peers,
    )


def suspects(times: Iterable[PeerTime]) -> list[Unit]:
    """The units that are slow in some kind of work: what is to be timed again."""
    return sorted({unit for of in compare(times) for unit in of.slow})


def fewest_hosts(culprits: Sequence[Culprit]) -> list[str]:
    """The fewest hosts without which nothing is slow: nodes, those of devices, and one of each pair.

    Of pairs, the host that most of the pairs left have, again and again: a greedy vertex cover. Rails
    and switches are no hosts.
    """
    out = {host for each in culprits if each.kind in ("node", "device") for host in each.hosts}
    pairs = [each.hosts for each in culprits if each.kind == "pair"]
    while pairs := [pair for pair in pairs if out.isdisjoint(pair)]:
        counted = Counter(host for pair in pairs for host in pair)
        out.add(max(counted, key=lambda host: (counted[host], host)))
    return sorted(out)


def _slow(of: Comparison, blamed: Blamed) -> Symptom:
    """How slow a culprit is: the median of its units and sizes, and 95% of them."""
    logs = [log - of.good.log for unit in blamed.slow for log in of.sizes[unit]]
    middle, off = median(logs), 2.0 * of.good.sigma / math.sqrt(len(logs))
    low, high = quantile(logs, 0.025) - off, quantile(logs, 0.975) + off
    # of runs that broke off, sizes are missing
    largest = max(time.nbytes for time in of.largest.values())
    whole = [u for u in blamed.slow if of.largest[u].nbytes == largest] or list(blamed.slow)
    times = [of.base_s * math.exp(of.sizes[unit][-1] - of.good.log) for unit in whole]
    example = of.largest[whole[0]]
    return Symptom(
        scope=of.scope,
        what=of.what,
        aspect=of.kind,
        slowdown=Estimate(value=math.exp(middle), low=math.exp(low), high=math.exp(high)),
        nbytes=example.nbytes,
        flops=example.flops,
        places=len(example.places),
        seconds=Estimate(value=median(times), low=min(times), high=max(times)),
        usual=_usual(of),
        slow=len(blamed.slow),
        units=blamed.units,
    )


def _usual(of: Comparison) -> Estimate:
    """What good ones take at the largest size, as far as they are apart."""
    return Estimate.within_factor(of.base_s, math.exp(2.0 * of.good.sigma))


def _failures(peers: PeerTimes) -> list[tuple[Blamed, Symptom]]:
    """Culprits of what gave no time at all, for each kind of work by itself."""
    found = []
    works = dict.fromkeys((scope_of(t), t.what) for t in peers.times if t.failed)
    for scope, what in works:
        if scope is None:
            continue
        mine = [t for t in peers.times if (scope_of(t), t.what) == (scope, what)]
        why = {unit_of(t): t.failed for t in mine if t.failed}
        for blamed in blame(scope, {unit_of(t) for t in mine}, why.keys(), peers.racks):
            symptom = Symptom(
                scope=scope,
                what=what,
                aspect="failed",
                places=len(blamed.slow[0]),
                slow=len(blamed.slow),
                units=blamed.units,
                reason=why[blamed.slow[0]],
            )
            found.append((blamed, symptom))
    return found


def _culprit(
    kind: CulpritKind, name: str, of: Sequence[tuple[Blamed, Symptom]], peers: PeerTimes
) -> Culprit:
    places = {place for blamed, _ in of for unit in blamed.slow for place in unit}
    if kind == "node":
        hosts = [name]
    elif kind == "device":
        hosts = [host_of(name)]
    else:
        hosts = sorted(set(map(host_of, places)))
    reasons = ", ".join(each for host in hosts for each in peers.disturbed.get(host, []))
    return Culprit(
        kind=kind,
        name=name,
        hosts=hosts,
        symptoms=sorted((symptom for _, symptom in of), key=_slowdown, reverse=True),
        disturbed=reasons,
    )


def _slowdown(of: Symptom) -> float:
    return math.inf if of.slowdown is None else of.slowdown.value


def _cost(of: Culprit) -> tuple[int, float]:
    """In how many units it is slow, then how slow it is."""
    return max(symptom.slow for symptom in of.symptoms), _slowdown(of.symptoms[0])


def _level(of: Comparison, peers: PeerTimes) -> Level:
    example = next(iter(of.largest.values()))
    return Level(
        scope=of.scope,
        what=of.what,
        aspect=of.kind,
        nbytes=example.nbytes,
        flops=example.flops,
        places=len(example.places),
        units=len(of.logs),
        slow=len(of.slow),
        seconds=_usual(of),
        rate=rate_of(of.what, len(example.places), example.nbytes, example.flops, of.base_s),
        expected=expectation_of(of, peers),
    )


def _units(of: Comparison) -> list[Slowness]:
    return [
        Slowness(
            scope=of.scope,
            what=of.what,
            aspect=of.kind,
            places=list(unit),
            slowdown=math.exp(log),
            slow=unit in of.slow,
        )
        for unit, log in of.logs.items()
    ]


def _failed(peers: PeerTimes) -> list[Slowness]:
    return [
        Slowness(
            scope=scope,
            what=time.what,
            aspect="failed",
            places=list(unit_of(time)),
            slowdown=None,
            slow=True,
        )
        for time in peers.times
        if time.failed and (scope := scope_of(time)) is not None
    ]


def _common(comparisons: Sequence[Comparison]) -> list[InCommon]:
    """Of the pairs, in large sizes: what is slow in any kind of work."""
    of = [each for each in comparisons if each.scope == "pair" and each.kind == "time"]
    units = {unit for each in of for unit in each.logs}
    slow = {unit for each in of for unit in each.slow}
    return [InCommon(word=w, slow=bad, pairs=n) for w, bad, n in in_common(units, slow)]


def _unjudged(peers: PeerTimes, comparisons: Sequence[Comparison]) -> list[str]:
    """What has no like to be compared with."""
    alone = dict.fromkeys((of.scope, of.what) for of in comparisons if len(of.sizes) == 1)
    notes = [f"{what}: one {scope} alone, compared with no other" for scope, what in alone]
    notes += [
        f"{host} was disturbed ({', '.join(by)}): small differences cannot be told from that"
        for host, by in peers.disturbed.items()
    ]
    larger = sum(scope_of(time) is None for time in peers.times)
    if larger:
        notes.append(f"{larger} times are of more than two nodes at once, which name nobody")
    return notes
