"""Where the time of a step went: traces of a GPU and of a CPU with known answers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.training.traces.made_traces import NCCL, Lane

from calib.training.traces.intervals import NONE
from calib.training.traces.split import PARTS, Split, split_of

US = 1e-6


def parts_of(split: Split, step: int = 0) -> dict[str, float]:
    """In whole microseconds."""
    return {name: round(split.parts[name][step] / US, 3) for name in PARTS}


def phases_of(split: Split) -> dict[str, float]:
    """The same of the phases of the first step."""
    return {name: round(float(seconds[0]) / US, 3) for name, seconds in split.phases.items()}


def kernel(lane: Lane, name: str, launch: float, start: float, stop: float, key: int) -> None:
    lane.add("cuda_runtime", "cudaLaunchKernel", launch, launch + 1, correlation=key)
    lane.add("kernel", name, start, stop, 20 if name == NCCL else 7, correlation=key)


def test_a_step_of_a_gpu(tmp_path: Path) -> None:
    lane = Lane()
    lane.add("user_annotation", "ProfilerStep#3", 1000, 2000)
    lane.add("user_annotation", "enumerate(DataLoader)#_Single", 1010, 1040)
    lane.add("user_annotation", "DistributedDataParallel.forward", 1100, 1190)
    lane.add("cpu_op", "aten::linear", 1110, 1180, **{"Sequence number": 1})
    lane.add("gpu_memcpy", "Memcpy HtoD", 1060, 1110, 8)
    kernel(lane, "gemm", 1120, 1150, 1300, 1)
    kernel(lane, "gemm", 1130, 1250, 1350, 2)  # in another stream, 50 us at once
    kernel(lane, NCCL, 1140, 1300, 1500, 3)  # 50 us beside the gemm
    kernel(lane, "tail", 1150, 1480, 1600, 4)  # 20 us beside NCCL
    lane.add("gpu_memcpy", "Memcpy DtoH", 1550, 1700, 8)  # 50 us beside the kernel
    lane.add("gpu_memcpy", "Memcpy HtoD", 1400, 1450, 8)  # beside NCCL alone
    trace = lane.read(tmp_path / "t.json")
    split = split_of(trace, np.array([[1290.0, 1400.0]]) - trace.base_us)
    # computation 1150-1350, 1480-1600; NCCL alone 1350-1480, of which 1350-1400 waits; copies 1060-1110
    # and 1600-1700; input up to 1100 but for the copy; the rest, 1110-1150 and 1700-2000, of nothing
    expected = {"computation": 320, "wire": 80, "waiting": 50, "copies": 150, "input": 60}
    assert parts_of(split) == expected | {"host": 340}
    assert split.whole.tolist() == pytest.approx([1000 * US])
    assert split.talking.tolist() == pytest.approx([200 * US])
    assert split.hidden.tolist() == pytest.approx([70 * US])
    assert split.own.tolist() == pytest.approx([810 * US])
    # launched in the forward, 1150-1350 and 1480-1600, with the gap between them, but for the wire
    assert phases_of(split) == {"forward": 320, "backward": 0, "update": 0, "between": 490}


def test_a_step_of_a_cpu(tmp_path: Path) -> None:
    """Loading is input before it is computation; gloo runs in its own thread."""
    lane = Lane()
    lane.add("user_annotation", "ProfilerStep#0", 0, 1000)
    lane.add("user_annotation", "enumerate(DataLoader)#_Single", 10, 60)
    lane.add("cpu_op", "aten::stack", 20, 50)
    lane.add("cpu_op", "aten::linear", 100, 300, **{"Sequence number": 1})
    lane.add("cpu_op", "aten::addmm", 110, 290, **{"Sequence number": 1})
    lane.add("cpu_op", "autograd::engine::evaluate_function: AddmmBackward0", 300, 600)
    lane.add("cpu_op", "aten::mm", 310, 500)
    lane.add("user_annotation", "gloo:all_reduce", 450, 700, 9)
    lane.add("user_annotation", "Optimizer.step#SGD.step", 800, 900)
    lane.add("cpu_op", "aten::add_", 810, 890)
    split = split_of(lane.read(tmp_path / "t.json"), NONE)
    expected = {"computation": 200 + 190 + 80, "wire": 200, "waiting": 0, "copies": 0}
    # from the beginning to the model's first operator
    assert parts_of(split) == expected | {"input": 100, "host": 1000 - 470 - 200 - 100}
    assert split.hidden.tolist() == pytest.approx([50 * US])
    # 500-600 of the backward is all communication, as what is between it and the update up to 700
    phases = {"forward": 200, "backward": 200, "update": 100, "between": 200}
    assert phases_of(split) == phases


def test_the_call_of_the_model_is_looked_for_in_each_step(tmp_path: Path) -> None:
    """One step has an annotation, one its first operator, one none; zero_grad is no input."""
    lane = Lane()
    for number in range(3):
        lane.add("user_annotation", f"ProfilerStep#{number}", 1000 * number, 1000 * number + 1000)
    lane.add("user_annotation", "## forward ##", 200, 400)
    lane.add("cpu_op", "aten::linear", 300, 400, **{"Sequence number": 1})
    lane.add("user_annotation", "Optimizer.zero_grad#SGD.zero_grad", 1050, 1090)
    lane.add("cpu_op", "aten::linear", 1300, 1400, **{"Sequence number": 1})
    lane.add("cpu_op", "aten::copy_", 2100, 2200)
    split = split_of(lane.read(tmp_path / "t.json"), NONE)
    assert (split.parts["input"] / US).round(3).tolist() == [200, 260, 0]
    assert (split.parts["computation"] / US).round(3).tolist() == [100, 100, 100]


def test_a_step_without_anything_is_the_hosts(tmp_path: Path) -> None:
    lane = Lane()
    lane.add("user_annotation", "ProfilerStep#0", 0, 1000)
    split = split_of(lane.read(tmp_path / "t.json"), NONE)
    assert parts_of(split) == dict.fromkeys(PARTS, 0) | {"host": 1000}
    assert split.talking.tolist() == split.hidden.tolist() == [0]
