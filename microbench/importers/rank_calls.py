"""Collectives as single ranks of a running job timed them, before the ranks are joined."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from calib.foundation.collectives import EQUAL_PARTS

MOST_RANKS = 1 << 22
MOST_NBYTES = 1 << 40  # of a rank: of the most ranks these are 2^62
MOST_SECONDS = 1e6
MOST_NUMBER = (1 << 63) - 1  # sequence numbers
# NCCL's names (ncclFuncToString). Its point-to-point messages are no collectives, and of All2All and
# AllGatherV no log says what the size counts
FUNCTIONS = {
    "AllReduce": "allreduce",
    "AllGather": "allgather",
    "ReduceScatter": "reduce_scatter",
    "Broadcast": "broadcast",
    "Reduce": "reduce",
}


class Communicator(NamedTuple):
    """A communicator of NCCL; 0 ranks and 0 nodes where its log does not say them."""

    id: str
    ranks: int
    nodes: int


class Process(NamedTuple):
    """A process; "" where its log does not name the host."""

    host: str
    pid: int


class CallKind(NamedTuple):
    """What a rank called, and how: the operation in this program's words."""

    operation: str
    dtype: str
    mode: str


class Call(NamedTuple):
    """One collective on one rank; NCCL counts the calls of each function of a communicator.

    `nbytes` is one rank's part of allgather and reduce_scatter, as NCCL counts, else the whole buffer.
    """

    line: int
    communicator: Communicator
    process: Process
    rank: int
    kind: CallKind
    number: int
    nbytes: int
    seconds: float


@dataclass
class RankCalls:
    """The calls of one file by columns, 64 bytes each: a job may have a million of them."""

    resolution_s: float
    communicators: dict[Communicator, int] = field(default_factory=dict)
    processes: dict[Process, int] = field(default_factory=dict)
    kinds: dict[CallKind, int] = field(default_factory=dict)
    communicator: array[int] = field(default_factory=lambda: array("l"))
    process: array[int] = field(default_factory=lambda: array("l"))
    kind: array[int] = field(default_factory=lambda: array("l"))
    rank: array[int] = field(default_factory=lambda: array("l"))
    line: array[int] = field(default_factory=lambda: array("q"))
    number: array[int] = field(default_factory=lambda: array("q"))
    nbytes: array[int] = field(default_factory=lambda: array("q"))
    seconds: array[float] = field(default_factory=lambda: array("d"))

    def __len__(self) -> int:
        return len(self.seconds)

    def add(self, call: Call) -> str:
        """Keep a call; returns why it cannot be one, or ""."""
        reason = _wrong(call)
        if reason:
            return reason
        of = self.communicators.setdefault(call.communicator, len(self.communicators))
        self.communicator.append(of)
        self.process.append(self.processes.setdefault(call.process, len(self.processes)))
        self.kind.append(self.kinds.setdefault(call.kind, len(self.kinds)))
        self.rank.append(call.rank)
        self.line.append(call.line)
        self.number.append(call.number)
        self.nbytes.append(call.nbytes)
        self.seconds.append(call.seconds)
        return ""


def parts(operation: str, ranks: int) -> int:
    """How many times what NCCL counts the whole buffer is: the ranks where that is of one rank."""
    return ranks if operation in EQUAL_PARTS else 1


def whole_numbers(*values: Any) -> list[int]:
    """The values of JSON if all are whole numbers of 64 bits, else []."""
    good = all(type(value) is int and abs(value) < 1 << 64 for value in values)
    return list(values) if good else []


def _wrong(call: Call) -> str:
    of, most = call.communicator, call.communicator.ranks or MOST_RANKS
    checks = {
        "a single rank does not communicate": of.ranks == 1,
        "its rank is not one of its communicator": not 0 <= call.rank < most <= MOST_RANKS,
        "its communicator has more nodes than ranks": not 0 <= of.nodes <= most,
        "its number is not one": not 0 <= call.number <= MOST_NUMBER,
        "its process is not one": not 0 <= call.process.pid <= MOST_NUMBER,
        "its size is not one": not 0 < call.nbytes <= MOST_NBYTES,
        "its time is not a positive number": not 0 < call.seconds <= MOST_SECONDS,
    }
    return next((reason for reason, wrong in checks.items() if wrong), "")
