"""What a check of a cluster found, in sentences and tables that terminal and page share."""

from __future__ import annotations

from textwrap import shorten

from calib.fitting.outliers.check import ClusterCheck, Level, Symptom
from calib.fitting.outliers.expectation import rate_of as rate
from calib.foundation.records import Estimate
from calib.foundation.words import counted, exact_bytes, number, several, with_interval
from calib.microbench.records.peers import CONVOLUTION, MEMORY, PRODUCT, TO_DEVICE
from calib.reports.tables.table import Table

WORKS = {
    PRODUCT: "matrix product",
    MEMORY: "memory",
    CONVOLUTION: "convolution",
    TO_DEVICE: "copy to the device",
    "p2p": "message",
    "sendrecv": "send and receive",
    "all_to_all": "all-to-all",
    "reduce_scatter": "reduce-scatter",
}
PAIRS = {"device": "devices", "node": "nodes", "pair": "pairs of nodes"}
OTHER_SIZES = 0.2  # what the largest size may be off the others, in the same words
MOST_REASON = 90  # letters of why something failed, in a line


def verdict(of: ClusterCheck) -> str:
    """The first line: how many are not like the others, of how many."""
    hosts = {host for time in of.peers.times for host in time.hosts}
    looked = ", ".join(
        f"{_most_units(of, scope)} {word}"
        for scope, word in PAIRS.items()
        if _most_units(of, scope) and not (scope == "node" and _most_units(of, scope) == len(hosts))
    )
    compared = f"{counted(len(hosts), 'node')}{f' ({looked} compared)' if looked else ''}"
    if of.culprits:
        return f"{compared}: {counted(len(of.culprits), 'culprit')}"
    return f"{compared}: all alike{', but slower than is to be expected' * bool(of.code)}"


def _most_units(of: ClusterCheck, scope: str) -> int:
    return max((level.units for level in of.levels if level.scope == scope), default=0)


def culprit_lines(of: ClusterCheck) -> list[str]:
    """A line for each culprit, what it is slow in below it, and what slow pairs have in common."""
    lines = []
    for culprit in of.culprits:
        lines.append(f"{culprit.kind} {culprit.name}: {symptom_words(culprit.symptoms[0])}")
        lines += [f"  also {symptom_words(each)}" for each in culprit.symptoms[1:]]
        if culprit.disturbed:
            lines.append(f"  meanwhile {culprit.disturbed}")
    for level in of.levels:
        if level.is_below and level.expected is not None:
            low, high = (number(x / 1e9) for x in (level.expected.low, level.expected.high))
            what = f"{work_words(level.what)}: also the good ones do {number(level.rate / 1e9)}"
            lines.append(
                f"{what} {unit_of(level)}, expected {low} to {high} ({level.expected.source})"
            )
    for common in of.common:
        good = common.pairs - common.slow
        lines.append(
            f"{common.word} is in {common.slow} of the slow pairs, and in {counted(good, 'good one')}: "
            "look there first"
        )
    return lines


def settings_lines(of: ClusterCheck) -> list[str]:
    """A line for each setting that is known to cost, with the nodes that have it, and advice."""
    having: dict[tuple[str, str, str], list[str]] = {}
    for host, found in of.peers.settings.items():
        for each in found:
            having.setdefault((each.name, each.found, each.advice), []).append(host)
    hosts = {host for time in of.peers.times for host in time.hosts}
    return [
        f"{'all nodes' if set(having_it) >= hosts else several(having_it)}: {name}: {found}; {advice}"
        for (name, found, advice), having_it in having.items()
    ]


def symptom_words(of: Symptom) -> str:
    """`message at 11.7 GB/s, others 22.9: 1.96 times [1.90, 2.02] as long, 15 of 15 pairs slow`."""
    name = work_words(of.what)
    units = f"{of.slow} of {of.units}" if of.units > 1 else ""
    if of.slowdown is None or of.seconds is None or of.usual is None:
        reason = shorten(
            of.reason.removeprefix("the run failed, "), MOST_REASON, placeholder=" ..."
        )
        return ", ".join(filter(None, (f"{name} fails", units and f"{units} fail", reason)))
    mine, unit = rate_of(of, of.seconds)
    usual, _ = rate_of(of, of.usual)
    size = f" of {exact_bytes(of.nbytes)}" if of.nbytes and not of.flops else ""
    there = of.seconds.value / of.usual.value
    factor = with_interval(*of.slowdown.numbers)
    times = f"{factor} times as long"
    if abs(there / of.slowdown.value - 1.0) > OTHER_SIZES:  # a link that breaks down under load
        times = f"{number(there)} times as long, {factor} over all large sizes"
    first = f"{name}{size} at {number(mine)} {unit}, others {number(usual)}: {times}"
    return ", ".join(filter(None, (first, units and f"in {units}")))


def work_words(what: str) -> str:
    """A kind of work as people call it."""
    name, _, detail = what.partition(" ")
    return f"{WORKS.get(name, name)} {detail}".strip()


def rate_of(of: Symptom | Level, seconds: Estimate) -> tuple[float, str]:
    """How fast work is done, and the unit: FLOP/s, bus bandwidth, or of start-ups the time."""
    if of.aspect == "start-up" or not seconds.value:
        return seconds.value * 1e6, "us"
    return rate(of.what, of.places, of.nbytes, of.flops, seconds.value) / 1e9, unit_of(of)


def unit_of(of: Symptom | Level) -> str:
    """Of its rate, 1e9 of which a second are printed."""
    return "GFLOP/s" if of.flops else "GB/s"


def levels_table(of: ClusterCheck) -> Table:
    """What the good ones do: the normal values of this machine."""
    rows = []
    for level in of.levels:
        ends = Estimate.exactly(level.seconds.low), Estimate.exactly(level.seconds.high)
        value, unit = rate_of(level, level.seconds)
        low, high = sorted(rate_of(level, end)[0] for end in ends)
        rows.append(
            [
                work_words(level.what),
                PAIRS[level.scope]
                if level.places <= 2
                else f"{level.scope}s, {level.places} ranks",
                "start-up" if level.aspect == "start-up" else _size(level.nbytes),
                str(level.units),
                str(level.slow),
                with_interval(value, low, high),
                unit,
                "" if level.expected is None else _expected(level),
            ]
        )
    return Table(
        "What the good ones do",
        ["work", "of", "size", "compared", "slow", "usual", "unit", "expected"],
        rows,
        numbers=("size", "compared", "slow", "usual", "expected"),
        remarks=[
            "usual: of the good ones, with what 95% of them lie within; collectives in busbw",
            "expected: by data sheets and topology, where they are known",
        ],
        least=(["expected"], ["size"], ["unit"]),
    )


def _size(nbytes: int) -> str:
    return exact_bytes(nbytes) if nbytes else ""


def _expected(level: Level) -> str:
    """`11.0 to 12.4`, LOW if even the good ones are below."""
    assert level.expected is not None
    low, high = (number(x / 1e9) for x in (level.expected.low, level.expected.high))
    return f"{'LOW: ' * level.is_below}{low} to {high}"


def slow_table(of: ClusterCheck) -> Table:
    """All that is slow or fails, one by one."""
    rows = [
        [
            " and ".join(each.places) if len(each.places) <= 2 else several(each.places),
            work_words(each.what),
            each.aspect,
            "failed" if each.slowdown is None else f"{number(each.slowdown)} times",
        ]
        for each in sorted(of.slowness, key=lambda x: -(x.slowdown or 1e9))
        if each.slow
    ]
    return Table("What is slow or fails", ["who", "work", "of", "takes"], rows, numbers=("takes",))
