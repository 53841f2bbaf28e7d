"""A rank's GPU through PyTorch: streams, events, the spin kernel, the caching allocator.

All work is on PyTorch's current stream of the rank's GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import pairwise
from time import perf_counter
from typing import Any

import torch

from calib.microbench.agreement import agree, gpu_index
from calib.microbench.control import Control
from calib.microbench.device import Device
from calib.microbench.machine.telemetry import snapshot
from calib.microbench.records.manifest import GpuIdentity
from calib.microbench.timing.held import Lap, held_block, spin_cycles
from calib.microbench.timing.repeat import TimedBlock
from calib.microbench.timing.stretches import Attempts, TimedCalls
from calib.microbench.timing.timer import Timer

NO_GPU = "torch sees no CUDA device; see nvidia-smi, CUDA_VISIBLE_DEVICES and constraints/gpu.txt"
CALIBRATION_CYCLES = 2_000_000
RESOLUTION_EVENTS = 200
# where all steps are alike (CUDA Runtime API, cudaEventElapsedTime)
STATED_RESOLUTION_S = 0.5e-6


class CudaDevice(Device):
    """GPU number `index` of those that PyTorch sees; its work is on the current stream."""

    kind = "cuda"
    identity: GpuIdentity
    backends: Mapping[str, str] = {"torch_nccl": "calib_nccl"}
    cuda: Any = torch.cuda  # its events and its spin kernel have no annotations

    def __init__(self, index: int) -> None:
        self.index = index
        properties = self.cuda.get_device_properties(index)
        self.identity = GpuIdentity(uuid=str(properties.uuid), name=str(properties.name))
        self._l2_bytes = int(properties.L2_cache_size)

    @property
    def tensors(self) -> torch.device:
        """The GPU."""
        return torch.device("cuda", self.index)

    @contextmanager
    def arithmetic(self, dtype: str) -> Iterator[None]:
        """TF32 is allowed or not. Put back afterwards."""
        cudnn: Any = torch.backends.cudnn
        matmul, conv = torch.backends.cuda.matmul, cudnn.conv
        before = matmul.fp32_precision, conv.fp32_precision
        precision = "tf32" if dtype == "tf32" else "ieee"
        try:
            matmul.fp32_precision = conv.fp32_precision = precision
            yield
        finally:
            matmul.fp32_precision, conv.fp32_precision = before

    def synchronize(self) -> None:
        """Return when all streams are done."""
        self.cuda.synchronize()

    @property
    def stream(self) -> Any:
        """PyTorch's current stream of the GPU."""
        return self.cuda.current_stream(self.index)

    def trouble(self) -> str:
        """What CUDA says once more of an error that it keeps (an illegal address, a failed assert)."""
        try:
            self.cuda.synchronize()
        except RuntimeError as error:
            return next(iter(str(error).splitlines()), type(error).__name__)
        return ""

    def now(self) -> Any:
        """An event that the current stream of this GPU passes, whichever GPU is the current one."""
        event = self.cuda.Event(enable_timing=True)
        event.record(self.stream)
        return event

    def seconds(self, start: Any, stop: Any) -> float:
        """Between two events."""
        stop.synchronize()
        return float(start.elapsed_time(stop)) * 1e-3

    @cached_property
    def events(self) -> Timer:
        """The resolution: the least difference between the steps from event to event."""
        events = [self.now() for _ in range(RESOLUTION_EVENTS)]
        steps = sorted({round(self.seconds(*pair), 9) for pair in pairwise(events)})
        finer = min((b - a for a, b in pairwise(steps)), default=STATED_RESOLUTION_S)
        return Timer(resolution_s=finer, overhead_s=0.0)

    def timed(self, what: TimedCalls) -> TimedBlock:
        """Behind a spin kernel, by events."""
        attempts = Attempts(what.label)
        watches: list[HeldStopwatch] = []
        attempts.run(lambda: watches.append(HeldStopwatch(self, what.cold)))
        attempts.agree(what.control)
        return held_block(what, watches[0])

    @cached_property
    def seconds_per_cycle(self) -> float:
        """Of the spin kernel's clock, by timing a long spin; clocks may vary."""
        self.cuda._sleep(CALIBRATION_CYCLES)  # loads the kernel, wakes the clocks
        begin = self.now()
        self.cuda._sleep(CALIBRATION_CYCLES)
        return self.seconds(begin, self.now()) / CALIBRATION_CYCLES

    def scratch(self) -> torch.Tensor:
        """A buffer of twice the L2 cache: writing it evicts what the cache held."""
        return torch.empty(2 * self._l2_bytes, dtype=torch.int8, device=self.tensors)

    def watch(self, existing: Iterable[torch.Tensor]) -> CachingAllocator:
        """All that the caching allocator gives out, whoever asked."""
        return CachingAllocator(self)

    def memory_bytes(self) -> dict[str, int]:
        """ "peak_reserved"; by NVML "device_used", and "outside": that without what is reserved now."""
        found = {"peak_reserved": int(self.cuda.max_memory_reserved(self.index))}
        used = snapshot(self.identity.uuid).get("memory_used_bytes")
        if used is None:
            return found
        outside = max(0, int(used) - int(self.cuda.memory_reserved(self.index)))
        return found | {"device_used": int(used), "outside": outside}

    def graphed(self, module: torch.nn.Module, sample: torch.Tensor) -> None:
        """By torch.cuda.make_graphed_callables, on a side stream.

        What its graphs keep between them (activations) is in a pool of their own: the caching
        allocator counts it as reserved, not as in tensors. The warm-up's iterations train nothing, but
        they move running statistics, which are put back.
        """
        buffers = list(module.buffers())
        before = [buffer.clone() for buffer in buffers]
        # weights that no layer uses get no gradient, as without a graph
        self.cuda.make_graphed_callables(module, (sample,), allow_unused_input=True)
        for buffer, value in zip(buffers, before, strict=True):
            buffer.copy_(value)

    def kernels(self, call: Callable[[], object]) -> list[str]:
        """Of one more run, by the profiler.

        Empty where that may not trace the device (CUPTI needs a permission on some systems).
        """
        from torch.profiler import ProfilerActivity, profile

        self.synchronize()
        activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
        with profile(activities=activities, acc_events=True) as profiler:  # else it warns
            call()
            self.synchronize()
        events = [
            event
            for event in profiler.events() or ()
            if event.device_type.name == "CUDA" and not event.is_user_annotation
        ]
        ordered = sorted(events, key=lambda event: event.time_range.start)
        return list(dict.fromkeys(event.name for event in ordered))

    def captured(self, call: Callable[[], object], number: int) -> Callable[[], None]:
        """By torch.cuda.graph, on its own stream; other threads, as NCCL's, may use CUDA meanwhile."""
        call()  # connections cannot be made in a capture
        self.synchronize()
        graph = self.cuda.CUDAGraph()
        with self.cuda.graph(graph, capture_error_mode="thread_local"):
            for _ in range(number):
                call()
        replay: Callable[[], None] = graph.replay
        return replay

    def telemetry(self, ours: Sequence[int]) -> Mapping[str, Any]:
        """NVML's readings."""
        return snapshot(self.identity.uuid, ours)


class HeldStopwatch:
    """Times calls that queue work on the current stream of `device`."""

    def __init__(self, device: CudaDevice, cold: bool) -> None:
        """`cold`: `ready` evicts the L2 cache."""
        self._device = device
        self._scratch = device.scratch() if cold else None
        self._events: list[Any] = []
        self._seconds_per_cycle = device.seconds_per_cycle

    def ready(self) -> None:
        """Evict the cache if the case is a cold one, and wait until the device is idle."""
        if self._scratch is not None:
            self._scratch.zero_()
        self._device.synchronize()

    def lap(
        self,
        calls: Mapping[str, Callable[[], object]],
        number: int,
        spin_s: float,
        lead: Callable[[], None],
    ) -> Lap:
        """Time calls one after another behind a spin; returns when the device is done."""
        cuda = self._device.cuda
        while len(self._events) <= len(calls):
            self._events.append(cuda.Event(enable_timing=True))
        host: dict[str, float] = {}
        first, again = self._events[0], range(number)
        cuda._sleep(spin_cycles(spin_s, self._seconds_per_cycle))
        lead()
        first.record()
        begin = perf_counter()
        for (name, call), event in zip(calls.items(), self._events[1:], strict=False):
            start = perf_counter()
            for _ in again:
                call()
            host[name] = (perf_counter() - start) / number
            event.record()
        held = not first.query()
        queue_s = perf_counter() - begin
        pairs = zip(calls, self._events, self._events[1:], strict=False)
        seconds = {
            name: self._device.seconds(before, after) / number for name, before, after in pairs
        }
        self._device.synchronize()
        return Lap(seconds, host, held, queue_s, begin)


class CachingAllocator:
    """Bytes that PyTorch's caching allocator has given out on one GPU."""

    def __init__(self, device: CudaDevice) -> None:
        self._device = device

    def __enter__(self) -> CachingAllocator:
        self._device.synchronize()
        # else what is reserved is what any work before has left in the cache
        self._device.cuda.empty_cache()
        self._device.cuda.reset_peak_memory_stats(self._device.index)
        return self

    def __exit__(self, *error: object) -> None:
        self._device.synchronize()

    @property
    def live(self) -> int:
        """Bytes in tensors now."""
        return int(self._device.cuda.memory_allocated(self._device.index))

    @property
    def peak(self) -> int:
        """The most bytes in tensors since it was entered."""
        return int(self._device.cuda.max_memory_allocated(self._device.index))


def take(control: Control) -> CudaDevice:
    """This rank's GPU; collective.

    Ranks take the GPUs that they see in turn. Raises MachineError on all ranks where one sees none.
    """
    cuda = CudaDevice.cuda
    agree(control, "" if cuda.is_available() else NO_GPU)
    index = gpu_index(control, cuda.device_count())
    cuda.set_device(index)
    return CudaDevice(index)


def of(tensors: torch.device) -> CudaDevice:
    """The GPU of tensors, by default the current one."""
    index = CudaDevice.cuda.current_device() if tensors.index is None else tensors.index
    return CudaDevice(index)
