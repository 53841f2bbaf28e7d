"""MPI as a backend of torch.distributed: "calib_mpi", a ProcessGroup in Python over mpi4py.

Importing this module registers it. `init_process_group("calib_mpi", store=HashStore(), rank=...,
world_size=...)` takes MPI_COMM_WORLD, `new_group(ranks, backend="calib_mpi")` some of its ranks, and
`pg_options=comm` any mpi4py communicator, which the group then owns. DistributedDataParallel runs on
them. Tensors on the CPU, of any type, travel by their memory: no pickles, no copy of what is
contiguous. float16, bfloat16 and float8, which MPI cannot add, are reduced as float32, rounded once.

With async_op=False a call blocks in MPI. With async_op=True it starts MPI's nonblocking operation,
which the work's `wait` waits for. DistributedDataParallel waits for a future: progress.py. Timeouts are
not looked at: MPI has none. Under torch.profiler a call is annotated as other backends do it, and with
its size, `mpi:Allreduce 1024 float32`: torch does so for backends in C++ alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from mpi4py import MPI
from torch.autograd import profiler

from calib.foundation.errors import InputError
from calib.microbench.communicators.progress import complete

BACKEND = "calib_mpi"

_Tensors = Sequence[torch.Tensor]
_After = Callable[[], None] | None
_Pair = tuple[Callable[..., None], Callable[..., MPI.Request]]  # blocking and nonblocking

_KINDS: Any = dist.ReduceOp.RedOpType
# and whether the result is divided by the number of ranks
_OPERATIONS = {
    _KINDS.SUM: (MPI.SUM, False),
    _KINDS.AVG: (MPI.SUM, True),
    _KINDS.PRODUCT: (MPI.PROD, False),
    _KINDS.MIN: (MPI.MIN, False),
    _KINDS.MAX: (MPI.MAX, False),
    _KINDS.BAND: (MPI.BAND, False),
    _KINDS.BOR: (MPI.BOR, False),
    _KINDS.BXOR: (MPI.BXOR, False),
}
_TYPES = {
    torch.float32: MPI.FLOAT,
    torch.float64: MPI.DOUBLE,
    torch.int8: MPI.INT8_T,
    torch.uint8: MPI.UINT8_T,
    torch.int16: MPI.INT16_T,
    torch.int32: MPI.INT32_T,
    torch.int64: MPI.INT64_T,
}
_address = MPI.memory.fromaddress


def _bytes(tensor: torch.Tensor) -> list[Any]:
    """The memory of a contiguous tensor that is only moved."""
    return [_address(tensor.data_ptr(), tensor.nbytes), MPI.BYTE]


def _numbers(tensor: torch.Tensor) -> list[Any]:
    """The memory of a contiguous tensor that is added up; its type is in _TYPES."""
    return [_address(tensor.data_ptr(), tensor.nbytes), _TYPES[tensor.dtype]]


def _addable(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself where MPI can add it as it lies; otherwise a copy that MPI can add."""
    if tensor.dtype in _TYPES:
        return tensor.contiguous()
    if not tensor.dtype.is_floating_point:
        raise InputError(f"{BACKEND} cannot reduce {tensor.dtype}; convert it first")
    return tensor.to(torch.float32).contiguous()


def _back(place: torch.Tensor, landed: torch.Tensor, divisor: int = 1) -> _After:
    """What is left to do after MPI: divide the sum, copy it to its place; None for nothing."""
    if landed is place and divisor == 1:
        return None

    def after() -> None:
        with torch.no_grad():
            if divisor != 1:
                landed.div_(divisor)
            if landed is not place:
                place.copy_(landed.view(place.shape))

    return after


class MpiWork(dist.Work):
    """An operation that has been started. `after` finishes it, `kept` is memory that MPI uses."""

    def __init__(
        self,
        request: MPI.Request,
        result: list[torch.Tensor],
        after: _After,
        kept: object,
        operation: str,
    ) -> None:
        super().__init__()
        self._operation = operation
        self._request, self._result, self._after, self._kept = request, result, after, kept
        self._future: torch.futures.Future[list[torch.Tensor]] | None = None

    def test(self) -> bool:
        """Whether it is done; MPI goes on with it meanwhile."""
        done = bool(self._request.Test())
        if done:
            self._finish()
        return done

    def is_completed(self) -> bool:
        """Whether it is done."""
        return self.test() if self._future is None else bool(self._future.done())

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Return when it is done."""
        if self._future is None:
            with _annotated(self._operation, self._result, self._kept):
                self._request.Wait()
            self._finish()
        else:
            self._future.wait()
        return True

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """Holds the tensors of the result when the operation is done. From now on a thread tests."""
        if self._future is None:
            self._future = torch.futures.Future()
            if profiler._is_profiler_enabled:
                annotation = _annotated(self._operation, self._result, self._kept)
                with annotation:
                    annotation._call_end_callbacks_on_future(self._future)
            complete(self.test, self._future, self._result)
        return self._future

    def result(self) -> list[torch.Tensor]:
        """The tensors that hold the result."""
        return self._result

    def _finish(self) -> None:
        if self._after is not None:
            self._after()
        self._after = self._kept = None


def _annotated(operation: str, result: _Tensors, kept: object) -> Any:
    """A context that a profiler shows, with the size of the largest tensor of the call."""
    if not profiler._is_profiler_enabled:
        return nullcontext()
    held = kept if isinstance(kept, tuple) else (kept,)
    tensors = [x for x in (*result, *held) if isinstance(x, torch.Tensor)]
    whole = max(tensors, key=torch.Tensor.numel, default=None)
    size = "" if whole is None else f" {whole.numel()} {str(whole.dtype).removeprefix('torch.')}"
    return profiler.record_function(f"mpi:{operation}{size}")


class _Done(dist.Work):
    """What a call that has blocked returns: there is nothing to wait for."""

    def is_completed(self) -> bool:
        return True

    def wait(self, timeout: timedelta | None = None) -> bool:
        return True


_DONE = _Done()


_ProcessGroup: Any = dist.ProcessGroup  # its methods are overloads; torch calls one form of each


class MpiProcessGroup(_ProcessGroup):  # type: ignore[misc]
    """What torch.distributed and DistributedDataParallel call; names and arguments are torch's."""

    backend_name = BACKEND

    def __init__(self, comm: MPI.Comm, name: str) -> None:
        self._rank, self._size = comm.Get_rank(), comm.Get_size()
        super().__init__(self._rank, self._size)
        self._comm, self._name = comm, name
        self._allreduce: _Pair = comm.Allreduce, comm.Iallreduce
        self._reduce: _Pair = comm.Reduce, comm.Ireduce
        self._reduce_scatter: _Pair = comm.Reduce_scatter_block, comm.Ireduce_scatter_block
        self._broadcast: _Pair = comm.Bcast, comm.Ibcast
        self._allgather: _Pair = comm.Allgather, comm.Iallgather
        self._allgatherv: _Pair = comm.Allgatherv, comm.Iallgatherv
        self._alltoall: _Pair = comm.Alltoall, comm.Ialltoall
        self._alltoallv: _Pair = comm.Alltoallv, comm.Ialltoallv
        self._barrier: _Pair = comm.Barrier, comm.Ibarrier

    def getBackendName(self) -> str:  # noqa: N802 (torch's name)
        """The name that the backend is registered by."""
        return self.backend_name

    def getGroupName(self) -> str:  # noqa: N802 (torch's name)
        """The name that torch gave this group."""
        return self._name

    def allreduce(self, tensors: _Tensors, opts: Any) -> dist.Work:
        """MPI_Allreduce in place, of one tensor."""
        (tensor,) = tensors
        operation, divisor = self._operation(opts)
        sums = _addable(tensor)
        arguments = (MPI.IN_PLACE, _numbers(sums), operation)
        return run_call(
            self._allreduce, arguments, opts, [tensor], _back(tensor, sums, divisor), sums
        )

    def reduce(self, tensors: _Tensors, opts: Any) -> dist.Work:
        """MPI_Reduce of one tensor, in place at the root."""
        (tensor,) = tensors
        operation, divisor = self._operation(opts)
        sums = _addable(tensor)
        arguments: tuple[Any, ...] = (_numbers(sums), None, operation, opts.rootRank)
        after = None
        if opts.rootRank == self._rank:
            arguments = (MPI.IN_PLACE, *arguments[:1], *arguments[2:])
            after = _back(tensor, sums, divisor)
        return run_call(self._reduce, arguments, opts, [tensor], after, sums)

    def reduce_scatter_single(
        self, output: torch.Tensor, whole: torch.Tensor, opts: Any
    ) -> dist.Work:
        """MPI_Reduce_scatter_block."""
        operation, divisor = self._operation(opts)
        sums, mine = _addable(whole), _addable(output)
        arguments = (_numbers(sums), _numbers(mine), operation)
        after = _back(output, mine, divisor)
        return run_call(self._reduce_scatter, arguments, opts, [output], after, (sums, mine))

    def broadcast(self, tensors: _Tensors, opts: Any) -> dist.Work:
        """MPI_Bcast of one tensor."""
        (tensor,) = tensors
        whole = tensor.contiguous()
        arguments = (_bytes(whole), opts.rootRank)
        return run_call(self._broadcast, arguments, opts, [tensor], _back(tensor, whole), whole)

    def all_gather_single(self, output: torch.Tensor, mine: torch.Tensor, opts: Any) -> dist.Work:
        """MPI_Allgather."""
        sent, landed = mine.contiguous(), output.contiguous()
        arguments = (_bytes(sent), _bytes(landed))
        after = _back(output, landed)
        return run_call(self._allgather, arguments, opts, [output], after, (sent, landed))

    def allgather(self, outputs: Sequence[_Tensors], inputs: _Tensors, opts: Any) -> dist.Work:
        """MPI_Allgatherv: one tensor of each rank, which may differ in length.

        Outputs that lie side by side are written where they are.
        """
        (mine,), (places,) = inputs, outputs
        sent, counts = mine.contiguous(), [place.nbytes for place in places]
        if _side_by_side(places):
            landed, after = places[0], None
        else:
            landed = torch.empty(sum(counts), dtype=torch.uint8)
            pieces = torch.split(landed, counts)

            def after() -> None:
                for place, piece in zip(places, pieces, strict=True):
                    with torch.no_grad():
                        place.copy_(piece.view(place.dtype).view(place.shape))

        everything = [_address(landed.data_ptr(), sum(counts)), counts, MPI.BYTE]
        arguments = (_bytes(sent), everything)
        return run_call(self._allgatherv, arguments, opts, list(places), after, (sent, landed))

    def all_to_all_single(
        self,
        output: torch.Tensor,
        outgoing: torch.Tensor,
        output_split_sizes: Sequence[int] | None,
        input_split_sizes: Sequence[int] | None,
        opts: Any,
    ) -> dist.Work:
        """MPI_Alltoall, or MPI_Alltoallv where the splits of the first dimension are given."""
        sent, landed = outgoing.contiguous(), output.contiguous()
        pair, arguments = self._alltoall, (_bytes(sent), _bytes(landed))
        if output_split_sizes or input_split_sizes:
            pair = self._alltoallv
            arguments = (
                self._split(sent, input_split_sizes),
                self._split(landed, output_split_sizes),
            )
        return run_call(pair, arguments, opts, [output], _back(output, landed), (sent, landed))

    def barrier(self, opts: Any) -> dist.Work:
        """MPI_Barrier."""
        return run_call(self._barrier, (), opts, [], None, None)

    def send(self, tensors: _Tensors, destination: int, tag: int = 0) -> dist.Work:
        """MPI_Isend of one tensor: torch's send waits for it at once, its isend later."""
        (tensor,) = tensors
        sent = tensor.contiguous()
        return MpiWork(
            self._comm.Isend(_bytes(sent), destination, tag), [tensor], None, sent, "Send"
        )

    def recv(self, tensors: _Tensors, source: int, tag: int = 0) -> dist.Work:
        """MPI_Irecv of one tensor."""
        (tensor,) = tensors
        landed = tensor.contiguous()
        request = self._comm.Irecv(_bytes(landed), source, tag)
        return MpiWork(request, [tensor], _back(tensor, landed), landed, "Recv")

    def shutdown(self) -> None:
        """MPI_Comm_free."""
        if self._comm not in (MPI.COMM_NULL, MPI.COMM_WORLD):
            self._comm.Free()

    # the names before torch 2.13
    _allgather_base = all_gather_single
    _reduce_scatter_base = reduce_scatter_single
    alltoall_base = all_to_all_single

    def _operation(self, opts: Any) -> tuple[MPI.Op, int]:
        """The MPI operation, and what its result is to be divided by."""
        kind = opts.reduceOp.op
        if kind not in _OPERATIONS:
            raise InputError(f"{BACKEND} has no {kind}")
        operation, is_mean = _OPERATIONS[kind]
        return operation, self._size if is_mean else 1

    def _split(self, tensor: torch.Tensor, sizes: Sequence[int] | None) -> list[Any]:
        rows = tensor.shape[0]
        row = tensor.nbytes // rows if rows else 0
        if not sizes:
            sizes = [rows // self._size] * self._size
        return [_address(tensor.data_ptr(), tensor.nbytes), [n * row for n in sizes], MPI.BYTE]


def run_call(
    pair: _Pair,
    arguments: tuple[Any, ...],
    opts: Any,
    result: list[torch.Tensor],
    after: _After,
    kept: object,
) -> dist.Work:
    blocking, started = pair
    name = blocking.__name__
    if opts.asyncOp:
        return MpiWork(started(*arguments), result, after, kept, name)
    with _annotated(name, result, kept):
        blocking(*arguments)
    if after is not None:
        after()
    return _DONE


def _side_by_side(places: _Tensors) -> bool:
    """Whether these tensors fill one stretch of memory in their order."""
    at = places[0].data_ptr()
    for place in places:
        if not place.is_contiguous() or (place.nbytes and place.data_ptr() != at):
            return False
        at += place.nbytes
    return True


def _create(options: Any, comm: MPI.Comm | None) -> MpiProcessGroup:
    """What register_backend calls on the ranks of a new group."""
    world, ranks = MPI.COMM_WORLD, options.global_ranks_in_group
    if comm is None:
        comm = world.Create_group(world.group.Incl(ranks)) if ranks else world.Dup()
    if (comm.Get_rank(), comm.Get_size()) != (options.group_rank, options.group_size):
        raise InputError(
            f"{BACKEND}: rank {options.group_rank} of {options.group_size} is rank "
            f"{comm.Get_rank()} of {comm.Get_size()} to MPI; give init_process_group MPI's numbers"
        )
    return MpiProcessGroup(comm, options.group_id)


dist.Backend.register_backend(BACKEND, _create, extended_api=True, devices=["cpu"])
