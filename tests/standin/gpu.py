"""A GPU that computes on the CPU and keeps the time of a device that runs behind its host.

Time is virtual and starts at 0 in every process: a kernel is queued on a stream and takes what the laws
below say, the host takes LAUNCH_S for a launch, and is as late as the device when it waits. So the
times are known, whatever else the real machine does; NOISE makes them differ a little.

NCCL's semantics: a collective begins on all GPUs when it has come to its turn on the last of them.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from tests.standin.boards import L2_BYTES, NAME, UUIDS, board_of
from torch import nn
from torch.utils._pytree import tree_leaves, tree_structure, tree_unflatten
from torch.utils.flop_counter import flop_registry

from calib.microbench.devices.cuda import CudaDevice
from calib.microbench.memory import LiveBytes

# the host
LAUNCH_S = float(os.environ.get("STANDIN_LAUNCH_S", "2e-6"))  # longer, and the GPU waits for it
EVENT_S = 0.7e-6
TICK_S = 0.5e-6  # of events
# kernels: a start, and whatever of the two takes longer
KERNEL_S = 4e-6
FLOPS_PER_S, BYTES_PER_S = 2e12, 200e9  # of float32; of items half as long twice as many FLOP/s
COLD_BYTES_PER_S = 100e9  # beside that, for what a flush has evicted from L2
# messages, as formulas.md has them for rings
ALPHA_S, BETA_S_PER_BYTE = 10e-6, 1 / 8e9
NOISE = 0.004  # standard deviation of a time's logarithm
CYCLES_PER_S = 1e9
WORKSPACE_BYTES = 96 << 10  # of a convolution
SEGMENT_BYTES = 2 << 20  # that the caching allocator reserves at once
CONTEXT_BYTES = 300 << 20  # of CUDA and its libraries
NCCL_BYTES = 40 << 20  # once ranks have talked
# once in a process, so much work of the device is slowed down by heat; with inf, none
HOT_FROM_S = float(os.environ.get("STANDIN_HOT_FROM_S", "0.5"))
HOT_UNTIL_S, HOT_FACTOR = HOT_FROM_S + 0.1, 1.5

aten = torch.ops.aten
# these make or name memory, and run nothing
FREE = {
    aten.empty.memory_format,
    aten.empty_strided.default,
    aten.empty_like.default,
    aten.new_empty.default,
    aten.new_empty_strided.default,
    aten.detach.default,
    aten._unsafe_view.default,
    aten.set_.source_Storage_storage_offset,
}
WAITS = {aten._local_scalar_dense.default}
CONVOLUTIONS = {aten.convolution.default, aten.convolution_backward.default}


def kernel_seconds(flops: float, nbytes: float, item_bytes: int = 4) -> float:
    """The law of a kernel."""
    return KERNEL_S + max(flops * item_bytes / 4 / FLOPS_PER_S, nbytes / BYTES_PER_S)


def steps_and_volume(operation: str, p: int) -> tuple[float, float]:
    """Messages in a row, and how often m crosses a link."""
    share = (p - 1) / p
    return {
        "allreduce": (2.0 * (p - 1), 2.0 * share),
        "allgather": (p - 1.0, share),
        "reduce_scatter": (p - 1.0, share),
        "all_to_all": (p - 1.0, share),
        "broadcast": (p - 1.0, 1.0),
        "reduce": (p - 1.0, 1.0),
        "p2p": (1.0, 1.0),
    }[operation]


def collective_seconds(operation: str, p: int, nbytes: float) -> float:
    """The law of a collective of m bytes."""
    steps, volume = steps_and_volume(operation, p)
    return steps * ALPHA_S + volume * nbytes * BETA_S_PER_BYTE


class Stream:
    """When a stream is done with all that is queued on it. It has a handle, as CUDA's have."""

    cuda_stream = 1

    def __init__(self) -> None:
        self.ready_s = 0.0

    def synchronize(self) -> None:
        MACHINE.wait_until(self.ready_s)


class Machine:
    """The host and the GPU of this process."""

    def __init__(self) -> None:
        self.host_s = 0.0
        self.current, self.messages = Stream(), Stream()
        self.index = 0
        self.unjoined = 0.0  # when messages end that nothing has waited for
        self.outside_bytes = CONTEXT_BYTES  # the allocator
        self.cold_bytes = 0.0
        self.mode: Kernels | None = None
        self.recorded: list[Callable[[], None]] | None = None  # calls of NCCL that a graph captures
        self.call_s = LAUNCH_S  # of the host, for a call of NCCL
        self.launches = 0
        self._captured: list[float] | None = None  # kernels of the graph that is being run
        self._noise = random.Random(0)

    def take(self, index: int) -> None:
        """Become the GPU of this number."""
        self.index, self._noise = index, random.Random(index)
        if self.mode is None:
            self.mode = Kernels()
            self.mode.__enter__()

    def wait_until(self, at_s: float) -> None:
        self.host_s = max(self.host_s, at_s)

    def join(self) -> None:
        """The current stream waits for messages, unless a backward still runs beside them."""
        if self.unjoined and torch._C._current_graph_task_id() < 0:
            self.current.ready_s = max(self.current.ready_s, self.unjoined)
            self.unjoined = 0.0

    def noisy(self, seconds: float) -> float:
        return seconds * self._noise.lognormvariate(0.0, NOISE)

    def cold(self, nbytes: float) -> float:
        """What reading bytes takes longer because a flush has evicted them."""
        missed = min(self.cold_bytes, nbytes)
        self.cold_bytes -= missed
        return missed / COLD_BYTES_PER_S

    def launch(self, seconds: float) -> None:
        """Queue a kernel on the current stream."""
        if self._captured is not None:
            self._captured.append(self.noisy(seconds))
            return
        self.join()
        self._queue(self.noisy(seconds))

    def _queue(self, seconds: float) -> None:
        self.launches += 1
        self.host_s += LAUNCH_S
        begin = max(self.current.ready_s, self.host_s)
        self.current.ready_s = begin + self.worked(seconds, begin)

    @contextmanager
    def graph(self) -> Iterator[None]:
        """What is done in it is one launch of all its kernels, one after the other."""
        self.join()
        self._captured = []
        try:
            yield
            seconds = sum(self._captured)
        finally:
            self._captured = None
        self._queue(seconds)

    def refuse_in_graph(self) -> None:
        """As CUDA does."""
        if self._captured is not None:
            raise RuntimeError("operation not permitted when stream is capturing")

    def do(self, work: Callable[[], None]) -> None:
        """Do a call of NCCL; while a graph is captured, at its replays."""
        if self.recorded is None:
            work()
        else:
            self.recorded.append(work)

    def worked(self, seconds: float, begin: float) -> float:
        """Seconds of work, longer while it is hot; NVML's counters grow."""
        hot = HOT_FROM_S <= begin < HOT_UNTIL_S
        board = board_of(UUIDS[self.index])
        board.reasons = {"hardware_thermal"} if hot else set()
        board.run(seconds)
        return seconds * (HOT_FACTOR if hot else 1.0)


MACHINE = Machine()


class Kernels(LiveBytes):
    """Every operation of PyTorch is a kernel of the stand-in; bytes of tensors are counted."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func in WAITS:
            MACHINE.refuse_in_graph()
            MACHINE.join()
            MACHINE.current.synchronize()
        result = super().__torch_dispatch__(func, types, args, kwargs)
        given = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        made = [x for x in tree_leaves(result) if isinstance(x, torch.Tensor)]
        tensors = [*given, *made]
        nowhere = not tensors or any(x.device.type != "cpu" for x in tensors)
        if nowhere or func in FREE or func.is_view:
            return result
        self.names.append(str(func))
        if func in CONVOLUTIONS:
            self.peak = max(self.peak, self.live + WORKSPACE_BYTES)
        nbytes = float(sum(x.numel() * x.element_size() for x in tensors))
        count = flop_registry.get(getattr(func, "overloadpacket", None))
        flops = float(count(*args, **(kwargs or {}), out_val=result)) if count else 0.0
        item_bytes = given[0].element_size() if count else 4
        MACHINE.launch(kernel_seconds(flops, nbytes, item_bytes) + MACHINE.cold(nbytes))
        if func is aten.zero_.default and given[0].dtype == torch.int8:
            MACHINE.cold_bytes = float(min(L2_BYTES, nbytes))
        return result

    names: list[str] = []  # noqa: RUF012 (one GPU a process)


class Event:
    """What torch.cuda.Event is, in virtual time."""

    def __init__(self, enable_timing: bool = False) -> None:
        self._at = 0.0

    def record(self, stream: Stream | None = None) -> None:
        MACHINE.refuse_in_graph()
        MACHINE.join()
        MACHINE.host_s += EVENT_S
        self._at = max(MACHINE.current.ready_s, MACHINE.host_s)

    def query(self) -> bool:
        return self._at <= MACHINE.host_s

    def synchronize(self) -> None:
        MACHINE.wait_until(self._at)

    def elapsed_time(self, other: Event) -> float:
        ticks = round(other._at / TICK_S) - round(self._at / TICK_S)
        return ticks * TICK_S * 1e3


def _synchronize(_: object = None) -> None:
    MACHINE.join()
    MACHINE.wait_until(max(MACHINE.current.ready_s, MACHINE.messages.ready_s))


def _watch() -> Kernels:
    assert MACHINE.mode is not None
    return MACHINE.mode


def _reset(_: int) -> None:
    _watch().peak = _watch().live


def _reserved(index: int) -> int:
    found = reserved_bytes(_watch().peak)
    board_of(UUIDS[index]).used_bytes = MACHINE.outside_bytes + found
    return found


def reserved_bytes(live: int) -> int:
    """What the caching allocator has reserved for a peak of live bytes."""
    return -(-live // SEGMENT_BYTES) * SEGMENT_BYTES


class Graph:
    """What torch.cuda.CUDAGraph is, of calls of NCCL alone: one launch for all of them."""

    def __init__(self) -> None:
        self.work: list[Callable[[], None]] = []

    def replay(self) -> None:
        MACHINE.host_s += LAUNCH_S
        MACHINE.call_s = 0.0
        for work in self.work:
            work()
        MACHINE.call_s = LAUNCH_S


@contextmanager
def _capture(graph: Graph, capture_error_mode: str = "global") -> Iterator[None]:
    assert capture_error_mode == "thread_local", "NCCL's threads use CUDA, too"
    MACHINE.recorded = graph.work
    try:
        yield
    finally:
        MACHINE.recorded = None


def make_graphed_callables(
    module: nn.Module, sample_args: tuple[torch.Tensor], allow_unused_input: bool = False
) -> nn.Module:
    """torch.cuda's: one autograd node over static tensors, whose every replay is a single launch.

    As there, gradients are handed on in the graph's own memory, which the next replay writes.
    """
    assert not module._forward_hooks and not module._forward_pre_hooks
    if torch.is_autocast_enabled("cpu") and torch.is_autocast_cache_enabled():
        raise RuntimeError("make_graphed_callables does not support the autocast caching")
    (read,), run = sample_args, module.forward
    weights = tuple(module.parameters())
    places = [weight.data_ptr() for weight in weights]
    trained = [weight for weight in weights if weight.requires_grad]

    def gradients(outputs: Any, of_outputs: Any) -> list[torch.Tensor | None]:
        leaves = tree_leaves(outputs)
        return list(
            torch.autograd.grad(leaves, trained, of_outputs, allow_unused=allow_unused_input)
        )

    for _ in range(3):
        outputs = run(read)
        found = gradients(outputs, [torch.ones_like(y) for y in tree_leaves(outputs)])
    static = [None if x is None else torch.empty_like(x) for x in found]
    kept: list[Any] = [None]
    del outputs, found

    class Graphed(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, given: torch.Tensor, *now: torch.Tensor) -> Any:
            assert places == [weight.data_ptr() for weight in now], (
                "a graph reads where it was captured"
            )
            if read.data_ptr() != given.data_ptr():
                read.copy_(given)
            with MACHINE.graph(), torch.enable_grad():
                kept[0] = run(read)
            return tuple(y.detach() for y in tree_leaves(kept[0]))

        @staticmethod
        def backward(ctx: Any, *of_outputs: torch.Tensor) -> Any:
            outputs, kept[0] = kept[0], None
            with MACHINE.graph():
                made = gradients(outputs, of_outputs)
            with torch.utils._python_dispatch._disable_current_modes():  # it was made there
                for place, x in zip(static, made, strict=True):
                    if place is not None and x is not None:
                        place.copy_(x)
            mine = iter(static)
            each = (next(mine) if weight.requires_grad else None for weight in weights)
            return (None, *(x if x is None else x.detach() for x in each))

    graphed: Any = Graphed.apply
    spec = tree_structure(run(read))

    def forward(given: torch.Tensor) -> Any:
        return tree_unflatten(graphed(given, *weights), spec)

    module.forward = forward
    return module


# what the program uses of torch.cuda
CUDA = SimpleNamespace(
    is_available=lambda: True,
    device_count=lambda: len(UUIDS),
    set_device=MACHINE.take,
    current_device=lambda: MACHINE.index,
    current_stream=lambda _=None: MACHINE.current,
    get_device_properties=lambda index: SimpleNamespace(
        uuid=UUIDS[index], name=NAME, L2_cache_size=L2_BYTES
    ),
    synchronize=_synchronize,
    Event=Event,
    make_graphed_callables=make_graphed_callables,
    _sleep=lambda cycles: MACHINE.launch(cycles / CYCLES_PER_S),
    empty_cache=lambda: None,  # nothing is kept
    reset_peak_memory_stats=_reset,
    memory_allocated=lambda _: _watch().live,
    max_memory_allocated=lambda _: _watch().peak,
    max_memory_reserved=_reserved,
    memory_reserved=_reserved,
    CUDAGraph=Graph,
    graph=_capture,
)


class StandIn(CudaDevice):
    """The third device. Its tensors are on the CPU."""

    cuda = CUDA
    backends: Mapping[str, str] = {"torch_nccl": "standin_nccl"}

    def __init__(self, index: int) -> None:
        super().__init__(index)
        import_module("tests.standin.messages")  # registers the backend; starts MPI

    @property
    def tensors(self) -> torch.device:
        return torch.device("cpu")

    def kernels(self, call: Callable[[], object]) -> list[str]:
        _watch().names.clear()
        call()
        return list(dict.fromkeys(_watch().names))


def together(comm: Any, operation: str, nbytes: int, stream: Stream | None = None) -> float:
    """When a collective of all ranks of `comm` (mpi4py's) ends, which this rank queues now."""
    MACHINE.join()
    if comm.Get_size() > 1:
        MACHINE.outside_bytes = CONTEXT_BYTES + NCCL_BYTES
    MACHINE.host_s += MACHINE.call_s
    of = MACHINE.current if stream is None else stream
    mine = max(MACHINE.current.ready_s, of.ready_s, MACHINE.host_s)
    # one noise for all: the first rank's
    seconds = MACHINE.noisy(collective_seconds(operation, comm.Get_size(), nbytes))
    seconds += MACHINE.cold(nbytes)
    told = np.empty((comm.Get_size(), 2))
    comm.Allgather(np.array([mine, seconds]), told)
    of.ready_s = float(told[:, 0].max() + told[0, 1])
    return of.ready_s
