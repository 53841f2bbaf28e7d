"""One rank's steps and phases: traces by hand, and real ones."""

from __future__ import annotations

import gzip
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.training.traces.made_traces import (
    FAR,
    NANOSECONDS,
    Lane,
    events_of,
    gpu_step,
    network,
    profiled,
    train,
)
from torch.profiler import ProfilerActivity, profile

from calib.foundation.errors import FileError
from calib.training.traces.rank import read_rank


@pytest.mark.parametrize(("rank", "ranks"), [(2, 2), (-1, 2), (0, 0), (0, 10**30)])
def test_ranks_that_cannot_be(tmp_path: Path, rank: int, ranks: int) -> None:
    lane = Lane()
    gpu_step(lane, 0, 0.0)
    info = {"rank": rank, "world_size": ranks}
    with pytest.raises(FileError, match=f"t.json: its distributedInfo has rank {rank} of {ranks} "):
        lane.read(tmp_path / "t.json", distributedInfo=info)


@pytest.mark.parametrize("key", [10**30, -(10**30), -5, True, 1.5, "7", None])
def test_launches_that_are_no_number_tie_nothing(tmp_path: Path, key: Any) -> None:
    lane = Lane()
    gpu_step(lane, 0, 0.0)
    good = lane.read(tmp_path / "good.json")
    lane.add("cuda_runtime", "cudaLaunchKernel", 310, 312, correlation=key)
    lane.add("kernel", "stray", 900, 950, 7, correlation=key)
    trace = lane.read(tmp_path / "t.json")
    assert trace.phase_s == good.phase_s


def test_a_step_of_many_digits_is_none(tmp_path: Path) -> None:
    lane = Lane()
    gpu_step(lane, 3, 0.0)
    for kind in ("user_annotation", "gpu_user_annotation"):
        lane.add(kind, f"ProfilerStep#{'1' * 5000}", 0, 5000)
    assert lane.read(tmp_path / "t.json").steps == [3]


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ([(0, 10), (10, 10)], "step 1 takes 0 s"),
        ([(0, 10), (5, 15)], "step 1 begins before step 0 ends"),
        ([(10, 20), (0, 10)], "step 1 begins before step 0 ends"),
        ([(0, 100), (20, 30)], "step 1 begins before step 0 ends"),
    ],
)
def test_steps_that_cannot_be(tmp_path: Path, steps: list[tuple[int, int]], words: str) -> None:
    lane = Lane()
    for number, (start, stop) in enumerate(steps):
        lane.add("user_annotation", f"ProfilerStep#{number}", FAR + start, FAR + stop)
    with pytest.raises(FileError, match=f"t.json: {words}$"):
        lane.read(tmp_path / "t.json")


def test_phases_of_a_cpu(tmp_path: Path) -> None:
    """Gaps within a phase are of it; what autograd records after the last backward is no forward."""
    lane = Lane()
    for number in range(2):
        at = 1000.0 * number
        recorded = {"Sequence number": 1}
        lane.add("user_annotation", f"ProfilerStep#{number}", at, at + 1000)
        lane.add("user_annotation", "enumerate(DataLoader)#_Single", at + 10, at + 50)
        lane.add("cpu_op", "aten::stack", at + 20, at + 40, **recorded)
        lane.add("cpu_op", "aten::linear", at + 100, at + 150, **recorded)
        lane.add("cpu_op", "aten::relu", at + 160, at + 200, **recorded)
        lane.add("cpu_op", "aten::linear", at + 210, at + 220, 5, **recorded)  # another thread's
        for start in (300, 400):
            node = "autograd::engine::evaluate_function: AddmmBackward0"
            lane.add("cpu_op", node, at + start, at + start + 50)
        lane.add("user_annotation", "Optimizer.step#SGD.step", at + 500, at + 550)
        lane.add("user_annotation", "Optimizer.zero_grad#SGD.zero_grad", at + 560, at + 570)
        lane.add("cpu_op", "aten::item", at + 700, at + 800, **recorded)
    trace = lane.read(tmp_path / "t.json")
    expected = {"forward": 100, "backward": 150, "update": 70}
    assert trace.phase_s == {
        name: pytest.approx([us * 1e-6] * 2, abs=NANOSECONDS) for name, us in expected.items()
    }
    assert (trace.seconds(trace.phases["input"]), trace.exposed_s) == (
        pytest.approx([40e-6] * 2, abs=NANOSECONDS),
        [0.0, 0.0],
    )


def test_blanks_are_passed_many_at_once(tmp_path: Path) -> None:
    """64 MB of them in 64 kB: a step of Python for each would be 6.7e7 lines."""
    path = tmp_path / "t.json.gz"
    path.write_bytes(gzip.compress(b'{"traceEvents":' + b" \n" * (1 << 25) + b"[]}", 1, mtime=0))
    lines = 0

    def count(frame: Any, event: str, _: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        return count

    sys.settrace(count)
    try:
        with pytest.raises(FileError, match="no ProfilerStep"):
            read_rank(path)
    finally:
        sys.settrace(None)
    assert lines < 1e6


@pytest.mark.parametrize("name", ["t.json", "t.json.gz"])
def test_a_real_trace_of_a_cpu(tmp_path: Path, name: str) -> None:
    module, optimizer = network()
    with profiled(tmp_path / name, steps=3) as profiler:
        for _ in range(5):
            train(module, optimizer)
            profiler.step()
    trace = read_rank(tmp_path / name)
    events = events_of(tmp_path / name)
    durations = {e["name"]: e["dur"] * 1e-6 for e in events if "ProfilerStep" in e["name"]}
    assert trace.steps == [2, 3, 4] and trace.gpu is None
    lasted = [durations[f"ProfilerStep#{n}"] for n in (2, 3, 4)]
    assert trace.whole_s == pytest.approx(lasted, abs=NANOSECONDS)
    # the update holds both annotations of the optimizer, and at most the gap between them
    of = [e["dur"] * 1e-6 for e in events if e["name"].startswith("Optimizer.")]
    assert len(of) == 6
    assert sum(of) <= sum(trace.phase_s["update"]) + 10 * NANOSECONDS
    nodes = [e for e in events if e["name"].startswith("autograd::engine::evaluate_function")]
    spans = [e["dur"] * 1e-6 for e in nodes]
    assert sum(spans) <= sum(trace.phase_s["backward"]) + len(spans) * NANOSECONDS
    for step in range(3):
        phases = sum(values[step] for values in trace.phase_s.values())
        assert phases <= trace.whole_s[step] + NANOSECONDS  # how much less is the machine's noise
        assert all(trace.phase_s[name][step] > 0 for name in ("forward", "backward", "update"))
        linear = [e["dur"] for e in events if e["name"] == "aten::linear"]
        assert trace.phase_s["forward"][step] > 0.5e-6 * min(linear)
    assert trace.talking_s == [0.0] * 3


def test_without_a_schedule_a_step_is_between_updates(tmp_path: Path) -> None:
    module, optimizer = network()
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        for _ in range(4):
            train(module, optimizer)
    profiler.export_chrome_trace(str(tmp_path / "t.json"))
    ends = sorted(
        e["ts"] + e["dur"] for e in events_of(tmp_path / "t.json") if "Optimizer.step" in e["name"]
    )
    trace = read_rank(tmp_path / "t.json")
    assert trace.whole_s == pytest.approx(np.diff(ends) * 1e-6, abs=NANOSECONDS)
    assert any("from one end of Optimizer.step" in note for note in trace.notes)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "truncated"),
        (b'{"traceEvents": [{"ph": "i"}', "truncated"),
        (b'{"traceEvents": [{"ph": "i"} {"ph": "i"}]}', "not JSON"),
        (b'{"traceEvents": [{"ph": }]}', "not JSON"),
        (b'{"other": 1}', "no traceEvents"),
        (b"\x1f\x8b\x08\x00rubbish", "truncated or not gzip"),
        (gzip.compress(b'{"traceEvents": []}', mtime=0)[:-9], "truncated or not gzip"),
        (b'{"traceEvents": []}', "has no ProfilerStep"),
        (
            b'{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": -1}]}',
            "event 1 .* not a time",
        ),
        (b'{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "ts": NaN}]}', "not a time"),
        (b"[" * 100_000, "not JSON"),
    ],
)
def test_a_trace_that_is_none(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(content)
    with pytest.raises(FileError, match=words) as error:
        read_rank(path)
    assert str(path) in str(error.value) and "\n" not in str(error.value)
