"""The few numbers that are kept of each event of a torch.profiler trace, in columns.

Names and categories are kineto's (torch.profiler, PyTorch 1.13 to 2.x): `ProfilerStep#N` and
`Optimizer.step#SGD.step` are annotations on the host, `autograd::engine::evaluate_function: ...` its
backward operators, `kernel` what a GPU ran, and args.correlation ties that to its launch.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from calib.foundation.errors import FileError
from calib.training.traces.intervals import Starts
from calib.training.traces.stream import Arguments, Event, Other, read_trace

STEP = re.compile(r"ProfilerStep#(\d{1,15})$")
# kernels of NCCL, RCCL and others, and of PyTorch's own symmetric memory
COMMUNICATION_KERNEL = re.compile(
    r"nccl|rccl|msccl|oneccl|nvshmem|multimem_|(one|two)_shot_all_", re.IGNORECASE
)
# classes of names on the host, the first that begins so
UPDATE, ZERO_GRAD, LOADING, BACKWARD, BACKEND, COMMUNICATION, DESCRIBED, OPERATOR, OTHER = range(9)
CLASSES = (
    (UPDATE, re.compile(r"Optimizer\.step#")),
    (ZERO_GRAD, re.compile(r"Optimizer\.zero_grad#")),
    (LOADING, re.compile(r"enumerate\(DataLoader\)#")),
    (BACKWARD, re.compile(r"autograd::engine::evaluate_function")),
    # a backend's own annotation of a collective (gloo:all_reduce), and torch.distributed's operators
    (BACKEND, re.compile(r"(gloo|mpi|ucc|nccl|xccl):\w")),
    (COMMUNICATION, re.compile(r"(c10d::|_c10d_functional::)\w")),
    # torch.distributed's description of a collective, around NCCL's call
    (DESCRIBED, re.compile(r"record_param_comms$")),
    (OPERATOR, re.compile(r"aten::")),
    (OTHER, re.compile(r"")),
)
NOTHING = msgspec.Raw()
NO_ARGUMENTS = Arguments()
MOST_NUMBER = 1 << 63
Use = Callable[[str, float, float, Event, Arguments], None]


class Columns:
    """Growing columns: intervals in microseconds, and integers; `times` of 8 bytes, integers of 4 or 8.

    Parameters
    ----------
    short, long
        Names of the integers of 4 and of 8 bytes.
    """

    def __init__(self, short: tuple[str, ...], long: tuple[str, ...] = ()) -> None:
        self._kind = np.dtype(
            [
                ("start", "<f8"),
                ("stop", "<f8"),
                *((name, "<i8") for name in long),
                *((name, "<i4") for name in short),
            ]
        )
        self._pack = Struct(f"<dd{len(long)}q{len(short)}i").pack
        self._rows = bytearray()

    def __len__(self) -> int:
        return len(self._rows) // self._kind.itemsize

    def add(self, *values: Any) -> None:
        """One more: start, stop, the long integers, the short ones."""
        self._rows += self._pack(*values)

    def times(self) -> Starts:
        """An array [n, 2], in the order in which they were added."""
        return np.stack((self.of("start"), self.of("stop")), axis=1)

    def of(self, name: str) -> NDArray[Any]:
        """One column."""
        return np.frombuffer(bytes(self._rows), self._kind)[name]


class Words:
    """Texts by number."""

    def __init__(self) -> None:
        self.texts: list[Any] = []
        self._numbers: dict[Any, int] = {}

    def number(self, text: Any) -> int:
        """The number of a text, the same for the same."""
        found = self._numbers.get(text)
        if found is None:
            found = self._numbers[text] = len(self.texts)
            self.texts.append(text)
        return found


def correlation_of(found: Any) -> int:
    """The number that ties GPU work to its launch, in 63 bits; -1 where the trace has none."""
    return found if type(found) is int and 0 <= found < MOST_NUMBER else -1


def _plain(found: Any) -> int | str:
    return found if isinstance(found, int) else str(found)


@dataclass(frozen=True, slots=True)
class Described:
    """What a trace says of a collective: on its kernel, or where the host called it.

    `kind` is the class of its name on the host, `shapes` the number of its arguments' in Events.shapes.
    """

    start: float
    stop: float
    thread: int
    kind: int
    name: str
    external: int
    correlation: int
    stream: int
    arguments: Arguments
    shapes: int


class Events:
    """The events of the trace of one rank. All times are microseconds of the trace's clock."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.about: dict[str, Any] = {}
        self.n = 0
        # step -> start, stop, thread; on a GPU start and stop over its streams
        self.steps: dict[int, tuple[float, float, int]] = {}
        self.gpu_steps: dict[int, tuple[float, float]] = {}
        self.names, self.threads, self.shapes = Words(), Words(), Words()
        self.host = Columns(("name", "kind", "thread", "shapes"), ("sequence",))
        self.kernels = Columns(("name", "stream"), ("correlation",))
        self.copies = Columns(("name", "stream"), ("correlation",))
        self.launches = Columns(("thread",), ("correlation",))
        self.nccl: list[Described] = []  # kernels
        self.described: list[Described] = []  # calls on the host
        self._kinds: dict[str, tuple[int, int, int]] = {}
        self._talks: dict[int, bool] = {}
        self._uses: dict[Any, Use] = {
            **dict.fromkeys(("cpu_op", "user_annotation", "operator", "Operator"), self._take_host),
            **dict.fromkeys(("cuda_runtime", "cuda_driver", "runtime"), self._take_launch),
            "privateuse1_runtime": self._take_launch,
            **dict.fromkeys(("kernel", "Kernel"), self._take_kernel),
            **dict.fromkeys(("gpu_memcpy", "gpu_memset", "Memcpy", "Memset"), self._take_copy),
            "gpu_user_annotation": self._take_gpu_annotation,
        }

    @classmethod
    def read(cls, path: Path) -> Events:
        """The events of a file. Raises FileError."""
        events = cls(path)
        events.about = read_trace(path, events.take)
        return events

    def take(self, piece: Sequence[Event | Other]) -> None:
        """Take events in their order. Raises FileError where the time of one is invalid."""
        for event in piece:
            if not isinstance(event, Event):
                continue
            self.n += 1
            if event.ph != "X" or not isinstance(event.cat, str):
                continue
            use = self._uses.get(event.cat)
            if use is None:
                continue
            start, lasts = event.ts, event.dur
            try:
                right = -1e18 < start < 1e18 and 0 <= lasts < 1e18
            except TypeError:
                right = False
            name = event.name if isinstance(event.name, str) else ""
            if not right or start is True:
                raise FileError(f"trace {self.path}, event {self.n} ({name[:40]!r}): not a time")
            given = event.args if isinstance(event.args, Arguments) else NO_ARGUMENTS
            use(name, start, start + lasts, event, given)

    def _take_launch(
        self, name: str, start: float, stop: float, event: Event, given: Arguments
    ) -> None:
        key = correlation_of(given.correlation)
        if key >= 0:
            self.launches.add(start, stop, key, self.threads.number(_plain(event.tid)))

    def _take_gpu_annotation(
        self, name: str, start: float, stop: float, event: Event, given: Arguments
    ) -> None:
        step = STEP.match(name)
        if step:
            number = int(step[1])
            first, last = self.gpu_steps.get(number, (start, stop))
            self.gpu_steps[number] = min(first, start), max(last, stop)

    def _take_kernel(
        self, name: str, start: float, stop: float, event: Event, given: Arguments
    ) -> None:
        number = self.names.number(name)
        if number not in self._talks:
            self._talks[number] = COMMUNICATION_KERNEL.search(name) is not None
        stream = self.threads.number((_plain(event.pid), _plain(event.tid)))
        if self._talks[number]:
            self.nccl.append(self._description(name, start, stop, (-1, -1, stream), given))
        else:
            self.kernels.add(start, stop, correlation_of(given.correlation), number, stream)

    def _take_copy(
        self, name: str, start: float, stop: float, event: Event, given: Arguments
    ) -> None:
        stream, number = (
            self.threads.number((_plain(event.pid), _plain(event.tid))),
            self.names.number(name),
        )
        self.copies.add(start, stop, correlation_of(given.correlation), number, stream)

    def _description(
        self, name: str, start: float, stop: float, place: tuple[int, int, int], given: Arguments
    ) -> Described:
        """`place` is its thread, the class of its name, its stream; -1 for what it has not."""
        thread, kind, stream = place
        external, key = correlation_of(given.external), correlation_of(given.correlation)
        shapes = self._shapes(given)
        given.dims = given.types = NOTHING  # they hold the whole piece of the file
        return Described(start, stop, thread, kind, name, external, key, stream, given, shapes)

    def _shapes(self, given: Arguments) -> int:
        """The number of an operator's shapes and types; -1 where the trace has none."""
        dims = bytes(given.dims)
        return self.shapes.number((dims, bytes(given.types))) if dims else -1

    def _take_host(
        self, name: str, start: float, stop: float, event: Event, given: Arguments
    ) -> None:
        found = self._kinds.get(name)
        if found is None:
            kind = next(kind for kind, pattern in CLASSES if pattern.match(name))
            step = STEP.match(name)
            found = self._kinds[name] = self.names.number(name), kind, int(step[1]) if step else -1
        thread = self.threads.number(_plain(event.tid))
        number, kind, at = found
        if at >= 0:
            if at in self.steps:
                raise FileError(
                    f"trace {self.path}: {name} is there twice: give a trace of one rank"
                )
            self.steps[at] = start, stop, thread
        elif kind in (BACKEND, COMMUNICATION, DESCRIBED):
            self.described.append(self._description(name, start, stop, (thread, kind, -1), given))
        sequence = correlation_of(given.sequence)
        self.host.add(start, stop, sequence, number, kind, thread, self._shapes(given))

    def of_kind(self, *kinds: int) -> NDArray[np.bool_]:
        """Which events of the host are of these classes."""
        return np.isin(self.host.of("kind"), kinds)

    def launched_at(self, correlations: NDArray[np.int64]) -> tuple[Starts, NDArray[np.int64]]:
        """When and in which thread the host launched each kernel or copy; NaN and -1 where unknown."""
        keys, starts = self.launches.of("correlation"), self.launches.of("start")
        if not len(keys) or not len(correlations):
            return np.full(len(correlations), np.nan), np.full(len(correlations), -1)
        order = np.argsort(keys, kind="stable")
        keys, starts, threads = keys[order], starts[order], self.launches.of("thread")[order]
        found = np.minimum(np.searchsorted(keys, correlations), len(keys) - 1)
        right = keys[found] == correlations
        return np.where(right, starts[found], np.nan), np.where(right, threads[found], -1)
