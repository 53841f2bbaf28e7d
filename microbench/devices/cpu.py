"""A rank's CPU cores. What needs PyTorch imports it when used: ranks that time MPI alone have none."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import TYPE_CHECKING, Any

from calib.foundation.errors import InputError
from calib.microbench.control import Control
from calib.microbench.device import MemoryWatch
from calib.microbench.timing.repeat import TimedBlock
from calib.microbench.timing.stretches import TimedCalls, host_block

if TYPE_CHECKING:
    import torch

    from calib.microbench.records.manifest import GpuIdentity


class CpuDevice:
    """What is called is done when the call returns, and perf_counter is the clock."""

    kind = "cpu"
    backends: Mapping[str, str] = {
        "torch_mpi": "calib_mpi",
        "torch_gloo": "calib_gloo",
        "torch_short": "calib_short",
    }
    now = staticmethod(perf_counter)

    @property
    def identity(self) -> GpuIdentity | None:
        """None: it is no GPU."""
        return None

    @property
    def events(self) -> None:
        """The host's clock times."""
        return

    @property
    def tensors(self) -> torch.device:
        """The CPU."""
        import torch

        return torch.device("cpu")

    @contextmanager
    def arithmetic(self, dtype: str) -> Iterator[None]:
        """Nothing is to be set. Raises InputError for tf32, which is of GPUs."""
        if dtype == "tf32":
            raise InputError("tf32 is arithmetic of CUDA devices; on a CPU take float32")
        yield

    def synchronize(self) -> None:
        """Nothing is queued."""

    def trouble(self) -> str:
        """None."""
        return ""

    def seconds(self, start: float, stop: float) -> float:
        """The difference."""
        return stop - start

    def timed(self, what: TimedCalls) -> TimedBlock:
        """By readings around the calls."""
        return host_block(what)

    def watch(self, existing: Iterable[torch.Tensor]) -> MemoryWatch:
        """Every tensor that an operation returns is counted."""
        from calib.microbench.memory import LiveBytes

        return LiveBytes(existing)

    def memory_bytes(self) -> dict[str, int]:
        """A process's memory beside tensors is its resident set, which is not the device's."""
        return {}

    def graphed(self, module: torch.nn.Module, sample: torch.Tensor) -> None:
        """A CPU has none."""
        raise InputError("CUDA graphs are of GPUs; on a CPU leave +cuda_graph out")

    def kernels(self, call: Callable[[], object]) -> list[str]:
        """A CPU's have no names."""
        return []

    def captured(self, call: Callable[[], object], number: int) -> Callable[[], None]:
        """A CPU has none."""
        raise InputError("CUDA graphs are of GPUs")

    def telemetry(self, ours: Sequence[int]) -> Mapping[str, Any]:
        """Nothing."""
        return {}


CPU = CpuDevice()


def take(control: Control) -> CpuDevice:
    """Every rank has one."""
    return CPU


def of(tensors: torch.device) -> CpuDevice:
    """That of tensors on the CPU, or on a device that calib does not know."""
    return CPU
