"""Runs that failed before their table: the line that says why, in the library's own words."""

from __future__ import annotations

import pytest
from tests.microbench.importers.logs import (
    END,
    HEADER,
    TIMES,
    imported,
    one,
    row,
    start,
    table,
    times,
)
from tests.microbench.importers.made.imb import SUITE, block
from tests.microbench.importers.made.nccl_json import SECRET

from calib.foundation.errors import FileError

HEAD = start()
LINES = HEAD.count("\n")
WARN = (
    "node0:77:78 [0] misc/socket.cc:50 NCCL WARN socketStartConnect: Connect to 10.1.0.7<41> failed"
)
SAYS = "NCCL says: socketStartConnect: Connect to 10.1.0.7<41> failed"


@pytest.mark.parametrize(
    ("said", "text"),
    [
        # src/common.h of 2.13 and later, of before, of 2016, of rccl-tests
        (
            "node0: Test NCCL failure common.cu:1012 'remote process exited or there was a network error"
            " / Failed to connect to 10.1.0.7<41> (tag 3)'",
            "the run failed, NCCL failure in common.cu:1012: remote process exited or there was a "
            "network error / Failed to connect to 10.1.0.7<41> (tag 3)",
        ),
        (
            "node0: Test NCCL failure common.cu:943 'unhandled cuda error'",
            "the run failed, NCCL failure in common.cu:943: unhandled cuda error",
        ),
        (
            "NCCL failure common.cu:777 'unhandled system error'",
            "the run failed, NCCL failure in common.cu:777: unhandled system error",
        ),
        (
            "node0: Test CUDA failure common.cu:892 'out of memory'",
            "the run failed, CUDA failure in common.cu:892: out of memory",
        ),
        (
            "node0: Test CUDA failure /x/src/common.cu:31 'CUDA driver version is insufficient'",
            "the run failed, CUDA failure in /x/src/common.cu:31: CUDA driver version is insufficient",
        ),
        (
            " .. node0 pid 4321: Test failure common.cu:1035",
            "the run failed, failure in common.cu:1035",
        ),
        ("node0: Test timeout (30s) common.cu:509", "the run failed, timeout in common.cu:509"),
        (
            "[ERROR] The number of requested GPUs (8) is greater than the number of GPUs available (4)",
            "the run failed: 8 GPUs were asked for, 4 are there",
        ),
        (
            "Invalid number of GPUs: 8 requested but only 4 were found.",
            "the run failed: 8 GPUs were asked for, 4 are there",
        ),
    ],
)
@pytest.mark.parametrize("prefix", ["", "[1,0]<stdout>:", "00:55:22  "])
def test_its_own_error_line(said: str, text: str, prefix: str) -> None:
    log = "".join(f"{prefix}{line}\n" for line in [*HEAD.split("\n")[:-1], said, said])
    found = imported(log)
    assert found.rows == 0
    assert found.faults.listed() == [(LINES + 1, text)]


def test_what_nccl_warned_of_stands_first() -> None:
    found = imported(HEAD + WARN + "\nnode0: Test NCCL failure common.cu:1 'internal error'\n")
    assert [text for _, text in found.faults.listed()] == [
        SAYS,
        "the run failed, NCCL failure in common.cu:1: internal error",
    ]


def test_a_run_that_ends_without_a_word() -> None:
    """Killed before its table, with what NCCL said and without."""
    assert imported(HEAD).faults.listed() == [(1, "the log ends before the table of this run")]
    assert imported(HEAD + WARN + "\n").faults.listed() == [
        (1, "the log ends before the table of this run"),
        (LINES + 1, SAYS),
    ]
    behind = imported(HEAD + HEADER + WARN + "\n").faults.listed()
    assert [text for _, text in behind] == ["the run of allreduce has no rows", SAYS]


def test_a_warning_of_a_run_that_went_on_is_no_fault() -> None:
    found = imported(start() + WARN + "\n" + table().removeprefix(start()))
    assert found.faults.listed() == [] and len(times(one(found))) == len(TIMES)
    # nor is it that of the next run, which fails by itself
    after = imported(
        WARN + "\n" + table() + start("reduce") + "node0: Test CUDA failure a.cu:3 'x'\n"
    )
    assert [text for _, text in after.faults.listed()] == [
        "the run failed, CUDA failure in a.cu:3: x"
    ]


def test_a_good_run_and_one_that_ends_early() -> None:
    found = imported(table() + start("reduce"))
    assert len(times(one(found))) == len(TIMES)
    begins = table().count("\n") + 1
    assert found.faults.listed() == [(begins, "the log ends before the table of this run")]


def test_a_run_that_fails_between_its_rows() -> None:
    rows = [row(size, time) for size, time in TIMES]
    text = start() + HEADER + "\n".join(rows[:4]) + "\n"
    found = imported(text + "node0: Test NCCL failure common.cu:1 'internal error'\n" + END)
    assert len(times(one(found))) == 4
    assert [line for line, _ in found.faults.listed()] == [text.count("\n") + 1]


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ("hello\n" + WARN, f"line 2: {SAYS}"),
        (
            "x\ny\n[n1:7] *** An error occurred in MPI_Init_thread",
            "line 3: an error in MPI_Init_thread",
        ),
        ("MPI_ABORT was invoked on rank 1", "line 1: MPI_ABORT was called"),
        ("bash: line 1: osu_bw: command not found", "line 1: command not found"),
        ("srun: error: node7: task 3: Exited", "line 1: an error of srun"),
        ("[n1:7] Signal: Segmentation fault (11)", "line 1: Segmentation fault"),
    ],
)
def test_a_log_of_no_tool_says_why(lines: str, reason: str) -> None:
    """Nothing of a line is quoted but NCCL's own words and those that are known."""
    with pytest.raises(FileError) as raised:
        imported(f"{lines}\n{SECRET}\n")
    assert f"that this program reads ({reason});" in str(raised.value)
    assert "hunter2" not in str(raised.value)


def test_a_table_of_osu_without_rows() -> None:
    title = "00:55:22  # OSU MPI Allreduce Latency Test v7.3\n"
    assert imported(title, ranks=4).faults.listed() == [(1, "the run has no rows")]
    killed = title + "[n1:7] Signal: Segmentation fault (11)\n"
    assert imported(killed, ranks=4).faults.listed() == [
        (1, "the run has no rows"),
        (2, "Segmentation fault"),
    ]


def test_the_head_of_imb_and_no_block() -> None:
    found = imported(SUITE + "[n1:7] *** An error occurred in MPI_Allreduce\n")
    assert found.faults.listed() == [(4, "an error in MPI_Allreduce")]
    assert imported(SUITE + block("Allreduce") + "MPI_ABORT was invoked\n").faults.listed() == []
