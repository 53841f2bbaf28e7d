"""What a rank computes on: one object for all that differs between a CPU and a GPU.

Device is a CPU, devices/cuda.py has what is otherwise on a GPU. What needs PyTorch imports it when used:
ranks that time MPI alone have none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol, Self

from calib.foundation.errors import InputError
from calib.microbench.timing.repeat import TimedBlock
from calib.microbench.timing.stretches import TimedCalls, host_block

if TYPE_CHECKING:
    import torch

    from calib.microbench.records.manifest import GpuIdentity
    from calib.microbench.timing.timer import Timer


class MemoryWatch(Protocol):
    """Bytes in tensors on a device while it is entered: `live` now, `peak` at most."""

    @property
    def live(self) -> int:
        """Bytes in tensors now."""

    @property
    def peak(self) -> int:
        """The most bytes in tensors since it was entered."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: Any) -> None: ...


class DeviceLost(RuntimeError):
    """A device that does nothing any more in this process, which must end: CUDA's sticky errors."""


class Device:
    """A rank's device. Work on a GPU is queued and runs behind its host; on a CPU it is done at once.

    `kind` is "cpu" or "cuda", as cases and rows name it. `backends` has the libraries of
    torch.distributed that take its tensors, and what they are registered as (torch_groups.py).
    `identity` says which GPU it is, `events` how finely a GPU's events time; on a CPU the host's clock
    times. `now` is a reading of the clock at this place of the work: of a GPU, an event of its stream.
    """

    kind = "cpu"
    backends: Mapping[str, str] = {
        "torch_mpi": "calib_mpi",
        "torch_gloo": "calib_gloo",
        "torch_short": "calib_short",
    }
    identity: GpuIdentity | None = None
    now: Callable[[], Any] = staticmethod(perf_counter)

    @property
    def events(self) -> Timer | None:
        """How finely a GPU's events time; None where the host's clock times."""
        return None

    @property
    def tensors(self) -> torch.device:
        """Where PyTorch has this device's tensors."""
        import torch

        return torch.device("cpu")

    @contextmanager
    def arithmetic(self, dtype: str) -> Iterator[None]:
        """Items of `dtype` are computed as it says while it is entered: in TF32 for "tf32" alone.

        Raises InputError for tf32 on a CPU.
        """
        if dtype == "tf32":
            raise InputError("tf32 is arithmetic of CUDA devices; on a CPU take float32")
        yield

    def synchronize(self) -> None:
        """Return when everything queued is done."""

    def trouble(self) -> str:
        """Why nothing can be done on the device any more in this process; "" where it works."""
        return ""

    def seconds(self, start: Any, stop: Any) -> float:
        """Between two readings; waits until the work has come to the second."""
        return float(stop - start)

    def timed(self, what: TimedCalls) -> TimedBlock:
        """The loop that times calls on this device, for `repeat`: by readings around the calls."""
        return host_block(what)

    def watch(self, existing: Iterable[torch.Tensor]) -> MemoryWatch:
        """Counts bytes in tensors, beginning with the `existing` ones: of all that operations return."""
        from calib.microbench.memory import LiveBytes

        return LiveBytes(existing)

    def memory_bytes(self) -> dict[str, int]:
        """What a GPU holds beside tensors: "peak_reserved", "device_used", "outside".

        A CPU none: a process's memory beside tensors is its resident set, which is not the device's.
        """
        return {}

    def graphed(self, module: torch.nn.Module, sample: torch.Tensor) -> None:
        """Let a module's forward and backward be a captured graph each, from now on; in place.

        Its weights and buffers must stay where they are, and every input be like `sample`, which
        becomes the place that the graph reads. Raises InputError on a CPU.
        """
        raise InputError("CUDA graphs are of GPUs; on a CPU leave +cuda_graph out")

    def kernels(self, call: Callable[[], object]) -> list[str]:
        """Names of the kernels that a call runs on a GPU, in order, without repeats; not timed."""
        return []

    def captured(self, call: Callable[[], object], number: int) -> Callable[[], None]:
        """A replay of so many calls as one CUDA graph; `call` is made once before, untimed.

        The calls must be the same ones each time. Raises InputError on a CPU.
        """
        raise InputError("CUDA graphs are of GPUs")

    def telemetry(self, ours: Sequence[int]) -> Mapping[str, Any]:
        """What the device says of itself; `ours` are pids of this session's ranks on it."""
        return {}


CPU = Device()
