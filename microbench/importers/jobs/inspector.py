"""NCCL Inspector: JSON of a profiler plugin that comes with NCCL, 2.28 and later.

A file is of one process and may hold several ranks and communicators. Its objects, one a line, are
calls (`coll_perf`), messages (`p2p_perf`), work of proxies (`proxy_trace`) and counts (`dump_stats`).
Formats 4.0 to 4.2 have `header` (communicator) and `metadata` (process) in each; from 4.3 on they stand
once, in the `dump_stats` before so many calls. Sizes are count * type as the caller gave them, times are
of the slowest channel on the GPU's clock, in whole us without what is behind the point, and algbw is of
the whole buffer.

References
----------
plugins/profiler/inspector (ext-profiler/inspector until NCCL 2.29): inspector_json.cc, inspector.cc,
inspector_json_reader.py, README.md; NVIDIA/nccl.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from calib.foundation.words import counted
from calib.microbench.importers.lines.reading import Log, is_json
from calib.microbench.importers.nccl.operations import KINDS
from calib.microbench.importers.rank_calls import (
    FUNCTIONS,
    Call,
    CallKind,
    Communicator,
    Process,
    RankCalls,
    parts,
    whole_numbers,
)
from calib.microbench.importers.said import Flags, remark
from calib.microbench.importers.table import Imported

NAME = "NCCL Inspector"
DESCRIPTION = "NCCL Inspector, JSON"

RESOLUTION_S = 1e-6
BETWEEN = " \t\r\n,[]\x1e"
CLOSE = 1e-4  # algbw has six decimals; a time of whole us is what it was computed from
HALF_ALGBW = 0.5e-6  # GB/s
MOST = 1e18
HOST = re.compile(r"[\w.-]{1,255}", re.ASCII)
VERSION = re.compile(r"v[\d.]{1,12}", re.ASCII)
OTHERS = {"p2p_perf": "message", "proxy_trace": "record of proxies"}
OF_GPU = "kernel_gpu"
INCOMPLETE = "not a complete JSON object"


def recognise(log: Log) -> bool:
    """Whether a file is one of the Inspector."""
    return is_json(log.text) and any(
        f'"{name}"' in log.text for name in ("coll_perf", "inspector_output_format_version")
    )


def read(log: Log, flags: Flags) -> Imported:
    """All calls of a file; they become rows when those of all ranks are joined."""
    result = Imported(NAME, of_run=True)
    calls, context = RankCalls(RESOLUTION_S), _Context()
    others: Counter[str] = Counter()
    dropped: dict[tuple[Any, Any], int] = {}
    for line, found in _objects(log.text):
        reason = context.restore(found) if isinstance(found, dict) else INCOMPLETE
        if not isinstance(found, dict):
            context.clear()
        if reason:
            result.faults.add(line, reason)
            continue
        version = context.metadata.get("inspector_output_format_version")
        if isinstance(version, str) and VERSION.fullmatch(version):
            result.tool_version = result.tool_version or version
        if isinstance(found.get("coll_perf"), dict):
            reason = _add(calls, line, found["coll_perf"], context)
            if reason:
                result.faults.add(line, reason)
        elif isinstance(stats := found.get("dump_stats"), dict):
            total = _whole(stats.get("coll_dropped_total"))
            of = str(context.header.get("id")), str(context.header.get("rank"))
            dropped[of] = max(total, dropped.get(of, 0))
        else:
            others.update(OTHERS[name] for name in OTHERS if name in found)
    for what, count in others.items():
        remark(result.notes, f"{counted(count, what)} left out: only collectives are read")
    if lost := sum(dropped.values()):
        remark(result.notes, f"the Inspector itself lost {counted(lost, 'collective')}")
    if len(calls):
        result.calls.append(calls)
    elif not result.faults.entries:
        result.faults.add(1, "no collective in it")
    return result


def _objects(text: str) -> Iterator[tuple[int, Any]]:
    """Line and value of every object of JSON lines, a list, or a text with line breaks inside.

    None stands for what is not JSON up to the end of its line.
    """
    decode = json.JSONDecoder().raw_decode
    at, line, counted_to = 0, 1, 0
    while at < len(text):
        if text[at] in BETWEEN:
            at += 1
            continue
        line += text.count("\n", counted_to, at)
        counted_to = at
        try:
            value, at = decode(text, at)
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            end = text.find("\n", at)
            at = len(text) if end < 0 else end
        yield line, value


@dataclass
class _Context:
    """Communicator and process of the calls; `left` says how many of each kind they are of (4.3)."""

    header: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    left: Counter[str] = field(default_factory=Counter)

    def clear(self) -> None:
        """What follows is of nobody until somebody says of whom."""
        self.header, self.metadata, self.left = {}, {}, Counter()

    def restore(self, found: dict[str, Any]) -> str:
        """Set what an object is of; returns why that is not known, or ""."""
        header, metadata = found.get("header"), found.get("metadata")
        if isinstance(header, dict):
            self.header = header
            self.metadata = metadata if isinstance(metadata, dict) else {}
            stats = found.get("dump_stats")
            stats = stats if isinstance(stats, dict) else {}
            names = {"coll_perf": "coll", "p2p_perf": "p2p", "proxy_trace": "proxy"}
            self.left = Counter(
                {name: _whole(stats.get(f"{word}_records")) for name, word in names.items()}
            )
            return ""
        kind = next((name for name in self.left if name in found), "")
        if self.left[kind] <= 0:
            self.clear()
            return "its communicator is not said: what comes before it is missing"
        self.left[kind] -= 1
        return ""


def _add(calls: RankCalls, line: int, perf: dict[str, Any], context: _Context) -> str:
    """Keep a call; returns why it cannot be one, or ""."""
    header, metadata = context.header, context.metadata
    name, source = perf.get("coll"), perf.get("coll_timing_source", OF_GPU)
    operation = FUNCTIONS.get(name) if isinstance(name, str) else None
    if operation is None:
        return "its collective is not one that is read"
    if source != OF_GPU:
        return "timed on the host, not by the GPU's clock"
    whole = whole_numbers(
        *(header.get(key) for key in ("rank", "n_ranks", "nnodes")),
        *(perf.get(key) for key in ("coll_sn", "coll_msg_size_bytes")),
    )
    micros, algbw = _number(perf.get("coll_exec_time_us")), _number(perf.get("coll_algobw_gbs", 0))
    if not whole or not isinstance(header.get("id"), str) or micros is None or algbw is None:
        return "not a call: a field is missing or not a number"
    rank, ranks, nodes, number, nbytes = whole
    host = str(metadata.get("hostname", ""))
    # a type that no log of the Inspector names: as of OSU, float32 where it is added up
    dtype = "float32" if KINDS[operation].reduces else "uint8"
    mode = "graph" if perf.get("graphCaptured") is True else "eager"
    if algbw and not _agrees(float(nbytes * parts(operation, ranks)), micros, algbw):
        return "size, time and algbw do not agree"
    return calls.add(
        Call(
            line=line,
            communicator=Communicator(header["id"], ranks, nodes),
            process=Process(host if HOST.fullmatch(host) else "", _whole(metadata.get("pid"))),
            rank=rank,
            kind=CallKind(operation, dtype, mode),
            number=number,
            nbytes=nbytes,
            seconds=micros * 1e-6,
        )
    )


def _agrees(whole: float, micros: float, algbw: float) -> bool:
    """Whether bytes / time is the bandwidth, as exactly as that is printed."""
    found = whole / micros * 1e-3 if micros > 0 else 0.0
    return abs(found - algbw) <= CLOSE * found + HALF_ALGBW


def _number(value: Any) -> float | None:
    """A number of JSON that a double can hold."""
    return value if type(value) in (int, float) and -MOST < value < MOST else None


def _whole(value: Any) -> int:
    """A number of records or a process, 0 where it is none."""
    return value if type(value) is int and 0 <= value < MOST else 0
