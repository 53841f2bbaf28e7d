"""Traces by hand, event after event, and small real ones of torch.profiler."""

from __future__ import annotations

import contextlib
import gzip
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule

from calib.training.traces.rank import RankTrace, read_rank

# a trace counts microseconds from long ago, in float64
NANOSECONDS = 4e-9


class Lane:
    """Events of a trace by hand, in microseconds."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    def add(
        self, cat: str, name: str, start: float, stop: float, tid: Any = 1, **args: Any
    ) -> None:
        place = {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid}
        self.events.append({**place, "ts": start, "dur": stop - start, "args": args})

    def read(self, path: Path, **about: Any) -> RankTrace:
        """Written to a file and read."""
        path.write_text(json.dumps({"schemaVersion": 1, **about, "traceEvents": self.events}))
        return read_rank(path)


NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def gpu_step(lane: Lane, number: int, at: float, late: float = 0.0, scale: float = 1.0) -> None:
    """A step of 1000 us whose host issues all in its first 400, and whose GPU follows.

    On the GPU, from its start: copy 100-140 (forward), kernels 150-300 (forward), 320-520 and 560-600
    (backward), NCCL 500-660, 700-800 (update); `late` shifts the GPU alone.
    """
    annotation, kernel = "user_annotation", "kernel"
    lane.add(annotation, f"ProfilerStep#{number}", at, at + 1000)
    lane.add("cpu_op", "aten::linear", at + 20, at + 80, **{"Sequence number": 5})
    lane.add("cpu_op", "autograd::engine::evaluate_function: AddmmBackward0", at + 100, at + 200, 2)
    lane.add(annotation, "nccl:all_reduce", at + 150, at + 160, 2)
    lane.add(annotation, "Optimizer.step#SGD.step", at + 300, at + 350)
    lane.add("cpu_op", "aten::item", at + 360, at + 390, **{"Sequence number": 9})
    work = [
        ("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", 30, 100, 140),
        (kernel, "sgemm_128", 40, 150, 300),
        (kernel, "sgemm_bwd", 110, 320, 520),
        (kernel, "bwd_tail", 120, 560, 600),
        (kernel, NCCL, 155, 500, 660),
        (kernel, "multi_tensor_apply_kernel", 310, 700, 800),
        # of loss.item() after the update: nobody's
        ("gpu_memcpy", "Memcpy DtoH (Device -> Pageable)", 370, 820, 860),
    ]
    for index, (cat, name, launch, start, stop) in enumerate(work):
        key = 100 * number + index
        lane.add("cuda_runtime", "cudaLaunchKernel", at + launch, at + launch + 2, correlation=key)
        begin = at + late
        lane.add(cat, name, begin + start * scale, begin + stop * scale, 7, correlation=key)
    start, stop = at + late + 100 * scale, at + late + 800 * scale
    lane.add("gpu_user_annotation", f"ProfilerStep#{number}", start, stop, 7)
    lane.add("gpu_user_annotation", "nccl:all_reduce", start, stop, 20)


ABOUT = {
    "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 2},
    "deviceProperties": [{"id": 0, "name": "NVIDIA H100"}],
    "host_name": "node1",
    "baseTimeNanoseconds": 1_700_000_000_000_000_000,
}
FAR = 4.4e12  # as a trace of 2026 counts microseconds


def network() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 10))
    return module, torch.optim.SGD(module.parameters(), lr=0.1)


@contextlib.contextmanager
def profiled(path: Path, steps: int, waits: int = 1, shapes: bool = False) -> Iterator[Any]:
    plan = schedule(wait=waits, warmup=1, active=steps, repeat=1)
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=plan,
        record_shapes=shapes,
        on_trace_ready=lambda p: p.export_chrome_trace(str(path)),
    ) as found:
        yield found


def train(module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    loss = nn.functional.cross_entropy(module(torch.randn(8, 32)), torch.randint(10, (8,)))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    loss.item()


def events_of(path: Path) -> list[dict[str, Any]]:
    data = path.read_bytes()
    text = gzip.decompress(data) if path.suffix == ".gz" else data
    return [e for e in json.loads(text)["traceEvents"] if e.get("ph") == "X"]


BEGIN_US, STEP_US = 1e6, 10_000.0


@dataclass(frozen=True)
class Planted:
    """A collective as it truly was: when each of its ranks came (`starts`), and when it ended.

    Times are microseconds after the step's beginning on the true clock; `stops` where the ranks do not
    end together.
    """

    starts: dict[int, float]
    stop: float
    operation: str = "allreduce"
    elements: int = 1024
    stops: dict[int, float] = field(default_factory=dict)
    of_rank: dict[int, int] = field(default_factory=dict)  # items, where they differ
    missing: tuple[int, ...] = ()  # ranks whose traces lack it

    @property
    def late(self) -> float:
        """When the last rank came."""
        return max(self.starts.values())


@dataclass(frozen=True)
class Clock:
    """What a rank's trace writes for a true time: its host, its offset in us, its drift."""

    host: str = "a"
    offset: float = 0.0
    drift: float = 0.0
    jumps: dict[int, float] = field(default_factory=dict)  # us, in a step

    def of_step(self, step: int, when: float) -> float:
        """The time in the trace of `when` us after the beginning of a step."""
        true = BEGIN_US + step * STEP_US + when
        return true * (1 + self.drift) + self.offset + self.jumps.get(step, 0.0)


def planted_run(
    folder: Path,
    steps: Sequence[Sequence[Planted]],
    clocks: Sequence[Clock],
    work: Callable[[int], Sequence[tuple[float, float]]] = lambda _: (),
) -> list[RankTrace]:
    """A GPU trace of each rank; `work` are the kernels of a rank in each step, us."""
    traces = []
    for rank, clock in enumerate(clocks):
        lane = Lane()
        for number, calls in enumerate(steps):
            at = partial(clock.of_step, number)
            lane.add("user_annotation", f"ProfilerStep#{number}", at(0), at(STEP_US - 1))
            for start, stop in work(rank):
                lane.add("kernel", "sgemm", at(start), at(stop), 7)
            for call in calls:
                if rank in call.starts and rank not in call.missing:
                    items = call.of_rank.get(rank, call.elements)
                    lane.add(
                        "kernel",
                        "ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)",
                        at(call.starts[rank]),
                        at(call.stops.get(rank, call.stop)),
                        20,
                        **described(call.operation, items, "Float", sorted(call.starts)),
                    )
        about = {"backend": "nccl", "rank": rank, "world_size": len(clocks)}
        path = folder / f"rank{rank}.json"
        traces.append(lane.read(path, distributedInfo=about, host_name=clock.host))
    return traces


def described(name: str, items: int, dtype: str, ranks: Sequence[int]) -> dict[str, Any]:
    """What torch.distributed says of a collective since 2.4 (torch/csrc/profiler/util.h)."""
    return {
        "Collective name": name,
        "In msg nelems": items,
        "Out msg nelems": items,
        "Group size": len(ranks),
        "dtype": dtype,
        "Process Group Name": "-".join(map(str, ranks)),
        "Process Group Ranks": str(list(ranks)),
    }


def document(rank: int = 0, ranks: int = 2) -> dict[str, Any]:
    """A trace of a GPU with something of all that is read."""
    lane = Lane()
    types = {"Input type": ["float", "float", "float"]}
    for number in range(3):
        at = 1000.0 * number
        lane.add("user_annotation", f"ProfilerStep#{number}", at, at + 1000)
        lane.add("user_annotation", "enumerate(DataLoader)#_Single", at + 2, at + 10)
        dims = {"Input Dims": [[8, 64], [10, 64], [10]], **types}
        lane.add("cpu_op", "aten::linear", at + 20, at + 80, **{"Sequence number": 5}, **dims)
        dims = {"Input Dims": [[10], [8, 64], [64, 10]], **types}
        lane.add("cpu_op", "aten::addmm", at + 30, at + 70, **{"Sequence number": 5}, **dims)
        node = "autograd::engine::evaluate_function: AddmmBackward0"
        lane.add("cpu_op", node, at + 100, at + 200, 2)
        dims = {"Input Dims": [[10, 64]], "Input type": ["float"]}
        lane.add("cpu_op", "torch::autograd::AccumulateGrad", at + 190, at + 195, 2, **dims)
        said = described("allreduce", 640, "Float", [0, 1])
        lane.add("cpu_op", "record_param_comms", at + 150, at + 160, 2, **said)
        lane.add("user_annotation", "Optimizer.step#SGD.step", at + 300, at + 350)
        work = [
            ("kernel", "sgemm", 40, 150, 300, 1),
            ("kernel", "backward", 110, 320, 520, 2),
            ("kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", 155, 500, 660 + rank, 2),
            ("gpu_memcpy", "Memcpy HtoD", 22, 90, 100, 1),
        ]
        for n, (cat, name, launch, start, stop, tid) in enumerate(work):
            key = 100 * number + n
            called = at + launch
            lane.add("cuda_runtime", "cudaLaunchKernel", called, called + 2, tid, correlation=key)
            lane.add(cat, name, at + start, at + stop, 7, correlation=key)
    return {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "NVIDIA H100"}],
        "distributedInfo": {
            "backend": "nccl",
            "rank": rank,
            "world_size": ranks,
            "pg_config": [{"ranks": [0, 1]}],
        },
        "host_name": "node1",
        "baseTimeNanoseconds": 1_700_000_000_000_000_000,
        "traceEvents": lane.events,
    }
