"""A run from the traces of its ranks: means, calls, and files that are of no one run; and real ones."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.helpers.published import DATA, needs_data
from tests.training.traces.made_traces import STEP_US, Clock, Lane, Planted, planted_run

from calib.foundation.errors import FileError
from calib.training.traces.collectives import collectives_of
from calib.training.traces.rank import read_rank
from calib.training.traces.run import TracedRun, in_order, read_ranks, traced_run
from calib.training.traces.split import PARTS

REAL = DATA / "traces" / "ddp_2gpu_rank0.json.gz"
US = 1e-6
RESNET_50 = 25_557_032  # parameters of torchvision's


def waiting_run(folder: Path, ranks: int = 2, steps: int = 4) -> TracedRun:
    """Rank 1 computes 3000 us, the others 2000; one allreduce of 500 us, from 3100 to 3600."""
    starts = {rank: 3100.0 if rank == 1 else 2100.0 for rank in range(ranks)}
    calls = [Planted(starts, 3600.0, elements=1 << 20)]
    return traced_run(
        planted_run(
            folder, [calls] * steps, [Clock()] * ranks, lambda r: [(100, 3100 if r == 1 else 2100)]
        )
    )


def test_a_run_whose_answer_is_known(tmp_path: Path) -> None:
    run = waiting_run(tmp_path)
    assert run.step.value == pytest.approx((STEP_US - 1) * US)
    parts = {part.name: part.seconds.value for part in run.parts}
    assert list(parts) == list(PARTS)
    expected = {"computation": 2500, "wire": 500, "waiting": 500, "copies": 0, "input": 0}
    for name, micro in expected.items():
        assert parts[name] == pytest.approx(micro * US, abs=1e-9)
    assert sum(parts.values()) == pytest.approx(run.step.value, rel=1e-12)
    (sums,) = run.collectives
    assert (sums.operation, sums.nbytes, sums.size) == ("allreduce", 4 << 20, 2)
    assert (sums.calls, sums.with_waits) == (1.0, False)
    assert sums.own.value == pytest.approx(500 * US)
    assert sums.waited == pytest.approx(500 * US)  # 1000 of one rank, 0 of the other
    # busbw of two ranks: algbw times 2 (n - 1) / n (nccl-tests, doc/PERFORMANCE.md)
    assert sums.bus_bandwidth is not None
    assert sums.bus_bandwidth.value == pytest.approx((4 << 20) / (500 * US))
    first, second = run.ranks
    assert (first.rank, first.last, first.waited_for) == (0, 0, 0)
    assert (second.rank, second.last) == (1, 4)
    assert second.waited_for == pytest.approx(1000 * US)
    assert first.parts["waiting"] == pytest.approx(1000 * US) and second.parts["waiting"] < 1e-9
    assert run.notes[-1].startswith("the traces have no shapes")
    assert TracedRun.model_validate_json(run.model_dump_json()) == run


def test_calls_are_those_of_a_rank(tmp_path: Path) -> None:
    """Two groups of two ranks, alike: each rank has three calls in a step, whoever is traced."""
    groups = [(0, 1), (2, 3)] * 3
    calls = [
        Planted(dict.fromkeys(group, 100.0 + 500 * n), 300.0 + 500 * n)
        for n, group in enumerate(groups)
    ]
    traces = planted_run(tmp_path, [calls] * 2, [Clock()] * 4)
    for some in (traces, traces[:3], traces[:1]):
        (sums,) = traced_run(some).collectives
        assert sums.calls == 3
        assert sums.own.value == pytest.approx(200 * US)


def test_gradients_are_those_of_the_first_rank(tmp_path: Path) -> None:
    """Of sampled traces, in which no collective is in both, they count once."""
    starts = {0: 100.0, 1: 100.0}
    calls = [
        Planted(starts, 300.0, elements=100, missing=(1,)),
        Planted({0: 400.0, 1: 400.0}, 600.0, elements=60, missing=(0,)),
        Planted({0: 700.0, 1: 700.0}, 900.0, elements=40),
    ]
    run = traced_run(planted_run(tmp_path, [calls] * 2, [Clock()] * 2))
    assert run.configuration.exchanged_items == 140
    assert run.configuration.buckets is not None and run.configuration.buckets.count == 2


def test_intervals_are_of_steps(tmp_path: Path) -> None:
    """Student's t: 2, 3 and 4 ms of one rank; 4.303 of 2 degrees of freedom (tables)."""
    lane = Lane()
    for number, length in enumerate((2000, 3000, 4000)):
        at = 10_000.0 * number
        lane.add("user_annotation", f"ProfilerStep#{number}", at, at + length)
    path = tmp_path / "t.json"
    lane.read(path)
    run = traced_run(read_ranks([path]))
    half = 4.302653e-3 / np.sqrt(3)
    assert run.step.numbers == pytest.approx((3e-3, 3e-3 - half, 3e-3 + half), rel=1e-6)
    assert run.hidden.value == 0 and run.collectives == [] and run.operators == []


def one_step(folder: Path, rank: int | None, ranks: int = 2, first: int = 0, n: int = 2) -> Path:
    lane = Lane()
    for number in range(first, first + n):
        lane.add("user_annotation", f"ProfilerStep#{number}", 1e4 * number, 1e4 * number + 500)
    path = folder / f"{rank}-{first}-{n}-{ranks}.json"
    about = {} if rank is None else {"distributedInfo": {"rank": rank, "world_size": ranks}}
    lane.read(path, **about)
    return path


def test_files_that_are_of_no_one_run(tmp_path: Path) -> None:
    zero = one_step(tmp_path, 0)
    for other, words in (
        (one_step(tmp_path, 0, n=3), "two of the traces are of the same rank: .*0-0-2.*0-0-3"),
        (one_step(tmp_path, 1, first=7), "have no step in common"),
        (one_step(tmp_path, 1, ranks=4), "is of 4 ranks, .* of 2"),
        (one_step(tmp_path, None), "is of None ranks|does not say its rank"),
    ):
        with pytest.raises(FileError, match=words) as error:
            traced_run(read_ranks([zero, other]))
        assert "\n" not in str(error.value)
    with pytest.raises(FileError, match="does not say its rank"):
        traced_run(read_ranks([one_step(tmp_path, None), one_step(tmp_path, None, n=3)]))


def test_the_steps_that_all_traces_have(tmp_path: Path) -> None:
    run = traced_run(read_ranks([one_step(tmp_path, 1, n=5), one_step(tmp_path, 0, first=2, n=2)]))
    assert [one.rank for one in run.ranks] == [0, 1]
    assert "3 steps of a trace are not in those of all ranks and are left out" in run.notes
    alone = traced_run(read_ranks([one_step(tmp_path, 0, n=1)]))
    assert alone.step.low == alone.step.value == alone.step.high == pytest.approx(500 * US)


def test_ranks_in_order(tmp_path: Path) -> None:
    traces = [read_rank(one_step(tmp_path, rank, 3)) for rank in (2, 0, 1)]
    assert [trace.rank for trace in in_order(traces)] == [0, 1, 2]
    with pytest.raises(FileError, match="is of 3 ranks, not of 4"):
        in_order(traces, 4)


# a real run of two ranks over gloo

DDP = """
import sys
import torch
import torch.distributed as dist
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule

rank, store, out = int(sys.argv[1]), sys.argv[2], sys.argv[3]
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
torch.manual_seed(0)
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(64, 128), nn.Linear(128, 10)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with profile(
    activities=[ProfilerActivity.CPU],
    schedule=schedule(wait=1, warmup=1, active=3, repeat=1),
    record_shapes=True,
    on_trace_ready=lambda p: p.export_chrome_trace(out),
) as profiler:
    for _ in range(5):
        model(torch.randn(8, 64)).square().mean().backward()
        dist.all_gather_into_tensor(torch.empty(12), torch.ones(6))
        dist.barrier()
        optimizer.step()
        optimizer.zero_grad()
        profiler.step()
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def gloo(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The traces of two ranks."""
    folder = tmp_path_factory.mktemp("gloo")
    (folder / "ddp.py").write_text(DDP)
    paths = [folder / f"rank{rank}.json" for rank in range(2)]
    ranks = [
        subprocess.Popen(
            [sys.executable, str(folder / "ddp.py"), str(rank), str(folder / "store"), str(path)]
        )
        for rank, path in enumerate(paths)
    ]
    assert [process.wait(120) for process in ranks] == [0, 0]
    return paths


def test_a_real_run_over_gloo(gloo: list[Path]) -> None:
    run = traced_run(read_ranks(gloo))
    found = run.configuration
    items = 64 * 128 + 128 + 128 * 10 + 10
    assert (found.ranks, found.traced, found.backend, found.strategy) == (2, 2, "gloo", "data")
    assert (found.batch_per_rank, found.micro_batches, found.dtype) == (8, 1, "float32")
    assert (found.gradient_items, found.exchanged_items, found.group_sizes) == (items, items, [2])
    of = {one.operation: one for one in run.collectives}
    assert {name: (one.nbytes, one.size) for name, one in of.items()} == {
        "allreduce": (4 * items, 2),
        "allgather": (48, 2),
        "barrier": (None, 2),
    }
    assert all(one.calls == 1 and not one.with_waits for one in of.values())
    # what the files say of the annotations: own time is within each
    lasted = {}
    for path in gloo:
        for event in json.loads(path.read_text())["traceEvents"]:
            if str(event.get("name", "")).startswith("gloo:"):
                lasted.setdefault(event["name"], []).append(event["dur"] * US)
    assert {name: len(times) for name, times in lasted.items()} == {
        "gloo:all_reduce": 6,
        "gloo:all_gather": 6,
        "gloo:barrier": 6,
    }
    for operation, name in (("allreduce", "gloo:all_reduce"), ("allgather", "gloo:all_gather")):
        assert 0 < of[operation].own.value <= max(lasted[name])
    total = sum(part.seconds.value for part in run.parts)
    assert total == pytest.approx(run.step.value, rel=1e-9)
    for one in run.ranks:
        assert sum(one.parts.values()) <= 2 * run.step.value
    assert not [f for f in run.faults if f.kind not in ("slow rank", "input")]


# the real trace of ResNet-50 on two GPUs


@needs_data
def test_a_real_trace_of_two_gpus() -> None:
    """Against the file's JSON, read plainly: 15 allreduces and 6 broadcasts in 3 steps."""
    events = [
        event
        for event in json.loads(gzip.decompress(REAL.read_bytes()))["traceEvents"]
        if event.get("ph") == "X"
    ]
    kernels = [event for event in events if event["cat"] == "kernel"]
    steps = {
        int(event["name"].partition("#")[2]): (event["ts"], event["ts"] + event["dur"])
        for event in events
        if event["name"].startswith("ProfilerStep#") and event["cat"] == "user_annotation"
    }
    sent = sorted((e for e in kernels if "nccl" in e["name"]), key=lambda e: e["ts"])
    trace = read_rank(REAL)
    found = collectives_of(trace)
    assert trace.steps == sorted(steps) == [4, 5, 6]
    assert len(found) == len(sent) == 21
    size = {"Float": 4, "Long": 8}
    for one, event in zip(found, sent, strict=True):
        args: dict[str, Any] = event["args"]
        assert one.operation == {"_broadcast_oop": "broadcast"}.get(
            args["Collective name"], args["Collective name"]
        )
        assert one.nbytes == args["In msg nelems"] * size[args["dtype"]]
        assert one.start_us + trace.base_us == pytest.approx(event["ts"], abs=1e-3)
        assert one.stop_us - one.start_us == pytest.approx(event["dur"], abs=1e-3)
        start, stop = steps[one.step]
        assert start <= event["ts"] < stop
        assert one.members == (0, 1) and one.issued_us < one.start_us
    operations = [one.operation for one in found]
    assert (operations.count("allreduce"), operations.count("broadcast")) == (15, 6)
    run = traced_run(read_ranks([REAL]))
    assert run.configuration.exchanged_items == RESNET_50
    assert run.configuration.strategy == "data" and run.configuration.optimizer == "SGD"
    # overlap by brute force: each tenth of a microsecond of each NCCL kernel, computed upon or not
    begin = min(start for start, _ in steps.values())
    ticks = np.zeros(int((max(stop for _, stop in steps.values()) - begin) * 10) + 1, dtype=bool)
    talking = ticks.copy()
    for event in kernels:
        at, until = (round((x - begin) * 10) for x in (event["ts"], event["ts"] + event["dur"]))
        (talking if "nccl" in event["name"] else ticks)[max(at, 0) : max(until, 0)] = True
    slices = [slice(*(round((x - begin) * 10) for x in steps[n])) for n in trace.steps]
    hidden = [float((talking[s] & ticks[s]).sum()) * 1e-7 for s in slices]
    whole = [float(talking[s].sum()) * 1e-7 for s in slices]
    computed = [float(ticks[s].sum()) * 1e-7 for s in slices]
    assert run.talking.value == pytest.approx(np.mean(whole), rel=1e-3)
    assert run.hidden.value == pytest.approx(np.mean(hidden), rel=1e-3)
    parts = {part.name: part.seconds.value for part in run.parts}
    assert parts["wire"] == pytest.approx(np.mean(whole) - np.mean(hidden), rel=1e-3)
    assert parts["computation"] == pytest.approx(np.mean(computed), rel=5e-3)
    assert sum(parts.values()) == pytest.approx(run.step.value, rel=1e-12)
    phases = sum(phase.seconds.value for phase in run.phases)
    others = parts["wire"] + parts["waiting"] + parts["input"]
    assert phases + others == pytest.approx(run.step.value, rel=1e-12)
    assert parts["waiting"] == 0 and all(one.with_waits for one in run.collectives)
