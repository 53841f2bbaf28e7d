"""Runs of nccl-tests with NCCL_ALGO or NCCL_PROTO set: operations of their own, by log or by flags."""

from __future__ import annotations

import json

import pytest
from tests.microbench.importers.logs import END, HEADER, TIMES, imported, one, row, start, table
from tests.microbench.importers.made.nccl_json import SECRET, document
from tests.microbench.importers.made.osu import log

from calib.microbench.importers.nccl.forced import ALGORITHMS, PROTOCOLS, forced, named
from calib.microbench.importers.table import case_numbers

ROWS = HEADER + "".join(row(size, time) + "\n" for size, time in TIMES) + END
INFO = "node0:4000:4010 [0] NCCL INFO "


def debugged(algorithm: str = "", protocol: str = "") -> str:
    """A text log that NCCL_DEBUG=INFO speaks in, before the table as it begins (src/graph/tuning.cc)."""
    lines = ""
    if protocol:
        lines += f"{INFO}NCCL_PROTO set by environment to {protocol}\n"
    if algorithm:
        lines += f"{INFO}NCCL_ALGO set by environment to {algorithm}\n"
    return start() + lines * 2 + ROWS


def in_json(*environment: str) -> str:
    content = document()
    content["env"] += environment
    return json.dumps(content)


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ("Ring", "ring"),
        ("NVLSTree", "nvls_tree"),
        (" CollNetDirect ", "collnet_direct"),
        ("allreduce:tree", "tree"),
        ("ring;allreduce:tree", "tree"),
        ("allgather:ring", ""),
        ("broadcast:ring;pat", "pat"),
        ("", ""),
        ("ring,tree", "several"),
        ("^tree", "several"),
        ("magic", "several"),
        ("allreduce:^ring", "several"),
        ("allreduce:", "several"),
        ("all:ring", "several"),
        ("ring:tree:allreduce", "several"),
        ("allgather:", ""),
        ("ring;", "ring"),
    ],
)
def test_what_a_value_forces_an_allreduce_to(value: str, name: str) -> None:
    assert forced(value, "allreduce", ALGORITHMS) == name


def test_names_in_either_spelling() -> None:
    assert [named(word, ALGORITHMS) for word in ("nvls_tree", "NVLSTree", "nvls tree", "")] == [
        "nvls_tree",
        "nvls_tree",
        "",
        "",
    ]
    assert [named(word, PROTOCOLS) for word in ("LL128", "Simple", "ll 128")] == [
        "ll128",
        "simple",
        "",
    ]


@pytest.mark.parametrize(
    ("text", "key"),
    [
        (debugged("Ring", "LL128"), "algorithm=ring protocol=ll128"),
        (debugged("Tree"), "algorithm=tree"),
        (debugged(protocol="allreduce:LL"), "protocol=ll"),
        (debugged(), ""),
        (in_json("NCCL_PROTO=Simple", "NCCL_ALGO=Ring"), "algorithm=ring protocol=simple"),
        (in_json("MY_NCCL_ALGO=Ring", "NCCL_ALGO_X=Tree", "NCCL_PROTO="), ""),
        (in_json(), ""),
    ],
)
def test_what_a_log_says_itself(text: str, key: str) -> None:
    block = one(imported(text))
    assert (block.operation, block.key, len(block)) == ("allreduce", key, 2 * len(TIMES))


def test_sorted_json_says_it_too() -> None:
    content = json.dumps([json.loads(in_json("NCCL_ALGO=PAT"))], sort_keys=True)
    assert one(imported(content)).key == "algorithm=pat"


def test_what_follows_a_table_is_of_the_run_that_follows() -> None:
    found = imported(debugged("Ring", "LL") + debugged("Tree", "LL") + debugged())
    assert [block.key for block in found.blocks] == [
        "algorithm=ring protocol=ll",
        "algorithm=tree protocol=ll",
        "",
    ]


def test_an_environment_that_is_an_object_says_it_too() -> None:
    content = document()
    content["env"] = {"NCCL_ALGO": "Tree", "HOME": SECRET}
    assert one(imported(json.dumps(content))).key == "algorithm=tree"


SAID = INFO + "NCCL_ALGO set by environment to {}\n"


def test_what_is_said_between_the_header_and_the_rows_is_of_that_run() -> None:
    """Ranks are not in step: some create their communicator when rank 0 has printed the header."""
    rows = ROWS.removeprefix(HEADER)
    found = imported(start() + HEADER + SAID.format("Tree") * 3 + rows + debugged("Ring"))
    assert [block.key for block in found.blocks] == ["algorithm=tree", "algorithm=ring"]
    assert found.notes == []


def test_what_is_said_inside_a_table_is_of_no_run_and_noted() -> None:
    first, *rest = ROWS.removeprefix(HEADER).splitlines(keepends=True)
    late = start() + HEADER + first + SAID.format("Tree") + "".join(rest)
    # the program's next table has a header alone
    found = imported(late + ROWS)
    assert {block.key for block in found.blocks} == {""}
    assert "NCCL_ALGO is said in or behind a table: not used" in found.notes
    found = imported(table() + SAID.format("Tree") + ROWS)
    assert {block.key for block in found.blocks} == {""} and len(found.notes) == 1
    failed = late + "Test NCCL failure common.cu:958 'unhandled cuda error'\n"
    assert {block.key for block in imported(failed + SAID.format("Tree") + ROWS).blocks} == {""}
    # the first row has begun
    words = first.split()
    cut = f"{' '.join(words[:6])}\n{SAID.format('Tree')}{' '.join(words[6:])}\n"
    block = one(imported(start() + HEADER + cut + "".join(rest)))
    assert (block.key, len(block)) == ("", 2 * len(TIMES))
    # what was said before and is said again, by the rest of the ranks, is nothing new
    again = debugged("Tree").replace(first, first + SAID.format("Tree"))
    assert one(imported(again)).key == "algorithm=tree" and imported(again).notes == []


@pytest.mark.parametrize("command", ["mpirun -np 4 -x NCCL_ALGO=Tree", "export NCCL_ALGO=hunter2"])
def test_a_command_that_sets_it_is_noted(command: str) -> None:
    found = imported(f"{command} ./all_reduce_perf -b 8\n{table()}")
    assert one(found).key == ""
    note = "a command in the log sets NCCL_ALGO, which is not used: give the algorithm"
    assert note in found.notes and "hunter2" not in repr(found)
    flagged = imported(f"{command}\n{table()}", algorithm="tree")
    assert one(flagged).key == "algorithm=tree" and note not in flagged.notes
    assert note not in imported(f"{command}\n{debugged('Tree')}").notes


def test_flags_are_for_logs_that_do_not_say_it() -> None:
    flags = {"algorithm": "tree", "protocol": "ll"}
    assert one(imported(debugged(), **flags)).key == "algorithm=tree protocol=ll"
    found = imported(debugged("Ring"), **flags)
    assert one(found).key == "algorithm=ring protocol=ll"
    assert "the file says ring; tree is not used" in found.notes


def test_several_algorithms_are_a_case_of_their_own_and_said() -> None:
    found = imported(in_json("NCCL_ALGO=Ring,Tree", "NCCL_PROTO=hunter2"))
    assert one(found).key == "algorithm=several protocol=several"
    assert len([note for note in found.notes if "not as NCCL's own choice" in note]) == 2
    assert "hunter2" not in repr(found) and SECRET not in repr(found)
    flagged = imported(in_json("NCCL_ALGO=Ring,Tree"), algorithm="tree")
    assert one(flagged).key == "algorithm=tree" and any(
        "taken as given tree" in n for n in flagged.notes
    )


def test_a_forced_run_is_another_case() -> None:
    plain, ring = one(imported(debugged())), one(imported(debugged("Ring")))
    assert not set(case_numbers(plain).tolist()) & set(case_numbers(ring).tolist())


def test_sends_and_receives_have_no_algorithm() -> None:
    """NCCL_ALGO changes nothing of them: their rows stay what they are."""
    content = document(program="/x/sendrecv_perf")
    content["env"].append("NCCL_ALGO=Ring")
    for row_ in content["results"]:
        for half in ("out_of_place", "in_place"):
            row_[half]["bus_bw"] = row_[half]["alg_bw"]
    found = imported(json.dumps(content), protocol="ll")
    assert (one(found).operation, one(found).key) == ("sendrecv", "")
    assert "sendrecv has no algorithm: algorithm and protocol are not used" in found.notes


def test_flags_say_nothing_of_another_tool() -> None:
    found = imported(log("MPI Allgather Latency Test"), "x_8p.txt", algorithm="ring")
    assert one(found).key == "" and any("not used for the other tools" in n for n in found.notes)
