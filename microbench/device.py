"""What a rank computes on: one object for all that differs between a CPU and a GPU.

Two implementations: devices/cpu.py and devices/cuda.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol, Self

from calib.microbench.timing.repeat import TimedBlock
from calib.microbench.timing.stretches import TimedCalls

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


class Device(Protocol):
    """A rank's device. Work on a GPU is queued and runs behind its host; on a CPU it is done at once.

    `kind` is "cpu" or "cuda", as cases and rows name it. `backends` has the libraries of
    torch.distributed that take its tensors, and what they are registered as (torch_groups.py).
    """

    kind: str
    backends: Mapping[str, str]

    @property
    def identity(self) -> GpuIdentity | None:
        """Which GPU it is."""

    @property
    def events(self) -> Timer | None:
        """How finely a GPU's events time; None where the host's clock times."""

    @property
    def tensors(self) -> torch.device:
        """Where PyTorch has this device's tensors."""

    def arithmetic(self, dtype: str) -> AbstractContextManager[None]:
        """Items of `dtype` are computed as it says while it is entered: in TF32 for "tf32" alone."""

    def synchronize(self) -> None:
        """Return when everything queued is done."""

    def trouble(self) -> str:
        """Why nothing can be done on the device any more in this process; "" where it works."""

    def now(self) -> Any:
        """A reading of the clock at this place of the work: of a GPU, an event of its stream."""

    def seconds(self, start: Any, stop: Any) -> float:
        """Between two readings; waits until the work has come to the second."""

    def timed(self, what: TimedCalls) -> TimedBlock:
        """The loop that times calls on this device, for `repeat`."""

    def watch(self, existing: Iterable[torch.Tensor]) -> MemoryWatch:
        """Counts bytes in tensors, beginning with the `existing` ones."""

    def memory_bytes(self) -> dict[str, int]:
        """What a GPU holds beside tensors: "peak_reserved", "device_used", "outside"; a CPU none."""

    def graphed(self, module: torch.nn.Module, sample: torch.Tensor) -> None:
        """Let a module's forward and backward be a captured graph each, from now on; in place.

        Its weights and buffers must stay where they are, and every input be like `sample`, which
        becomes the place that the graph reads. Raises InputError on a CPU.
        """

    def kernels(self, call: Callable[[], object]) -> list[str]:
        """Names of the kernels that a call runs on a GPU, in order, without repeats; not timed."""

    def captured(self, call: Callable[[], object], number: int) -> Callable[[], None]:
        """A replay of so many calls as one CUDA graph; `call` is made once before, untimed.

        The calls must be the same ones each time. Raises InputError on a CPU.
        """

    def telemetry(self, ours: Sequence[int]) -> Mapping[str, Any]:
        """What the device says of itself; `ours` are pids of this session's ranks on it."""
