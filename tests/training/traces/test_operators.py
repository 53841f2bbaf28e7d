"""Operators of traces by hand: each once, by phase, name and shapes, in each step."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.training.traces.made_traces import NCCL, Lane

from calib.training.traces.operators import UNKNOWN, TracedOperator, operators_of

US = 1e-6
GEMM = {"Input Dims": [[8, 64], [10, 64]], "Input type": ["float", "float"]}


def in_words(found: list[TracedOperator]) -> dict[tuple[str, str], tuple[list[float], list[float]]]:
    """Microseconds and calls in each step, by phase and name."""
    return {
        (op.phase, op.name): ((op.seconds / US).round(3).tolist(), op.calls.tolist())
        for op in found
    }


def test_operators_of_a_cpu(tmp_path: Path) -> None:
    lane = Lane()
    for number in range(2):
        at = 1000.0 * number
        lane.add("user_annotation", f"ProfilerStep#{number}", at, at + 1000)
        recorded = {"Sequence number": 5}
        lane.add("cpu_op", "aten::linear", at + 10, at + 110, **recorded, **GEMM)
        lane.add("cpu_op", "aten::t", at + 10, at + 20, **recorded)  # begins with the outer one
        lane.add("cpu_op", "aten::addmm", at + 20, at + 110, **recorded, **GEMM)  # ends with it
        lane.add("cpu_op", "aten::relu", at + 110, at + 130, **recorded)  # begins where it ends
        node = "autograd::engine::evaluate_function: AddmmBackward0"
        lane.add("cpu_op", node, at + 200, at + 400)
        lane.add("cpu_op", "aten::mm", at + 210, at + 260)
        lane.add("cpu_op", "aten::mm", at + 270, at + 300 + 10 * number)
        lane.add("cpu_op", "aten::mm", at + 220, at + 250, 2)  # at once, in another thread
        lane.add("user_annotation", "Optimizer.step#SGD.step", at + 500, at + 600)
        lane.add("cpu_op", "aten::add_", at + 510, at + 590)
        lane.add("cpu_op", "aten::item", at + 700, at + 710)
    lane.add("cpu_op", "aten::zeros", 2100, 2200)  # after the steps
    found = operators_of(lane.read(tmp_path / "t.json"))
    assert in_words(found) == {
        ("forward", "aten::linear"): ([100, 100], [1, 1]),
        ("forward", "aten::relu"): ([20, 20], [1, 1]),
        ("backward", "aten::mm"): ([50 + 30 + 30, 50 + 40 + 30], [3, 3]),
        ("update", "aten::add_"): ([80, 80], [1, 1]),
        ("elsewhere", "aten::item"): ([10, 10], [1, 1]),
    }
    assert found[0].name == "aten::mm"  # the longest
    (linear,) = [op for op in found if op.name == "aten::linear"]
    assert (linear.shapes, linear.dtype) == (([8, 64], [10, 64]), "float32")


def test_operators_of_a_gpu_have_the_time_of_their_kernels(tmp_path: Path) -> None:
    lane = Lane()
    lane.add("user_annotation", "ProfilerStep#0", 0, 1000)
    lane.add("user_annotation", "ProfilerStep#1", 1000, 2000)
    lane.add("cpu_op", "aten::conv2d", 10, 60, **{"Sequence number": 1}, **GEMM)
    lane.add("cpu_op", "aten::cudnn_convolution", 20, 50, **{"Sequence number": 1})
    lane.add("cpu_op", "aten::conv2d", 70, 80, **{"Sequence number": 1}, **GEMM)

    def kernel(name: str, launch: float, start: float, stop: float, key: int, tid: int = 1) -> None:
        lane.add("cuda_runtime", "cudaLaunchKernel", launch, launch + 1, tid, correlation=key)
        lane.add("kernel", name, start, stop, 7, correlation=key)

    kernel("im2col", 25, 100, 130, 1)
    kernel("gemm", 30, 120, 220, 2)  # at once with the first: each is counted by itself
    kernel("gemm", 75, 1200, 1240, 3)  # runs in the next step, called in this
    kernel("stray", 500, 600, 605, 4)  # launched by no operator
    kernel("other", 40, 1700, 1709, 5, 3)  # by another thread, in whose time an operator is
    lane.add("kernel", "lost", 1800, 1801, 7)  # whose launch is not known
    kernel(NCCL, 76, 300, 400, 6)
    found = operators_of(lane.read(tmp_path / "t.json"))
    assert in_words(found) == {
        ("forward", "aten::conv2d"): ([170, 0], [2, 0]),
        ("elsewhere", UNKNOWN): ([5, 10], [1, 1]),
    }
    assert found[0].shapes == ([8, 64], [10, 64])


@pytest.mark.parametrize(
    ("dims", "types", "shapes", "dtype"),
    [
        ([[2, 3], []], ["c10::BFloat16", "Scalar"], ([2, 3], []), "bfloat16"),
        ([[[2], [3]], [4]], ["TensorList", "short int"], ([[2], [3]], [4]), "int16"),
        ([[-1, 3]], ["float"], (), "float32"),
        ([[2, True]], ["float"], (), "float32"),
        ([[10**30]], ["float"], (), "float32"),
        ([[1.5]], "float", (), ""),
        ("x", [None], (), ""),
        ({"a": 1}, {"b": 2}, (), ""),
        ([[[[[[1]]]]]], [["float"]], (), ""),
    ],
)
def test_shapes_that_are_none_are_unknown(
    tmp_path: Path, dims: object, types: object, shapes: tuple[object, ...], dtype: str
) -> None:
    lane = Lane()
    lane.add("user_annotation", "ProfilerStep#0", 0, 1000)
    lane.add("cpu_op", "aten::add", 10, 20, **{"Input Dims": dims, "Input type": types})
    (found,) = operators_of(lane.read(tmp_path / "t.json"))
    assert (found.shapes, found.dtype) == (shapes, dtype)


def test_a_trace_without_operators_has_none(tmp_path: Path) -> None:
    lane = Lane()
    lane.add("user_annotation", "ProfilerStep#0", 0, 1000)
    assert operators_of(lane.read(tmp_path / "t.json")) == []
