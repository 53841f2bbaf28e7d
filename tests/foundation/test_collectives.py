"""algbw and busbw: those of nccl-tests, in every log of shared/data that prints them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, get_args

import pytest
from tests.helpers.published import DATA, needs_data

from calib.foundation.collectives import (
    EQUAL_PARTS,
    Operation,
    algorithm_bandwidth,
    bus_bandwidth,
    bus_factor,
)
from calib.foundation.records import Estimate

PROGRAMS = {
    "all_reduce": "allreduce",
    "all_gather": "allgather",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "sendrecv": "sendrecv",
}
# the file names of versions that do not print their program
NAMED = {
    "allreduce": "allreduce",
    "all_reduce": "allreduce",
    "allgather": "allgather",
    "all_gather": "allgather",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "bcast": "broadcast",
    "broadcast": "broadcast",
    "reduce": "reduce",
}
LOGS = ("nccl-tests/*.txt", "nccl-scale/*.txt", "nccl-pairs/*.txt")
NUMBER = re.compile(r"\d+(\.\d+)?(e\+\d+)?")


class PrintedRow(NamedTuple):
    """One half of a row: size in B; time in us and bandwidths in GB/s as they were printed."""

    place: str
    operation: str
    ranks: int
    nbytes: int
    time: str
    algbw: str
    busbw: str


def printed_rows(path: Path) -> Iterator[PrintedRow]:
    """Both halves of every row, read without anything of the importers."""
    words = re.split(r"[_.]", path.name)
    names = [NAMED[word] for word in (*words, "_".join(words[3:5])) if word in NAMED]
    operation, ranks = names[-1] if names else "", 0
    for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
        if started := re.search(r"Collective test starting: (\w+)_perf", line):
            operation, ranks = PROGRAMS[started[1]], 0
        if listed := re.search(r"#\s+Rank\s+(\d+) ", line):
            ranks = max(ranks, int(listed[1]) + 1)
        tokens = line.split()
        if len(tokens) < 11 or not all(token.isdigit() for token in tokens[:2]) or not ranks:
            continue
        if int(tokens[0]):
            for half in (tokens[-8:-4], tokens[-4:]):
                at = f"{path.name}:{number}"
                yield PrintedRow(at, operation, ranks, int(tokens[0]), *half[:3])


def half_unit(text: str) -> float:
    """Half of the last digit of a printed number."""
    assert NUMBER.fullmatch(text), text
    mantissa, _, exponent = text.partition("e")
    return 0.5 * 10.0 ** (int(exponent or 0) - len(mantissa.partition(".")[2]))


def off(row: PrintedRow) -> tuple[float, float]:
    """How far algbw and busbw are from what was printed; 1 is what rounding of all three allows."""
    seconds, exact = float(row.time) * 1e-6, half_unit(row.time) * 1e-6
    time = Estimate(value=seconds, low=seconds - exact, high=seconds + exact)
    ours = (
        algorithm_bandwidth(row.nbytes, time),
        bus_bandwidth(row.operation, row.ranks, row.nbytes, time),
    )
    found = []
    for bandwidth, text in zip(ours, (row.algbw, row.busbw), strict=True):
        assert bandwidth is not None
        allowed = (
            half_unit(text)
            + max(bandwidth.high - bandwidth.value, bandwidth.value - bandwidth.low) * 1e-9
        )
        found.append(abs(bandwidth.value * 1e-9 - float(text)) / allowed)
    return found[0], found[1]


@needs_data
def test_bandwidths_are_those_of_all_published_logs() -> None:
    """Golden: the columns time, algbw and busbw of nccl-tests, seven operations, 2 to 512 ranks."""
    counts: Counter[str] = Counter()
    for pattern in LOGS:
        for path in sorted(DATA.glob(pattern)):
            for row in printed_rows(path):
                assert max(off(row)) <= 1 + 1e-6, row
                counts[row.operation] += 1
    assert set(counts) == set(PROGRAMS.values()) and min(counts.values()) >= 64, counts


def test_factors() -> None:
    """doc/PERFORMANCE.md of nccl-tests, on 4 ranks; the name may have a detail."""
    found = {operation: bus_factor(operation, 4) for operation in get_args(Operation)}
    assert {name: found.pop(name) for name in EQUAL_PARTS} == dict.fromkeys(EQUAL_PARTS, 0.75)
    assert found == {
        "allreduce": 1.5,
        "hierarchical_allreduce": 1.5,
        "broadcast": 1.0,
        "p2p": 1.0,
        "p2p_both": 1.0,
        "allgatherv": None,
        "halo": None,
    }
    assert [bus_factor(name, 8) for name in ("gather", "reduce", "sendrecv")] == [0.875, 1.0, 1.0]
    assert bus_factor("allreduce algorithm=tree protocol=ll", 2) == 1.0
    assert bus_factor("exchange", 2) is bus_factor("made up", 2) is None


def test_intervals_are_turned_round() -> None:
    """1 MB in 1 ms [0.5, 2] is 1 GB/s [0.5, 2]; a time that may be nothing is no bandwidth."""
    time = Estimate(value=1e-3, low=0.5e-3, high=2e-3)
    algbw, busbw = algorithm_bandwidth(10**6, time), bus_bandwidth("allgather", 4, 10**6, time)
    assert algbw is not None and algbw.numbers == pytest.approx((1e9, 0.5e9, 2e9))
    assert busbw is not None and busbw.numbers == pytest.approx((0.75e9, 0.375e9, 1.5e9))
    for low in (0.0, 5e-324):
        unsure = Estimate(value=1e-3, low=low, high=2e-3)
        assert algorithm_bandwidth(10**6, unsure) is bus_bandwidth("p2p", 2, 8, unsure) is None
    assert algorithm_bandwidth(8, Estimate.exactly(0.0)) is None
    assert bus_bandwidth("halo", 4, 8, time) is None
