"""The traces of NCCL's example profiler plugin: asynchronous events of Chrome's trace format.

A file is of one rank of a communicator, its events in the order in which they are printed: a call
(category COLL) from `b` to `e`, and between them a KernelCh (category GPU) for each channel with
clocks of the GPU in ns. The call's own time stamps are the host's, which is done long before the GPU
is: without KernelCh there is no time in a trace. A call takes what its slowest channel takes, as the
Inspector has it. How many ranks a communicator has is not in the file, nor are the nodes.

References
----------
plugins/profiler/example (ext-profiler/example until NCCL 2.29): print_event.cc, event.h, README.md;
NVIDIA/nccl. The category GPU is there since 2.26, its clocks since 2.28.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any

from calib.foundation.words import counted
from calib.microbench.importers.lines.reading import Log, is_json
from calib.microbench.importers.nccl.operations import DTYPES
from calib.microbench.importers.rank_calls import (
    FUNCTIONS,
    Call,
    CallKind,
    Communicator,
    Process,
    RankCalls,
    whole_numbers,
)
from calib.microbench.importers.said import Flags, remark
from calib.microbench.importers.table import Imported

NAME = "NCCL example profiler"
DESCRIPTION = "NCCL example profiler, trace"

RESOLUTION_S = 1.024e-6  # what the clocks of the published traces are multiples of
EVENT = re.compile(
    r'\{\s*"name"\s*:\s*"[^"]{0,64}"\s*,\s*"cat"\s*:\s*"(COLL|P2P|CE_COLL|GPU|COLL_API)"'
    r'\s*,\s*"ph"\s*:\s*"([be])"'
)
OWN = re.compile(r'"cat"\s*:\s*"(?:COLL|P2P)"')
GRAPH = re.compile(r'"GraphCaptured"\s*:\s*1\b')
OTHERS = {"P2P": "message", "CE_COLL": "collective of copy engines"}
BROKEN = "not a complete event"
UNTIMED = (
    "no time of the GPU: NCCL_PROFILE_EVENT_MASK was without 64 (KernelCh), or NCCL is before 2.28"
)


def recognise(log: Log) -> bool:
    """Whether a file is such a trace."""
    return is_json(log.text) and '"CommHash"' in log.text and bool(OWN.search(log.text))


def read(log: Log, flags: Flags) -> Imported:
    """All calls of a trace; they become rows when those of all ranks are joined."""
    result = Imported(NAME, of_run=True)
    reader = _Reader(result, log.text)
    for event in EVENT.finditer(log.text):
        reader.take(event)
    reader.stop(BROKEN)
    for what, count in reader.others.items():
        remark(result.notes, f"{counted(count, what)} left out: only collectives are read")
    if len(reader.calls):
        result.calls.append(reader.calls)
    elif not result.faults.entries:
        result.faults.add(1, "no collective in it")
    return result


class _Reader:
    """Goes through the events of a trace: `_call` is the one whose channels are being read."""

    def __init__(self, result: Imported, text: str) -> None:
        self.calls = RankCalls(RESOLUTION_S)
        self.others: Counter[str] = Counter()
        self._result, self._text = result, text
        self._decode = json.JSONDecoder().raw_decode
        self._call: dict[str, Any] | None = None
        self._channels: list[float] = []
        self._line, self._counted_to, self._graph = 1, 0, False

    def take(self, event: re.Match[str]) -> None:
        """The next event of one of the categories."""
        category, phase = event.groups()
        if category == "COLL_API":
            self._graph = phase == "b" and bool(GRAPH.search(self._rest(event)))
        elif category in OTHERS:
            self.others[OTHERS[category]] += phase == "b"
        elif category == "COLL" and phase == "b":
            self.stop(BROKEN)
            self._line += self._text.count("\n", self._counted_to, event.start())
            self._counted_to = event.start()
            self._call, self._channels = self._event(event), []
            if self._call is None:
                self._result.faults.add(self._line, BROKEN)
        elif category == "COLL":
            self.stop(self._reason())
        elif phase == "b" and self._call is not None and '"KernelCh"' in event[0]:
            self._channels.append(_of_channel(self._event(event)))

    def stop(self, reason: str) -> None:
        """The call ends here, if there is one: it is kept where there is no reason against it."""
        if self._call is not None and reason:
            self._result.faults.add(self._line, reason)
        self._call = None

    def _rest(self, event: re.Match[str]) -> str:
        """An event up to the end of its line: what NCCL 2.28 prints of COLL_API is no JSON."""
        end = self._text.find("}}", event.end())
        return self._text[event.start() : min(end if end > 0 else event.end(), event.end() + 1024)]

    def _event(self, event: re.Match[str]) -> dict[str, Any] | None:
        try:
            found = self._decode(self._text, event.start())[0]
        except (ValueError, RecursionError):
            return None
        return found if isinstance(found, dict) else None

    def _reason(self) -> str:
        """Keep the call; returns why it cannot be one, or ""."""
        call = self._call
        if call is None:
            return ""
        said = call.get("args")
        about = said if isinstance(said, dict) else {}
        operation, kind = FUNCTIONS.get(str(call.get("name"))), about.get("Datatype")
        if operation is None:
            return "its collective is not one that is read"
        word = kind.removeprefix("nccl").lower() if isinstance(kind, str) else ""
        dtype, item = DTYPES.get(word, ("", 0))
        if not item:
            return "an unknown data type"
        numbers = whole_numbers(
            *(about.get(name) for name in ("SeqNum", "CommHash", "Rank", "Count"))
        )
        if not numbers:
            return "not a call: a field is missing or not a number"
        number, of, rank, count = numbers
        # before 2.28 the most that there might be, by another name
        channels = about.get("nChannels", len(self._channels))
        if not self._channels or not all(self._channels) or len(self._channels) != channels:
            return UNTIMED if not any(self._channels) else "some of its channels have no time"
        pid = call.get("pid")
        return self.calls.add(
            Call(
                line=self._line,
                communicator=Communicator(f"{of:x}", 0, 0),
                process=Process("", pid if type(pid) is int else 0),
                rank=rank,
                kind=CallKind(operation, dtype, "graph" if self._graph else "eager"),
                number=number,
                nbytes=count * item,
                seconds=max(self._channels),
            )
        )


def _of_channel(event: dict[str, Any] | None) -> float:
    """Seconds on the GPU's clock, 0 where one of its two ends is missing."""
    about = event.get("args") if event else None
    about = about if isinstance(about, dict) else {}
    start, stop = about.get("StartGpuClk"), about.get("StopGpuClk")
    if type(start) is not int or type(stop) is not int or not 0 < start < stop < 1 << 64:
        return 0.0
    return (stop - start) * 1e-9
