"""A made-up `nccl.core`: what calib calls of nccl4py 0.6, over MPI on tensors of the CPU.

Collectives really move data. What NCCL queues on a stream is done at once; what is between group_start
and group_end is done together at its end. A call without a stream is refused.

Algorithms are told as libnccl 2.31.2 and 2.32.3 are told (config/algorithm_parser.cc): by beginnings of
RING_LL128 and the like, in any case, with "," for or, "+" for and, "^" for not. This machine has rings
and trees, and no NVLS.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from itertools import count
from typing import Any, Literal

import numpy as np
import torch
from mpi4py import MPI
from nccl.bindings.nccl import NCCLError
from packaging.version import Version

VERSION = "2.32.3"
INVALID_ARGUMENT, INVALID_USAGE = 4, 5
# ranks that share a unique id tell one another who they are by messages of this tag and above
FIRST_TAG = 10_000
ID_BYTES = 128
ALLREDUCE, REST = ("allreduce",), ("allgather", "reduce_scatter")
ROOTED = ("broadcast", "reduce")
NAMES = {
    **{f"TREE_{protocol}": ALLREDUCE for protocol in ("LL", "LL128", "SIMPLE")},
    **{f"RING_{protocol}": (*ALLREDUCE, *REST, *ROOTED) for protocol in ("LL", "LL128", "SIMPLE")},
    "COLLNET_DIRECT_SIMPLE": (*ALLREDUCE, *REST),
    "COLLNET_CHAIN_SIMPLE": ALLREDUCE,
    "NVLS_SIMPLE": (*ALLREDUCE, *REST),
    "NVLSTREE_SIMPLE": ALLREDUCE,
    "PAT_SIMPLE": REST,
}
# us of no bytes, us per byte, as the made-up library expects them
EXPECTED = {"TREE": (8.0, 2e-4), "RING": (16.0, 1e-4)}
OWN_CHOICE = "RING_SIMPLE"

Buffer = torch.Tensor


def _passes(
    stream: object, operation: str, nbytes: int, mpi_comm: MPI.Comm, algorithm: str
) -> None:
    """Called for every operation that is carried out: here a virtual stream may take its time.

    `nbytes` is the whole buffer (of a message, the message); `algorithm` as in NAMES, "" for messages.
    """


def _does(call: Callable[[], None]) -> None:
    """Carries out a call, or keeps it: here a CUDA graph may capture it."""
    call()


class NcclRedOp(IntEnum):
    """How items are reduced."""

    SUM = 0


SUM = NcclRedOp.SUM


@dataclass(frozen=True)
class LibraryInfo:
    """The loaded libnccl."""

    version: Version


@dataclass(frozen=True)
class VersionInfo:
    """libnccl is None where there is none."""

    libnccl: LibraryInfo | None


def get_version() -> VersionInfo:
    return VersionInfo(LibraryInfo(Version(VERSION)) if VERSION else None)


class UniqueId:
    """Which rank of MPI_COMM_WORLD answers for a communicator, and by which tag."""

    def __init__(self, _internal: bytes | None = None) -> None:
        self._internal = _internal or bytes(ID_BYTES)

    @staticmethod
    def from_bytes(b: bytes | bytearray | memoryview) -> UniqueId:
        return UniqueId(bytes(b))

    @property
    def as_bytes(self) -> bytes:
        return self._internal

    @property
    def root_and_tag(self) -> tuple[int, int]:
        root, tag = np.frombuffer(self._internal, np.int64, 2).tolist()
        return root, tag


_tags = count(FIRST_TAG)


def get_unique_id(empty: bool = False) -> UniqueId:
    content = np.array([MPI.COMM_WORLD.Get_rank(), next(_tags)], np.int64).tobytes()
    return UniqueId(content.ljust(ID_BYTES, b"\0"))


@dataclass(kw_only=True)
class NCCLCollConfig:
    """Of one call."""

    alg_selection: str | None = None
    force_alg_selection: bool | None = None


@dataclass(frozen=True)
class GroupSimInfo:
    """In microseconds, whatever nccl4py's docstring says; of the last collective."""

    estimated_time: float


@dataclass
class _Group:
    """What has been called since group_start."""

    depth: int = 0
    collectives: list[Callable[[], None]] | None = None
    messages: list[Callable[[], MPI.Request]] | None = None
    expected_us: float = -1.0


_group = _Group()


def group_start() -> None:
    if not _group.depth:
        _group.collectives, _group.messages, _group.expected_us = [], [], -1.0
    _group.depth += 1


def group_end(*, simulate: bool = False) -> GroupSimInfo | None:
    _group.depth -= 1
    if simulate:
        return GroupSimInfo(_group.expected_us)
    if not _group.depth:
        requests = [post() for post in _group.messages or ()]
        for collective in _group.collectives or ():
            collective()
        MPI.Request.Waitall(requests)
    return None


@contextmanager
def group() -> Iterator[None]:
    group_start()
    try:
        yield
    finally:
        group_end()


def _selected(operation: str, config: NCCLCollConfig | None) -> str:
    """The algorithm that a call takes. Raises NCCLError where none of those asked for is here."""
    if config is None or not config.alg_selection:
        return OWN_CHOICE
    if Version(VERSION) < Version("2.31"):
        raise NotImplementedError("this NCCL has no ncclAllReduceConfig")
    possible = [name for name in selected(config.alg_selection) if operation in NAMES[name]]
    here = [name for name in possible if name.partition("_")[0] in EXPECTED]
    if not here:
        raise NCCLError(INVALID_USAGE if possible else INVALID_ARGUMENT)
    return here[-1]


def selected(selection: str) -> list[str]:
    """The names of NAMES that a selection leaves."""
    left: set[str] = set()
    for term in selection.upper().split(","):
        of_term = set(NAMES)
        for factor in term.split("+"):
            named = {name for name in NAMES if name.startswith(factor.removeprefix("^"))}
            of_term = of_term - named if factor.startswith("^") else of_term & named
        left |= of_term
    return [name for name in NAMES if name in left]


def _numbers(buffer: Buffer) -> np.ndarray[Any, Any]:
    assert buffer.is_contiguous() and buffer.dtype == torch.float32
    return buffer.detach().numpy()


class Communicator:
    """Ranks that share a unique id."""

    def __init__(self, ptr: int | None = None) -> None:
        self._comm: Any = MPI.COMM_NULL

    @classmethod
    def init(
        cls, nranks: int, rank: int, unique_id: UniqueId | Sequence[UniqueId], config: object = None
    ) -> Communicator:
        assert isinstance(unique_id, UniqueId)
        world, (root, tag) = MPI.COMM_WORLD, unique_id.root_and_tag
        members = np.full(nranks, -1, np.int64)
        members[rank] = world.Get_rank()
        if world.Get_rank() == root:
            for _ in range(nranks - 1):
                other = np.empty(2, np.int64)
                world.Recv(other, MPI.ANY_SOURCE, tag)
                members[other[0]] = other[1]
            for member in members:
                if member != root:
                    world.Send(members, member, tag)
        else:
            world.Send(np.array([rank, world.Get_rank()]), root, tag)
            world.Recv(members, root, tag)
        made = cls()
        made._comm = world.Create_group(world.group.Incl(members.tolist()), tag)
        return made

    def destroy(self) -> None:
        self._comm.Free()

    def allreduce(
        self,
        sendbuf: Buffer,
        recvbuf: Buffer,
        op: NcclRedOp,
        *,
        stream: object = None,
        config: NCCLCollConfig | None = None,
    ) -> None:
        self.reduce(sendbuf, recvbuf, op, stream=stream, config=config)

    def broadcast(
        self,
        sendbuf: Buffer,
        recvbuf: Buffer,
        root: int,
        *,
        stream: object = None,
        config: NCCLCollConfig | None = None,
    ) -> None:
        assert sendbuf is recvbuf
        buffer = _numbers(recvbuf)
        self._collective(
            "broadcast", recvbuf, stream, config, lambda: self._comm.Bcast(buffer, root)
        )

    def reduce(
        self,
        sendbuf: Buffer,
        recvbuf: Buffer,
        op: NcclRedOp,
        root: int | None = None,
        *,
        stream: object = None,
        config: NCCLCollConfig | None = None,
    ) -> None:
        assert op == SUM and sendbuf is recvbuf
        buffer = _numbers(sendbuf)

        def call() -> None:
            if root is None:
                self._comm.Allreduce(MPI.IN_PLACE, buffer)
            elif self._comm.Get_rank() == root:
                self._comm.Reduce(MPI.IN_PLACE, buffer, root=root)
            else:
                self._comm.Reduce(buffer, None, root=root)

        operation = "allreduce" if root is None else "reduce"
        self._collective(operation, sendbuf, stream, config, call)

    def allgather(
        self,
        sendbuf: Buffer,
        recvbuf: Buffer,
        *,
        stream: object = None,
        config: NCCLCollConfig | None = None,
    ) -> None:
        mine, gathered = _numbers(sendbuf), _numbers(recvbuf)
        assert len(gathered) >= len(mine) * self._comm.Get_size()
        self._collective(
            "allgather", recvbuf, stream, config, lambda: self._comm.Allgather(mine, gathered)
        )

    def reduce_scatter(
        self,
        sendbuf: Buffer,
        recvbuf: Buffer,
        op: NcclRedOp,
        *,
        stream: object = None,
        config: NCCLCollConfig | None = None,
    ) -> None:
        assert op == SUM
        whole, mine = _numbers(sendbuf), _numbers(recvbuf)
        self._collective(
            "reduce_scatter",
            sendbuf,
            stream,
            config,
            lambda: self._comm.Reduce_scatter_block(whole, mine),
        )

    def alltoall(
        self,
        sendbuf: Buffer,
        recvbuf: Buffer,
        *,
        stream: object = None,
        config: NCCLCollConfig | None = None,
    ) -> None:
        outgoing, incoming = _numbers(sendbuf), _numbers(recvbuf)
        self._do("alltoall", sendbuf, stream, lambda: self._comm.Alltoall(outgoing, incoming))

    def send(self, sendbuf: Buffer, peer: int, *, stream: object = None) -> None:
        buffer = _numbers(sendbuf)
        self._message("send", sendbuf, stream, lambda: self._comm.Isend(buffer, peer))

    def recv(self, recvbuf: Buffer, peer: int, *, stream: object = None) -> None:
        buffer = _numbers(recvbuf)
        self._message("recv", recvbuf, stream, lambda: self._comm.Irecv(buffer, peer))

    def _collective(
        self,
        operation: str,
        whole: Buffer,
        stream: object,
        config: NCCLCollConfig | None,
        call: Callable[[], None],
    ) -> None:
        algorithm = _selected(operation, config)
        latency_us, us_per_byte = EXPECTED[algorithm.partition("_")[0]]
        _group.expected_us = latency_us + us_per_byte * whole.nbytes
        self._do(operation, whole, stream, call, algorithm)

    def _do(
        self,
        operation: str,
        whole: Buffer,
        stream: object,
        call: Callable[[], None],
        algorithm: str = "",
    ) -> None:
        assert stream is not None, f"{operation} on no stream"

        def run() -> None:
            call()
            _passes(stream, operation, whole.nbytes, self._comm, algorithm)

        if _group.depth:
            assert _group.collectives is not None
            _group.collectives.append(run)
        else:
            _does(run)

    def _message(
        self,
        operation: Literal["send", "recv"],
        buffer: Buffer,
        stream: object,
        post: Callable[[], MPI.Request],
    ) -> None:
        assert stream is not None, f"{operation} on no stream"
        group_start()
        assert _group.messages is not None and _group.collectives is not None
        _group.messages.append(post)
        _group.collectives.append(lambda: _passes(stream, operation, buffer.nbytes, self._comm, ""))
        group_end()
