"""NCCL Inspector: what is read of one file, in all its formats, and what is not and why.

Golden values are those of the examples in plugins/profiler/inspector/README.md and
exporter/example/README.md (NVIDIA/nccl), and of a job of others, which a public test of a listener
quotes as "copied verbatim from the NCCL Inspector dump".
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.helpers import mutations
from tests.microbench.importers.logs import imported
from tests.microbench.importers.made.jobs import (
    header,
    inspector_log,
    lines,
    metadata,
    perf,
    record,
)

from calib.foundation.errors import CalibError
from calib.microbench.importers.rank_calls import Communicator, Process, RankCalls

README = {
    "header": {"id": "0x7f8c496ae9f661", "rank": 2, "n_ranks": 8, "nnodes": 1},
    "metadata": {
        "inspector_output_format_version": "v4.0",
        "git_rev": "",
        "rec_mechanism": "profiler_plugin",
        "dump_timestamp_us": 1748030377748202,
        "hostname": "example-hostname",
        "pid": 1639453,
    },
    "coll_perf": {
        "coll": "AllReduce",
        "coll_sn": 1407,
        "coll_msg_size_bytes": 17179869184,
        "coll_exec_time_us": 61974,
        "coll_algobw_gbs": 277.210914,
        "coll_busbw_gbs": 485.119099,
    },
}
OF_A_JOB = (
    '{"header":{"id":"0xad56c683b0c4ef","rank":1,"n_ranks":3,"nnodes":3},"metadata":'
    '{"inspector_output_format_version":"v4.0","git_rev":"standalone-build","hostname":"worker-0",'
    '"pid":48,"dump_timestamp_us":1772585717263338},"coll_perf":{"coll":"AllReduce","coll_sn":8995,'
    '"coll_msg_size_bytes":2360832,"coll_exec_time_us":5663.0,"coll_timing_source":"kernel_gpu",'
    '"coll_algobw_gbs":0.416887,"coll_busbw_gbs":0.555850}}\n'
)
VERBOSE = {
    "event_trace_sn": {"coll_start_sn": 1, "kernel_events": [{"channel_id": 0}]},
    "event_trace_ts": {"coll_start_ts": 1752867229235059, "kernel_events": [{"channel_id": 0}]},
}
SCATTERED = {  # of exporter/example/README.md
    "coll": "ReduceScatter",
    "coll_sn": 129,
    "coll_msg_size_bytes": 65536,
    "coll_exec_time_us": 110,
    "coll_timing_source": "kernel_gpu",
    "coll_algobw_gbs": 19.065018,
    "coll_busbw_gbs": 18.469236,
}


def calls_of(text: str) -> RankCalls:
    (calls,) = imported(text).calls
    return calls


def fault(text: str) -> str:
    """Why the only call of a file is none."""
    found = imported(text)
    assert not found.calls
    ((_, reason),) = found.faults.listed()
    return reason


def changed(**fields: Any) -> str:
    return lines([record(0, {**perf(0, 400), **fields})])


def dump(found: list[Any], rank: int = 0, messages: int = 0, dropped: int = 0) -> str:
    """A communicator's dump of format 4.3, whose marker alone says of whom it is."""
    stats = {"coll_records": len(found), "p2p_records": messages, "coll_dropped_total": dropped}
    marker = {"header": header(rank), "metadata": metadata("v4.3"), "dump_stats": stats}
    return lines([marker, *({"coll_perf": each} for each in found)])


def test_the_example_of_its_own_description() -> None:
    found = imported(lines([README]))
    (calls,) = found.calls
    assert (found.tool, found.tool_version, found.of_run) == ("NCCL Inspector", "v4.0", True)
    assert calls.communicators == {Communicator("0x7f8c496ae9f661", 8, 1): 0}
    assert calls.processes == {Process("example-hostname", 1639453): 0}
    assert [tuple(kind) for kind in calls.kinds] == [("allreduce", "float32", "eager")]
    assert (calls.rank[0], calls.number[0], calls.nbytes[0]) == (2, 1407, 17179869184)
    assert calls.seconds[0] == pytest.approx(61974e-6)
    assert not found.faults.listed() and not found.notes


def test_a_call_of_a_job_of_others() -> None:
    calls = calls_of(OF_A_JOB)
    assert calls.nbytes[0] == 2360832 and calls.seconds[0] == pytest.approx(5663e-6)


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("listed", [True, False])
def test_lists_and_line_breaks(indent: int | None, listed: bool) -> None:
    records = [record(0, perf(n, 400 + n)) for n in range(3)]
    whole = json.dumps(records, indent=indent)
    text = whole if listed else "\n".join(json.dumps(each, indent=indent) for each in records)
    assert list(calls_of(text).number) == [0, 1, 2]


def test_traces_of_events_change_nothing() -> None:
    plain = calls_of(lines([record(0, perf(0, 400))]))
    assert calls_of(lines([record(0, perf(0, 400) | VERBOSE)])).seconds == plain.seconds


def test_a_rank_is_what_its_size_counts() -> None:
    """algbw says that the size of reduce_scatter is one rank's part: another size is found."""
    about = {"ranks": 32, "nodes": 4}
    assert calls_of(lines([record(31, SCATTERED, **about)])).nbytes[0] == 65536
    whole = SCATTERED | {"coll_msg_size_bytes": 65536 * 32}
    assert fault(lines([record(31, whole, **about)])) == "size, time and algbw do not agree"


def test_of_format_4_3_only_the_marker_says_whose_calls_they_are() -> None:
    text = dump([perf(0, 400), perf(1, 300)], rank=0) + dump([perf(0, 350)], rank=1)
    calls = calls_of(text)
    assert list(calls.rank) == [0, 0, 1] and list(calls.number) == [0, 1, 0]
    assert list(calls.line) == [2, 3, 5]


@pytest.mark.parametrize("lost", [0, 3])
def test_calls_behind_a_marker_that_is_lost_are_nobodys(lost: int) -> None:
    text = dump([perf(0, 400), perf(1, 300)], rank=0) + dump([perf(0, 350)], rank=1)
    kept = text.splitlines(keepends=True)
    for instead in ("", kept[lost][:40] + "\n"):
        found = imported("".join([*kept[:lost], instead, *kept[lost + 1 :]]))
        assert [rank for calls in found.calls for rank in calls.rank] == (
            [1] if lost == 0 else [0, 0]
        )
        assert any("its communicator is not said" in text for _, text in found.faults.listed())


def test_messages_and_what_the_inspector_lost_are_counted() -> None:
    message = {"p2p": "Send", "p2p_sn": 1, "p2p_peer": 1, "p2p_msg_size_bytes": 8192}
    text = dump([perf(0, 400)], messages=2, dropped=7) + lines([{"p2p_perf": message}] * 2)
    found = imported(text)
    assert not found.faults.listed()
    assert found.notes == [
        "2 messages left out: only collectives are read",
        "the Inspector itself lost 7 collectives",
    ]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"coll_timing_source": "kernel_cpu"}, "timed on the host, not by the GPU's clock"),
        ({"coll_timing_source": "collective_cpu"}, "timed on the host, not by the GPU's clock"),
        ({"coll": "All2All"}, "its collective is not one that is read"),
        ({"coll": ["AllReduce"]}, "its collective is not one that is read"),
        ({"coll_algobw_gbs": 9.0}, "size, time and algbw do not agree"),
        ({"coll_exec_time_us": 0, "coll_algobw_gbs": 0}, "its time is not a positive number"),
        ({"coll_exec_time_us": float("nan")}, "not a call: a field is missing or not a number"),
        ({"coll_exec_time_us": "400"}, "not a call: a field is missing or not a number"),
        ({"coll_msg_size_bytes": True}, "not a call: a field is missing or not a number"),
        ({"coll_msg_size_bytes": 10**30}, "not a call: a field is missing or not a number"),
        ({"coll_msg_size_bytes": 0, "coll_algobw_gbs": 0}, "its size is not one"),
        ({"coll_sn": -1}, "its number is not one"),
    ],
)
def test_what_is_no_call(fields: dict[str, Any], reason: str) -> None:
    assert fault(changed(**fields)) == reason


@pytest.mark.parametrize(
    ("rank", "ranks", "nodes", "reason"),
    [
        (0, 1, 1, "a single rank does not communicate"),
        (4, 4, 1, "its rank is not one of its communicator"),
        (-1, 4, 1, "its rank is not one of its communicator"),
        (0, 4, 5, "its communicator has more nodes than ranks"),
    ],
)
def test_what_is_no_communicator(rank: int, ranks: int, nodes: int, reason: str) -> None:
    found = record(0, perf(0, 400)) | {"header": header(rank, ranks, nodes)}
    assert fault(lines([found])) == reason


@pytest.mark.parametrize("host", ["a\nb", "\ud800", "../etc", "x" * 256, ""])
def test_what_is_no_host_is_not_kept(host: str) -> None:
    assert calls_of(inspector_log(0, host=host, version="v4\n")).processes == {Process("", 100): 0}
    assert imported(inspector_log(0, version="v4\nx")).tool_version == ""


def test_a_file_that_is_cut_short_keeps_what_is_whole() -> None:
    text = inspector_log()
    found = imported(text[:-30])
    assert list(found.calls[0].number) == [0, 1]
    assert found.faults.listed() == [(3, "not a complete JSON object")]


@given(st.randoms(use_true_random=False))
def test_mutations_end_in_one_line(dice: Any) -> None:
    text = dump([perf(0, 400), perf(1, 300)]) + inspector_log(2)
    try:
        found = imported(mutations.text(text, dice))
    except CalibError as error:
        assert "\n" not in str(error)
        return
    for calls in found.calls:
        assert min(calls.seconds) > 0 and min(calls.nbytes) > 0 and min(calls.rank) >= 0
