"""NCCL 1's own tests and nccl-tests of 2016 to 2018: `bytes N type op`, times in ms, other bandwidths.

Printed as their print_header and BenchTime did: `%7.3f  %5.2f  %5.2f  %7.0le` of ms and GB/s.
"""

from __future__ import annotations

import pytest
from tests.microbench.importers.logs import imported, one, times
from tests.microbench.importers.made.early import RANKS, SIZES, early, millis

from calib.microbench.importers.said import UNSAID

IN_MS = {size: millis(size) * 1e3 for size in SIZES}


@pytest.mark.parametrize("host", ["node7", ""], ids=["2017", "NCCL 1"])
@pytest.mark.parametrize("result", ["res", "delta"])
@pytest.mark.parametrize("check", ["  0e+00", " -1e+00", "\tN/A"])
def test_allreduce(host: str, result: str, check: str) -> None:
    found = imported(early(host=host, result=result, check=check))
    block = one(found)
    assert (block.operation, block.ranks, block.nodes) == ("allreduce", RANKS, 1)
    assert times(block) == pytest.approx(IN_MS)
    inside = {size: time + 1 for size, time in IN_MS.items()}
    assert times(block, "in_place") == pytest.approx(inside)
    assert found.faults.listed() == [] and found.gpus == {host or "unknown": ["Tesla P100"] * RANKS}


@pytest.mark.parametrize(
    ("operation", "names", "words", "moved", "factor", "parts"),
    [
        # of 2017: both bandwidths count what leaves a rank
        ("reduce_scatter", "op", "sum", 0.75, 1.0, 4),
        ("allgather", "", "", 0.75, 1.0, 4),
        ("reduce", "op  root", "sum  0", 1.0, 1.0, 1),
    ],
)
def test_other_operations(
    operation: str, names: str, words: str, moved: float, factor: float, parts: int
) -> None:
    found = imported(early(names=names, words=words, moved=moved, factor=factor, parts=parts))
    assert (one(found).operation, one(found).ranks) == (operation, RANKS)
    assert times(one(found)) == pytest.approx(IN_MS) and found.faults.listed() == []


@pytest.mark.parametrize(
    ("operation", "names", "words"), [("reduce_scatter", "op", "sum"), ("allgather", "", "")]
)
def test_sizes_of_a_ranks_part(operation: str, names: str, words: str) -> None:
    """Of 2016: the size is a rank's part, busbw = algbw (n - 1). The whole buffer is n times that."""
    found = imported(early(names=names, words=words, factor=RANKS - 1))
    assert one(found).operation == operation and found.faults.listed() == []
    whole = {RANKS * size: time for size, time in IN_MS.items()}
    assert times(one(found)) == pytest.approx(whole)


def test_a_part_on_two_ranks_looks_like_an_allreduce() -> None:
    """(n - 1) and 2 (n - 1) / n are both 1: it is not guessed."""
    text = early(ranks=2, factor=1.0)
    assert imported(text).rows == 0
    ((_, reason),) = imported(text).faults.listed()
    assert (
        "allreduce" in reason
        and "reduce_scatter" in reason
        and reason.startswith(UNSAID["operation"])
    )
    found = one(imported(text, operation="reduce_scatter"))
    assert found.nbytes.min() == 2 * SIZES[0]
    assert one(imported("$ ./build/all_reduce_test 1000 2\n" + text)).operation == "allreduce"


def test_broadcast_has_one_half() -> None:
    found = imported(early(names="root", words="0", factor=1.0, halves=1))
    assert (one(found).operation, one(found).ranks) == ("broadcast", RANKS)
    assert times(one(found)) == pytest.approx(IN_MS) and not times(one(found), "in_place")


def test_the_unit_follows_from_the_bandwidths() -> None:
    """The same header with us, as some later ones have: size / algbw tells which it is."""
    assert times(one(imported(early(scale=1000.0)))) == pytest.approx(IN_MS)
    for scale in (30.0, 1 / 1000, 1e6):
        found = imported(early(scale=scale))
        assert found.rows == 0 and "unit" in found.faults.listed()[0][1]


def test_a_unit_that_nothing_tells() -> None:
    """Small sizes have bandwidths of 0.00: ms and us would both do."""
    lines = early().replace("  0e+00", "0").split("\n")
    small = [
        f"{size} {size // 4} float sum  0.0{size} 0.00 0.00 0e+00 0.0{size} 0.00 0.00 0e+00"
        for size in (16, 32, 64)
    ]
    head = [line for line in lines if "float" not in line]
    found = imported("\n".join([*head[:8], *small, *head[8:]]))
    assert found.rows == 0
    ((line, reason),) = found.faults.listed()
    assert "unit" in reason and "too small to tell" in reason and line == 8


def test_a_unit_that_is_said() -> None:
    """A line of units is believed, and a time that disagrees is a fault as ever."""
    text = early().replace(
        "busbw  res\n", "busbw  res\n#  (B)  (elements)   (ms) (GB/s) (GB/s)\n", 1
    )
    assert times(one(imported(text))) == pytest.approx(IN_MS)
    found = imported(text.replace("(ms)", "(us)"))
    assert found.rows == 0 and "do not agree" in found.faults.listed()[0][1]


def test_a_run_that_was_out_of_bounds() -> None:
    text = early().replace("values : 0 OK", "values : 3 FAILED")
    found = imported(text)
    assert found.rows == 0 and "wrong results" in found.faults.listed()[0][1]
