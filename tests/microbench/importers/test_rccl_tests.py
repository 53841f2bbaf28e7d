"""rccl-tests as text: columns that nccl-tests has not (its src/util.cu, writeResultHeader of 2026)."""

from __future__ import annotations

import itertools

import pytest
from tests.microbench.importers.logs import END, TIMES, imported, one, start, times, width
from tests.microbench.importers.made.rccl import head, line, log


@pytest.mark.parametrize(
    ("halves", "event", "choice", "stamp"),
    [*itertools.product(("both", "out-of-place", "in-place"), *[(False, True)] * 3)],
)
@pytest.mark.parametrize("wrong", ["0", "N/A"])
def test_every_layout(halves: str, event: bool, choice: bool, stamp: bool, wrong: str) -> None:
    """-O, hip events, -M (later -A) and -S together: the time is the one in the column "time"."""
    found = imported(log(halves, event, choice, stamp, wrong))
    block = one(found)
    assert found.faults.listed() == [] and found.notes == []
    assert (found.tool, found.tool_version, found.library_version) == (
        "rccl-tests",
        "2.17.9-a1b2c3d",
        "2.27.5",
    )
    assert (block.operation, block.ranks, set(block.calls), block.key) == ("allreduce", 4, {20}, "")
    out = {size: round(time, 2) for size, time in TIMES} if halves != "in-place" else {}
    inside = {size: round(time - 1, 2) for size, time in TIMES} if halves != "out-of-place" else {}
    assert times(block) == pytest.approx(out, rel=5e-4)
    assert times(block, "in_place") == pytest.approx(inside, rel=5e-4)


@pytest.mark.parametrize("halves", ["both", "in-place"])
@pytest.mark.parametrize("column", ["time", "algbw", "busbw"])
def test_a_number_that_disagrees_is_a_fault(halves: str, column: str) -> None:
    lines = log(halves, True, True, False).split("\n")
    index = max(i for i, text in enumerate(lines) if "float" in text)
    words = lines[index].split()
    at = {"time": 5, "algbw": 7, "busbw": 8}[column]
    words[at] = str(float(words[at]) * 1.1)[:6]
    lines[index] = " ".join(words)
    found = imported("\n".join(lines))
    ((number, text),) = found.faults.listed()
    assert number == index + 1 and ("out of place" if halves == "both" else "in place") in text


def test_one_half_and_the_line_that_says_which_is_lost() -> None:
    """Whether the times are in place is not guessed."""
    text = log("in-place", False, False, False).replace("in-place", "        ")
    found = imported(text)
    assert found.rows == 0
    assert "the row is not complete (9 lines, to line 23)" in dict(found.faults.listed()).values()


def test_alltoall_has_no_algorithm() -> None:
    """N/A in the three columns, and in place the check is N/A, too."""
    rows = ""
    for size, time in TIMES:
        rate = size / time * 1e-3
        half = f"  {width(time, 7):>7s}  {width(rate, 6):>6s}  {width(rate * 0.75, 6):>6s}"
        rows += f"{size:12d}  {size // 16:12d}     float    none      -1{half}       0{half}    N/A"
        rows += f"{'N/A':>8s}  {'N/A':>8s}  {'N/A':>10s}\n"
    found = imported(start("alltoall") + head("both", False, True, False) + rows + END)
    assert one(found).operation == "all_to_all" and found.faults.listed() == []
    assert times(one(found)) == times(one(found), "in_place") and len(times(one(found))) == len(
        TIMES
    )


def test_versions_of_2024() -> None:
    """`rccl-tests: Version develop:...` behind the settings, and no program's name."""
    text = start().replace(
        "# Using devices", "rccl-tests: Version develop:83d38d9\n# Using devices"
    )
    lines = [row for row in text.split("\n") if "nccl-tests" not in row and "Collective" not in row]
    body = head("both", False, False, False) + "".join(
        line(size, time, "both", False, "", False) for size, time in TIMES
    )
    found = imported("RCCL version : 2.22.3-HEAD:9f71a6b\n" + "\n".join(lines) + body + END)
    assert (found.tool, found.tool_version) == ("rccl-tests", "develop:83d38d9")
    assert found.library_version == "2.22.3"
    assert one(found).operation == "allreduce" and found.faults.listed() == []


def test_a_cut_or_mixed_row_gives_nothing_else() -> None:
    text = log("both", True, True, True)
    whole = {(size, time) for size, time in times(one(imported(text))).items()}
    begin = text.rindex("\n", 0, text.rindex("67108864"))
    for end in range(begin, text.index("\n", begin + 1) + 1, 3):
        found = imported(text[:end])
        assert all({*times(block).items()} <= whole for block in found.blocks)
