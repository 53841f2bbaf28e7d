"""What NCCL Inspector and the example profiler plugin write of a job, as their sources print it.

plugins/profiler/inspector/inspector_json.cc and plugins/profiler/example/print_event.cc of NVIDIA/nccl.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

PER_RANK = ("AllGather", "ReduceScatter")


def header(rank: int = 0, ranks: int = 4, nodes: int = 1, id: str = "0x7f8c496ae9f661") -> Any:
    return {"id": id, "rank": rank, "n_ranks": ranks, "nnodes": nodes}


def metadata(version: str = "v4.0", host: str = "node0", pid: int = 100) -> Any:
    return {
        "inspector_output_format_version": version,
        "git_rev": "",
        "rec_mechanism": "nccl_profiler_interface",
        "dump_timestamp_us": 1748030377748202,
        "hostname": host,
        "pid": pid,
    }


def perf(
    number: int, micros: int, size: int = 1 << 20, coll: str = "AllReduce", ranks: int = 4
) -> Any:
    """A call as inspectorCompletedColl prints it, with algbw as inspectorComputeOpBw has it."""
    whole = size * (ranks if coll in PER_RANK else 1)
    algbw = whole / 1e9 / (micros / 1e6)
    return {
        "coll": coll,
        "coll_sn": number,
        "coll_msg_size_bytes": size,
        "coll_exec_time_us": micros,
        "coll_timing_source": "kernel_gpu",
        "coll_algobw_gbs": round(algbw, 6),
        "coll_busbw_gbs": round(algbw * 1.5, 6),
    }


def record(rank: int, found: Any, ranks: int = 4, nodes: int = 1, **about: Any) -> Any:
    """A line of formats 4.0 to 4.2."""
    id = about.pop("id", "0x7f8c496ae9f661")
    process = {"host": f"node{rank * nodes // ranks}", "pid": 100 + rank} | about
    return {
        "header": header(rank, ranks, nodes, id),
        "metadata": metadata(**process),
        "coll_perf": found,
    }


def lines(records: Iterable[Any]) -> str:
    return "".join(json.dumps(each) + "\n" for each in records)


def inspector_log(rank: int = 0, times: Iterable[int] = (400, 300, 500), **about: Any) -> str:
    """One rank's calls of an allreduce of 1 MiB on 4 ranks, numbered from 0."""
    return lines(record(rank, perf(n, micros), **about) for n, micros in enumerate(times))


def event(name: str, category: str, phase: str, args: str = "", pid: int = 7) -> str:
    more = f', "args": {{{args}}}' if args else ""
    return (
        f'{{"name": "{name}", "cat": "{category}", "ph": "{phase}", "id": 0, "pid": {pid}, "tid": 1, '
        f'"ts": 3433.595001{more}}},\n'
    )


def traced(
    number: int,
    nanos: Iterable[int],
    rank: int = 0,
    count: int = 262144,
    coll: str = "AllReduce",
    datatype: str = "ncclFloat32",
    graph: int = 0,
) -> str:
    """A call with the time of each of its channels, as printCollEventHeader and the others print it."""
    nanos = list(nanos)
    start = 1756135989724672000
    channels = "".join(
        event(
            "KernelCh",
            "GPU",
            "b",
            f'"Channel": {i}, "StartGpuClk": {start}, "StopGpuClk": {start + each if each else 0}',
            7 + rank,
        )
        + event("ScheduleSend", "PROXY", "b", '"Channel": 0, "Peer": 1, "Steps": 4')
        + event("KernelCh", "GPU", "e", pid=7 + rank)
        for i, each in enumerate(nanos)
    )
    # of 2.28, whose data type is no JSON
    api = f'"count": {count}, "datatype": {datatype}, "root": 0, "GraphCaptured":{graph}, "Stream": 0x50'
    return (
        event("Group API", "GROUP_API", "b", '"groupApiId": 0, "groupDepth":1')
        + event(coll, "COLL_API", "b", api)
        + event(
            coll,
            "COLL",
            "b",
            f'"SeqNum": {number}, "CommHash": 14936139511957389430, "Rank": {rank}, "Count": {count}, '
            f'"Datatype": "{datatype}", "Algorithm": "RING", "Protocol": "SIMPLE", '
            f'"nChannels": {len(nanos)}',
            7 + rank,
        )
        + channels
        + event(coll, "COLL", "e", pid=7 + rank)
        + event(coll, "COLL_API", "e")
        + event("Group API", "GROUP_API", "e")
    )


def trace(*calls: str) -> str:
    """A whole file."""
    return "[\n" + "".join(calls) + "{}]\n"
