"""Calls of ranks as collectives: the least time of those that belong together, and what is left out."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from tests.microbench.importers.logs import imported, one
from tests.microbench.importers.made.jobs import inspector_log, lines, perf, record, trace, traced

from calib.microbench.importers.jobs.joining import OF_RUN_NOTE, JoinedRuns, join
from calib.microbench.importers.said import Flags
from calib.microbench.importers.table import Imported, rows_of

RANKS = 4


def joined(*texts: str, **flags: Any) -> tuple[list[Imported], JoinedRuns]:
    found = [imported(text) for text in texts]
    return found, join(found, Flags(**flags))


def times_of(block: Any) -> list[float]:
    return (block.seconds * 1e6).tolist()


def test_the_rank_that_waited_least_says_the_time() -> None:
    texts = [
        inspector_log(0, (400, 900)),
        inspector_log(1, (700, 300)),
        inspector_log(2, (650, 850)),
    ]
    found, result = joined(*texts, inspector_log(3, (410, 320)))
    block = one(found[0])
    assert times_of(block) == pytest.approx([400, 300])
    assert (block.skew * 1e6).tolist() == pytest.approx([300, 600])
    assert (block.operation, block.ranks, block.nodes, block.active_ranks) == ("allreduce", 4, 1, 4)
    assert block.nbytes.tolist() == [1 << 20] * 2 and block.calls.tolist() == [1, 1]
    assert block.marks == "imported,of_a_run" and block.resolution_s == 1e-6
    assert result.used == [2, 2, 2, 2] and result.notes == [OF_RUN_NOTE]
    assert found[0].gpus == {"node0": ["unknown"] * 4}
    assert not any(each.calls for each in found)


def test_rows_have_the_marks_and_are_one_launch() -> None:
    found, _ = joined(*(inspector_log(rank) for rank in range(RANKS)))
    rows = rows_of(found)
    assert set(rows["marks"]) == {"imported,of_a_run"} and len(rows.usable) == len(rows) == 3
    assert rows["repetition"].tolist() == [0, 1, 2] and rows["launch"].tolist() == [0, 0, 0]
    assert np.isfinite(rows["skew_seconds"]).all() and rows["resolution_s"].tolist() == [1e-6] * 3


@pytest.mark.parametrize("seed", range(3))
def test_the_order_of_lines_and_files_changes_nothing(seed: int) -> None:
    """Known times come back from a job whose ranks wait at random."""
    dice = random.Random(seed)
    truth = {n: dice.randrange(100, 400) for n in range(20)}
    last = {n: dice.randrange(RANKS) for n in truth}
    texts = []
    for rank in range(RANKS):
        calls = [
            record(rank, perf(n, own + (0 if last[n] == rank else dice.randrange(1, 5000))))
            for n, own in truth.items()
        ]
        dice.shuffle(calls)
        texts.append(lines(calls))
    dice.shuffle(texts)
    found, _ = joined(*texts)
    assert times_of(one(found[0])) == pytest.approx(list(truth.values()))


def test_each_function_counts_its_own_calls() -> None:
    """README.md of the example plugin: every collective type has its own sequence number."""
    texts = [
        lines(
            [
                record(rank, perf(0, 100 + rank)),
                record(rank, perf(0, 50 + rank, 1 << 16, "AllGather")),
            ]
        )
        for rank in range(RANKS)
    ]
    found, result = joined(*texts)
    times = {block.operation: (times_of(block), block.nbytes.tolist()) for block in found[0].blocks}
    assert times == {
        "allreduce": (pytest.approx([100]), [1 << 20]),
        "allgather": (pytest.approx([50]), [RANKS << 16]),  # whole: a rank's part times the ranks
    }
    assert result.notes == [OF_RUN_NOTE]


def test_communicators_are_told_apart_and_jobs_are_launches() -> None:
    def two(rank: int, id: str, pid: int) -> str:
        return lines([record(rank, perf(0, 100 + pid, ranks=2), 2, id=id, pid=pid)])

    # a and b share a process, c is of another job
    texts = [two(0, "a", 1), two(1, "a", 2), two(1, "b", 1), two(0, "b", 3), two(0, "c", 8)]
    found, result = joined(*texts, two(1, "c", 9))
    rows = rows_of(found)
    assert (rows["seconds"] * 1e6).round().tolist() == [101, 101, 108]
    assert rows["launch"].tolist() == [0, 0, 1]
    assert "communicators alike (3 of 2 ranks) may have worked at once" in result.notes[0]


def test_nodes_and_uneven_hosts() -> None:
    texts = [
        inspector_log(rank, nodes=2, host="one" if rank < 3 else "two") for rank in range(RANKS)
    ]
    found, _ = joined(*texts)
    block = one(found[0])
    assert (block.nodes, block.active_ranks, block.level) == (2, 3, "system")
    assert found[3].gpus == {"one": ["unknown"] * 3, "two": ["unknown"]}


def test_collectives_that_lack_ranks() -> None:
    """Of a size those of the most ranks stay; where these are not all, rows and notes say so."""
    texts = [
        inspector_log(0, (400, 900, 500)),
        inspector_log(1, (700, 300)),
        inspector_log(3, (410,)),
    ]
    found, result = joined(*texts)
    block = one(found[0])
    assert times_of(block) == pytest.approx([400]) and block.lacks_ranks
    assert block.marks == "imported,of_a_run,lacks_ranks"
    assert result.used == [1, 1, 1]
    assert result.notes == [
        "2 collectives left out: others of the same size were timed by more ranks",
        "1 of 1 collective lack ranks (down to 3 of 4): their times may hold a wait for these",
        OF_RUN_NOTE,
    ]


def test_one_rank_alone_has_no_skew() -> None:
    found, result = joined(inspector_log(2))
    block = one(found[0])
    assert np.isnan(block.skew).all() and block.lacks_ranks and block.files == 1
    assert "down to 1 of 4" in result.notes[0]


def test_calls_that_contradict_each_other() -> None:
    twice = inspector_log(0, (400,)) + inspector_log(0, (450, 500))
    other = lines([record(1, perf(0, 700)), record(1, perf(1, 300, 1 << 19))])
    found, result = joined(twice, other)
    # of number 0 rank 0 says two times; of number 1 the sizes differ
    assert times_of(one(found[0])) == pytest.approx([700])
    assert result.notes[:2] == [
        "2 calls left out: two of one rank have the same number",
        "1 collective left out: its ranks differ in size or type",
    ]


def test_ranks_and_nodes_of_traces() -> None:
    texts = [trace(traced(0, [300_000 + rank], rank)) for rank in range(RANKS)]
    found, result = joined(*texts)
    block = one(found[0])
    assert (block.ranks, block.nodes, block.lacks_ranks) == (4, 1, False)
    assert times_of(block) == pytest.approx([300]) and block.resolution_s == 1.024e-6
    assert "ranks of a communicator: one more than the highest in a file" in result.notes
    assert "the number of nodes is not given: taken as one" in result.notes

    found, result = joined(*texts, ranks=8, nodes=2)
    block = one(found[0])
    assert (block.ranks, block.nodes, block.active_ranks, block.lacks_ranks) == (8, 2, 4, True)

    found, result = joined(*texts, ranks=2)
    assert one(found[0]).ranks == 4
    assert "the file says 4 ranks or more; 2 is not used" in result.notes


def test_a_trace_of_one_rank_needs_the_number() -> None:
    found, result = joined(trace(traced(0, [300_000])))
    assert not found[0].blocks and result.wants == "ranks" and result.used == [0]
    assert "the number of ranks is not given" in result.notes[0]
    found, _ = joined(trace(traced(0, [300_000], coll="ReduceScatter", count=1024)), ranks=4)
    assert one(found[0]).nbytes.tolist() == [4 * 4096]


def test_a_forced_algorithm_is_another_operation() -> None:
    found, _ = joined(*(inspector_log(rank) for rank in range(RANKS)), algorithm="ring")
    assert one(found[0]).key == "algorithm=ring"
