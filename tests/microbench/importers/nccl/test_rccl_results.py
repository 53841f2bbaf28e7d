"""The files of rccl-tests -x: CSV and JSON as its Reporter writes them (src/common.cu, 2024 to 2026)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.microbench.importers.logs import TIMES, imported, one, times
from tests.microbench.importers.made.rccl_results import FACTORS, OF_MPI, as_csv, as_json, entries

ALONE = {"gpus": 8}


def first_json(rows: list[dict[str, Any]]) -> str:
    """As it was in 2024: objects one after the other, sorted, `#wrong`, all digits, no cycle."""
    texts = []
    for row in rows:
        content = {"#wrong" if name == "wrong" else name: row[name] for name in row}
        content.pop("numCycle")
        texts.append(json.dumps(content, sort_keys=True, separators=(",", ":")))
    return "\n".join(texts) + "\n"


@pytest.mark.parametrize("setting", [OF_MPI, ALONE], ids=["mpi", "alone"])
@pytest.mark.parametrize(
    "write",
    [
        as_csv,
        as_json,
        first_json,
        lambda rows: as_csv(rows, ", ", "numCycle"),
        lambda rows: as_csv(rows).replace("\n", "\r\n"),
    ],
)
def test_whole_files(write: Any, setting: dict[str, Any]) -> None:
    found = imported(write(entries(setting=setting)))
    block = one(found)
    assert (block.operation, block.ranks, block.nodes, len(block)) == (
        "allreduce",
        8,
        1,
        2 * len(TIMES),
    )
    assert times(block) == pytest.approx(dict(TIMES), rel=1e-6)
    assert times(block, "in_place") == pytest.approx({s: t - 1 for s, t in TIMES}, rel=1e-6)
    assert found.faults.listed() == [] and found.tool == "rccl-tests -x"
    # without MPI it is one process, so one node; with it the nodes are not in the file
    assert any("number of nodes is not given" in note for note in found.notes) == (
        setting is OF_MPI
    )


def test_nodes_that_are_said_otherwise() -> None:
    """`ranksPerNode` is the size of the communicator: 16 GPUs in 8 processes on 2 nodes say 1 node."""
    setting = {**OF_MPI, "gpusPerRank": 2}
    text = as_csv(entries(setting=setting, factor=2 * 15 / 16))
    assert (one(imported(text, nodes=2)).ranks, one(imported(text, nodes=2)).nodes) == (16, 2)
    named = one(imported(text, name="allreduce_4n16g.csv"))
    assert (named.nodes, named.active_ranks) == (4, 4)


@pytest.mark.parametrize(
    ("factor", "ranks", "nodes"), [(2 * 3 / 4, 0, 0), (1.75, 8, 2)], ids=["groups", "nodes"]
)
def test_two_halves_of_the_ranks(factor: float, ranks: int, nodes: int) -> None:
    """NCCL_TESTS_SPLIT: what is called 2 nodes are 2 groups; busbw tells which of the two it is."""
    text = as_csv(entries(setting={**OF_MPI, "nodes": 2, "ranksPerNode": 4}, factor=factor))
    found = imported(text)
    assert [(block.ranks, block.nodes) for block in found.blocks] == ([(8, 2)] if ranks else [])
    assert bool(found.faults.listed()) == (not ranks) and (not nodes or found.rows)


@pytest.mark.parametrize("name", sorted(FACTORS))
def test_operations(name: str) -> None:
    found = imported(as_json(entries(name)))
    expected = {
        "AllReduce": "allreduce",
        "ReduceScatter": "reduce_scatter",
        "SendRecv": "sendrecv",
        "AllGather": "allgather",
        "AlltoAll": "all_to_all",
    }
    assert one(found).operation == expected.get(name, name.lower())
    assert found.faults.listed() == [] and len(times(one(found))) == len(TIMES)


def test_sizes_that_are_a_ranks_part() -> None:
    """Until 2025 the size was that which a rank receives; algbw is of the whole buffer all the same."""
    whole, part = (imported(as_csv(entries("ReduceScatter", **part))) for part in ({}, {"part": 8}))
    assert times(one(part)) == times(one(whole)) and part.faults.listed() == []


def test_cycles_are_repetitions() -> None:
    found = imported(as_csv(entries(cycles=3)))
    assert len(one(found)) == 3 * 2 * len(TIMES) and one(found).runs == 1


@pytest.mark.parametrize(
    ("name", "new", "text"),
    [
        ("time", 33.25, "time and algbw do not agree"),
        ("busBw", 0.9, "busbw is not algbw times"),
        ("wrong", "3", "wrong results"),
        ("size", 0, "size 0"),
        ("size", 16, "size is not count"),
        ("type", "float128", "data type"),
        ("inPlace", 2, "not a number"),
        ("time", "nan", "not a number"),
    ],
)
@pytest.mark.parametrize("write", [as_csv, as_json])
def test_a_spoilt_row_is_a_fault(write: Any, name: str, new: Any, text: str) -> None:
    rows = entries()
    if name == "size" and new:  # no whole number of items
        new = rows[4]["size"] + 1
    rows[4] = {**rows[4], name: new}
    found = imported(write(rows))
    ((line, why),) = found.faults.listed()
    assert line == 6 and text in why, why
    assert found.rows == len(rows) - 1


@pytest.mark.parametrize("write", [as_csv, as_json, first_json])
def test_files_that_are_cut(write: Any) -> None:
    text = write(entries())
    known = {(size, time) for size, time in TIMES} | {(size, time - 1) for size, time in TIMES}
    for end in range(len(text) // 2, len(text), 7):
        found = imported(text[:end])
        for block in found.blocks:
            for size, seconds in zip(block.nbytes, block.seconds, strict=True):
                assert any(size == s and abs(seconds * 1e6 / t - 1) < 1e-5 for s, t in known)


def test_several_collectives_and_unknown_ones() -> None:
    rows = entries() + entries("AllGather") + entries("AllReduce")
    rows[-1] = {**rows[-1], "name": "AlltoAllv"}
    found = imported(as_csv(rows))
    assert [block.operation for block in found.blocks] == ["allreduce", "allgather"]
    assert [text for _, text in found.faults.listed()] == ["its collective is unknown"]
