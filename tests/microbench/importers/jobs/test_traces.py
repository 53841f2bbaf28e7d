"""Traces of NCCL's example profiler: which calls have a time, and which have none and why."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.helpers import mutations
from tests.microbench.importers.logs import imported
from tests.microbench.importers.made.jobs import event, trace, traced

from calib.foundation.errors import CalibError
from calib.microbench.importers.jobs.traces import UNTIMED
from calib.microbench.importers.rank_calls import RankCalls

# of plugins/profiler/example/README.md (NVIDIA/nccl), whose second channel is left out there
README = """[
{"name": "AllReduce", "cat": "COLL_API", "ph": "b", "id": 0, "pid": 225798, "tid": 1, "ts": 0.0, \
"args": {"count": 262144, "datatype": ncclFloat32, "root": 0, "GraphCaptured":0, "Stream": 0x50200}},
{"name": "AllReduce", "cat": "COLL", "ph": "b", "id": 0, "pid": 225798, "tid": 1, "ts": 111994.5, \
"args": {"SeqNum": 0, "CommHash": 1493613951195738943, "Rank": 0, "Count": 262144, \
"Datatype": "ncclFloat32", "Algorithm": "RING", "Protocol": "SIMPLE", "nChannels": 1}},
{"name": "KernelCh", "cat": "GPU", "ph": "b", "id": 0, "pid": 225798, "tid": 1, "ts": 119711.9, \
"args": {"Channel": 0, "StartGpuClk": 1756135989724672000, "StopGpuClk": 1756135989732831232}},
{"name": "KernelCh", "cat": "GPU", "ph": "e", "id": 0, "pid": 225798, "tid": 1, "ts": 119711.9},
{"name": "AllReduce", "cat": "COLL", "ph": "e", "id": 17, "pid": 225798, "tid": 1, "ts": 170633.5},
{}]
"""


def calls_of(*calls: str) -> RankCalls:
    (found,) = imported(trace(*calls)).calls
    return found


def fault(*calls: str) -> str:
    found = imported(trace(*calls))
    assert not found.calls
    ((_, reason),) = found.faults.listed()
    return reason


def test_the_example_of_its_own_description() -> None:
    found = imported(README)
    (calls,) = found.calls
    assert found.of_run and found.tool == "NCCL example profiler"
    assert calls.seconds[0] == pytest.approx((732831232 - 724672000) * 1e-9)
    assert (calls.nbytes[0], calls.number[0], calls.rank[0]) == (4 * 262144, 0, 0)
    (communicator,) = calls.communicators
    assert (communicator.id, communicator.ranks) == (f"{1493613951195738943:x}", 0)
    assert [tuple(kind) for kind in calls.kinds] == [("allreduce", "float32", "eager")]


def test_a_call_takes_what_its_slowest_channel_takes() -> None:
    calls = calls_of(traced(0, [300_000, 410_000]), traced(1, [250_000, 200_000]))
    assert list(calls.seconds) == pytest.approx([410e-6, 250e-6])
    assert list(calls.line) == [4, 16]


def test_types_graphs_and_other_operations() -> None:
    gathered = traced(0, [9_000], coll="AllGather", count=4096, datatype="ncclInt8")
    calls = calls_of(gathered, traced(5, [8_000], datatype="ncclBfloat16", graph=1))
    assert [tuple(kind) for kind in calls.kinds] == [
        ("allgather", "int8", "eager"),
        ("allreduce", "bfloat16", "graph"),
    ]
    assert list(calls.nbytes) == [4096, 2 * 262144]


def test_without_channels_there_is_no_time() -> None:
    assert fault(traced(0, [])) == UNTIMED
    assert fault(traced(0, [0, 0])) == UNTIMED
    assert fault(traced(0, [400_000, 0])) == "some of its channels have no time"
    short = traced(0, [400_000]).replace('"nChannels": 1', '"nChannels": 2')
    assert fault(short) == "some of its channels have no time"


def test_channels_of_messages_are_not_those_of_a_call() -> None:
    message = (
        event("Send", "P2P", "b", '"CommHash": 1, "Rank": 0, "Peer": 1, "Count": 8')
        + event("KernelCh", "GPU", "b", '"Channel": 0, "StartGpuClk": 1, "StopGpuClk": 900000000')
        + event("Send", "P2P", "e")
    )
    found = imported(trace(message, traced(0, [300_000]), message))
    assert list(found.calls[0].seconds) == pytest.approx([300e-6])
    assert found.notes == ["2 messages left out: only collectives are read"]


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ('"Datatype": "ncclFloat32"', '"Datatype": "ncclQuad"', "an unknown data type"),
        ('"Rank": 0', '"Rank": "0"', "not a call: a field is missing or not a number"),
        ('"SeqNum": 0', '"SeqNum": 0.5', "not a call: a field is missing or not a number"),
        ('"Count": 262144', '"Count": 0', "its size is not one"),
        ('"name": "AllReduce", "cat": "COLL"', '"name": "X", "cat": "COLL"', "is not one that is"),
        ('"Rank": 0, ', '"Rank": 0 ', "not a complete event"),
    ],
)
def test_what_is_no_call(old: str, new: str, reason: str) -> None:
    assert reason in fault(traced(0, [300_000]).replace(old, new))


def test_a_trace_that_is_cut_short_keeps_what_is_whole() -> None:
    text = trace(traced(0, [300_000]), traced(1, [300_000]))
    found = imported(text[: text.rindex('"cat": "COLL", "ph": "e"')])
    assert list(found.calls[0].number) == [0]
    assert [reason for _, reason in found.faults.listed()] == ["not a complete event"]


@given(st.randoms(use_true_random=False))
def test_mutations_end_in_one_line(dice: Any) -> None:
    text = trace(traced(0, [300_000, 5]), traced(1, [7_000]))
    try:
        found = imported(mutations.text(text, dice))
    except CalibError as error:
        assert "\n" not in str(error)
        return
    for calls in found.calls:
        assert min(calls.seconds) > 0 and min(calls.nbytes) > 0
