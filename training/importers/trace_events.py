"""The few numbers that are kept of each event of a torch.profiler trace.

Names and categories are kineto's (torch.profiler, PyTorch 1.13 to 2.x): `ProfilerStep#N` and
`Optimizer.step#SGD.step` are annotations on the host, `autograd::engine::evaluate_function: ...` its
backward operators, `kernel` what a GPU ran, and args.correlation ties that to its launch.
"""

from __future__ import annotations

import re
from array import array
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calib.foundation.errors import FileError
from calib.training.importers.intervals import Starts
from calib.training.importers.trace_stream import read_trace

STEP = re.compile(r"ProfilerStep#(\d{1,15})$")
UPDATE = ("Optimizer.step#", "Optimizer.zero_grad#")
LOADING = "enumerate(DataLoader)#"
BACKWARD = "autograd::engine::evaluate_function"
# kernels of NCCL, RCCL and others, and of PyTorch's own symmetric memory
COMMUNICATION_KERNEL = re.compile(
    r"nccl|rccl|msccl|oneccl|nvshmem|multimem_|(one|two)_shot_all_", re.IGNORECASE
)
# a backend's own annotation of a collective (gloo:all_reduce), and torch.distributed's operators
COMMUNICATION_OPERATOR = re.compile(r"(c10d::|_c10d_functional::|(gloo|mpi|ucc|nccl|xccl):)\w")
GPU_WORK = ("kernel", "gpu_memcpy", "gpu_memset")
LAUNCHES = ("cuda_runtime", "cuda_driver", "runtime", "privateuse1_runtime")
HOST = ("cpu_op", "user_annotation", "operator")


class Spans:
    """A growing list of intervals in microseconds, 8 bytes a number."""

    def __init__(self) -> None:
        self.starts, self.stops = array("d"), array("d")

    def add(self, start: float, stop: float) -> None:
        """One more."""
        self.starts.append(start)
        self.stops.append(stop)

    def times(self) -> Starts:
        """An array [n, 2], in the order in which they were added."""
        return np.stack((np.array(self.starts), np.array(self.stops)), axis=1)


def correlation_of(arguments: dict[str, Any]) -> int:
    """The number that ties GPU work to its launch, in 63 bits; -1 where the trace has none."""
    found = arguments.get("correlation")
    return found if type(found) is int and 0 <= found < 1 << 63 else -1


class Events:
    """The events of the trace of one rank. All times are microseconds of the trace's clock."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.about: dict[str, Any] = {}
        self.n = 0
        # step -> start, stop, thread; on a GPU start and stop over its streams
        self.steps: dict[int, tuple[float, float, Any]] = {}
        self.gpu_steps: dict[int, tuple[float, float]] = {}
        self.update, self.loading, self.backward = Spans(), Spans(), Spans()
        self.steps_of_optimizer = Spans()  # without its zero_grad
        self.optimizers: set[str] = set()
        self.recorded: dict[Any, Spans] = {}  # by thread: operators that autograd recorded
        self.operators = Spans()  # that compute on the host
        self.communication = Spans()  # on the host
        self.kernels, self.copies, self.nccl = Spans(), Spans(), Spans()
        self.correlations = {"kernel": array("q"), "copy": array("q")}
        self._launches, self._launched_at = array("q"), array("d")

    @classmethod
    def read(cls, path: Path) -> Events:
        """The events of a file. Raises FileError."""
        events = cls(path)
        events.about = read_trace(path, events.take)
        return events

    def take(self, event: dict[str, Any]) -> None:
        """Take one event. Raises FileError where its time is invalid."""
        self.n += 1
        if event.get("ph") != "X":
            return
        name, kind = str(event.get("name", "")), str(event.get("cat", "")).lower()
        start, lasts = event.get("ts"), event.get("dur", 0)
        right = all(isinstance(x, int | float) and -1e18 < x < 1e18 for x in (start, lasts))
        if not right or lasts < 0:
            raise FileError(f"trace {self.path}, event {self.n} ({name[:40]!r}): not a time")
        start = float(start or 0.0)
        stop = start + lasts
        arguments = event.get("args")
        arguments = arguments if isinstance(arguments, dict) else {}
        if kind in GPU_WORK:
            self._take_kernel(name, kind, start, stop, arguments)
        elif kind in LAUNCHES:
            key = correlation_of(arguments)
            if key >= 0:
                self._launches.append(key)
                self._launched_at.append(start)
        elif kind == "gpu_user_annotation":
            step = STEP.match(name)
            if step:
                number = int(step[1])
                first, last = self.gpu_steps.get(number, (start, stop))
                self.gpu_steps[number] = min(first, start), max(last, stop)
        elif kind in HOST:
            self._take_host(name, start, stop, event.get("tid"), arguments)

    def _take_kernel(
        self, name: str, kind: str, start: float, stop: float, arguments: dict[str, Any]
    ) -> None:
        if COMMUNICATION_KERNEL.search(name):
            self.nccl.add(start, stop)
            return
        of, spans = ("kernel", self.kernels) if kind == "kernel" else ("copy", self.copies)
        spans.add(start, stop)
        self.correlations[of].append(correlation_of(arguments))

    def _take_host(
        self, name: str, start: float, stop: float, thread: Any, arguments: dict[str, Any]
    ) -> None:
        step = STEP.match(name)
        if step:
            if int(step[1]) in self.steps:
                raise FileError(
                    f"trace {self.path}: {name} is there twice: give a trace of one rank"
                )
            self.steps[int(step[1])] = start, stop, thread
        elif name.startswith(UPDATE):
            self.update.add(start, stop)
            if name.startswith(UPDATE[0]):
                self.steps_of_optimizer.add(start, stop)
                self.optimizers.add(name.partition("#")[2].partition(".")[0])
        elif name.startswith(LOADING):
            self.loading.add(start, stop)
        elif name.startswith(BACKWARD):
            self.backward.add(start, stop)
        elif COMMUNICATION_OPERATOR.match(name):
            self.communication.add(start, stop)
        elif name.startswith("aten::"):
            self.operators.add(start, stop)
            if "Sequence number" in arguments:
                self.recorded.setdefault(thread, Spans()).add(start, stop)

    @property
    def launched(self) -> int:
        """The number of launches of GPU work."""
        return len(self._launches)

    def launch_times(self, of: str) -> NDArray[np.float64]:
        """When the host launched each kernel or copy; NaN where the trace does not say."""
        wanted = np.array(self.correlations[of])
        launches, times = np.array(self._launches), np.array(self._launched_at)
        if not len(launches) or not len(wanted):
            return np.full(len(wanted), np.nan)
        order = np.argsort(launches, kind="stable")
        launches, times = launches[order], times[order]
        found = np.minimum(np.searchsorted(launches, wanted), len(launches) - 1)
        return np.where(launches[found] == wanted, times[found], np.nan)
