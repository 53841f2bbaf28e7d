"""Collectives as traces of every PyTorch describe them, each with a known answer.

What kineto and PyTorch write: torch/csrc/profiler/util.{h,cpp}, torch/csrc/distributed/c10d of
pytorch/pytorch, libkineto/src/output_json.cpp of pytorch/kineto; names of kernels:
src/device/generate.py, src/device/symmetric/generate.py of NVIDIA/nccl, and of ROCm/rccl the first.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.training.traces.made_traces import Lane, described

from calib.training.traces.collectives import Collective, collectives_of, operation_of

GENERIC = "ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)"
TWO = {"rank": 0, "world_size": 2, "pg_config": [{"pg_name": "0", "ranks": [0, 1]}]}


def stepped(n: int = 1) -> Lane:
    lane = Lane()
    for number in range(n):
        at = 1000.0 * number
        lane.add("user_annotation", f"ProfilerStep#{number}", at, at + 1000)
    return lane


def one(lane: Lane, folder: Path, **about: Any) -> Collective:
    (found,) = collectives_of(lane.read(folder / "t.json", **about))
    return found


def launched(lane: Lane, name: str, at: float, key: int, tid: int = 1, **args: Any) -> None:
    """A kernel from `at` + 100 on for 50 us, and its launch at `at`."""
    lane.add("cuda_runtime", "cudaLaunchKernelExC", at, at + 3, tid, correlation=key)
    lane.add("kernel", name, at + 100, at + 150, 20, correlation=key, **args)


# c10::toString of c10/core/ScalarType.h
@pytest.mark.parametrize(
    ("word", "dtype", "size"),
    [
        ("Float", "float32", 4),
        ("Half", "float16", 2),
        ("BFloat16", "bfloat16", 2),
        ("Double", "float64", 8),
        ("Long", "int64", 8),
        ("Int", "int32", 4),
        ("Byte", "uint8", 1),
        ("Char", "int8", 1),
        ("Bool", "bool", 1),
        ("ComplexFloat", "complex64", 8),
        ("Float8_e4m3fn", "float8_e4m3fn", 1),
        ("Float8_e5m2", "float8_e5m2", 1),
        ("QInt8", "", None),
    ],
)
def test_a_kernel_that_says_what_it_is(
    tmp_path: Path, word: str, dtype: str, size: int | None
) -> None:
    """PyTorch 2.4 and later, whatever the kernel's name."""
    lane = stepped()
    launched(lane, GENERIC, 10, 1, **described("_allgather_base", 100, word, [0, 1, 2]))
    lane.events[-1]["args"]["Out msg nelems"] = 300
    found = one(lane, tmp_path)
    assert (found.operation, found.elements, found.dtype) == ("allgather", 300, dtype)
    assert found.nbytes == (None if size is None else 300 * size)
    assert (found.members, found.size, found.group) == ((0, 1, 2), 3, "0-1-2")
    assert (found.start_us, found.stop_us, found.issued_us) == (110, 160, 10)


def test_a_group_of_more_ranks_than_a_trace_names(tmp_path: Path) -> None:
    """From 31 on kineto writes `[0, ..., 29, ...]`: the group has a name and a size."""
    lane = stepped()
    ranks = list(range(64))
    words = f"[{', '.join(map(str, ranks[:30]))}, ...]"
    args = described("allreduce", 8, "Float", ranks) | {"Process Group Ranks": words}
    launched(lane, GENERIC, 10, 1, **args)
    found = one(lane, tmp_path)
    assert (found.members, found.size) == ((), 64) and found.group in found.key


@pytest.mark.parametrize(
    ("words", "operation"),
    [
        ("allreduce", "allreduce"),
        ("allreduce_coalesced", "allreduce"),
        ("allreduce_sparse", "allreduce"),
        ("broadcast", "broadcast"),
        ("_broadcast_oop", "broadcast"),
        ("reduce", "reduce"),
        ("_reduce_oop", "reduce"),
        ("all_gather", "allgather"),
        ("_allgather_base", "allgather"),
        ("all_gather_into_tensor_coalesced", "allgather"),
        ("reduce_scatter", "reduce_scatter"),
        ("_reduce_scatter_base", "reduce_scatter"),
        ("reduce_scatter_tensor_coalesced", "reduce_scatter"),
        ("all_to_all", "all_to_all"),
        ("all_to_allv", "all_to_all"),
        ("gather", "gather"),
        ("scatter", "scatter"),
        ("send", "send"),
        ("recv", "receive"),
        ("barrier", "barrier"),
        ("nccl:send 0->1", "send"),
        ("nccl:recv 1<-0", "receive"),
        ("gloo:all_reduce", "allreduce"),
        ("c10d::alltoall_base_", "all_to_all"),
        ("_c10d_functional::all_gather_into_tensor", "allgather"),
        ("_c10d_functional::wait_tensor", None),
        ("c10d::monitored_barrier_", "barrier"),
        ("mpi:Bcast 8 float32", "broadcast"),
        ("mpi:Reduce_scatter_block 8 float32", "reduce_scatter"),
        ("mpi:Allgatherv 8 float32", "allgather"),
        ("mpi:Alltoallv 8 float32", "all_to_all"),
        ("wait", None),
        ("init", None),
    ],
)
def test_names_of_operations(words: str, operation: str | None) -> None:
    """What ProcessGroupNCCL.cpp, ProcessGroupGloo.cpp and Ops.cpp call them, and calib's MPI."""
    assert operation_of(words) == operation


@pytest.mark.parametrize("name", [GENERIC, "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*)"])
def test_the_description_around_a_launch(tmp_path: Path, name: str) -> None:
    """PyTorch 2.1 to 2.3: record_param_comms on the host; another thread's is another's."""
    lane = stepped()
    said = described("reduce_scatter", 640, "BFloat16", [0, 1])
    lane.add("cpu_op", "c10d::reduce_scatter_", 5, 60, 2)
    lane.add("cpu_op", "record_param_comms", 8, 50, 2, **said)
    lane.add("user_annotation", "nccl:reduce_scatter", 9, 40, 2, **{"Input Dims": [[640]]})
    lane.add("cpu_op", "record_param_comms", 0, 90, 3, **described("broadcast", 7, "Int", [0]))
    launched(lane, name, 20, 1, tid=2)
    found = one(lane, tmp_path)
    assert (found.operation, found.nbytes, found.members) == ("reduce_scatter", 1280, (0, 1))


def test_a_launch_after_its_description_has_none(tmp_path: Path) -> None:
    lane = stepped()
    lane.add("cpu_op", "record_param_comms", 8, 19, **described("broadcast", 7, "Int", [0, 1]))
    launched(lane, "ncclDevKernel_AllReduce_Sum_f16_TREE_LL(x)", 20, 1)
    found = one(lane, tmp_path)
    assert (found.operation, found.elements, found.dtype) == ("allreduce", None, "float16")


@pytest.mark.parametrize(
    ("annotation", "dims", "types", "elements", "nbytes"),
    [
        ("nccl:all_reduce", [[6, 4]], ["float"], 24, 96),
        ("nccl:all_reduce", [[]], ["double"], 1, 8),  # a scalar
        ("nccl:all_gather", [[6]], ["c10::Half"], 12, 24),  # of the host's part
        ("nccl:_all_gather_base", [[6]], ["c10::BFloat16"], 12, 24),
        ("nccl:reduce_scatter", [[12]], ["float"], 12, 48),
        ("nccl:all_to_all", [[12]], ["long int"], 12, 96),
        ("nccl:broadcast", [[12]], ["unsigned char"], 12, 12),
        ("nccl:all_reduce", [], [], None, None),
    ],
)
def test_shapes_of_an_annotation_around_a_launch(
    tmp_path: Path,
    annotation: str,
    dims: list[Any],
    types: list[str],
    elements: int | None,
    nbytes: int | None,
) -> None:
    """PyTorch 1.13 to 2.0: the inputs that the annotation of ProcessGroupNCCL has."""
    lane = stepped()
    args = {"Input Dims": dims, "Input type": types} if dims else {}
    lane.add("user_annotation", annotation, 8, 60, **args)
    launched(lane, GENERIC, 20, 1)
    found = one(lane, tmp_path, distributedInfo=TWO)
    assert (found.elements, found.nbytes, found.size) == (elements, nbytes, 2)
    assert found.operation == operation_of(annotation)


def test_a_part_of_a_group_of_unknown_size_is_no_whole(tmp_path: Path) -> None:
    lane = stepped()
    lane.add("user_annotation", "nccl:all_gather", 8, 60, **{"Input Dims": [[6]]})
    launched(lane, GENERIC, 20, 1)
    assert one(lane, tmp_path).elements is None


def test_the_operator_around_says_what_the_annotation_does_not(tmp_path: Path) -> None:
    """Both tensors of c10d::_allgather_base_, as in the traces of 128 GPUs of 2023."""
    lane = stepped()
    args = {"Input Dims": [[512], [8], []], "Input type": ["signed char", "signed char", ""]}
    lane.add("cpu_op", "c10d::_allgather_base_", 5, 70, **args)
    args = {"Input Dims": [[8]], "Input type": ["signed char"]}
    lane.add("user_annotation", "nccl:_all_gather_base", 8, 60, **args)
    launched(lane, "ncclKernel_AllGather_RING_LL_Sum_int8_t(ncclDevComm*)", 20, 1)
    found = one(lane, tmp_path)
    assert (found.nbytes, found.dtype) == (512, "int8")


@pytest.mark.parametrize(
    ("name", "operation", "dtype"),
    [
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, ulong)", "allreduce", "float32"),
        ("ncclKernel_AllReduce_TREE_LL_Sum_half(ncclDevComm*)", "allreduce", "float16"),
        ("ncclKernel_AllReduce_RING_LL_Sum___nv_bfloat16(ncclWork*)", "allreduce", "bfloat16"),
        ("ncclKernel_AllReduce_RING_LL_Sum_rccl_bfloat16(ncclWork*)", "allreduce", "bfloat16"),
        ("ncclKernel_ReduceScatter_RING_LL_Sum_double(x)", "reduce_scatter", "float64"),
        ("ncclKernel_AllGather_RING_LL_Sum_int8_t(ncclDevComm*)", "allgather", ""),
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*)", "p2p", ""),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)", "allreduce", "float32"),
        ("ncclDevKernel_AllReduce_Sum_bf16_TREE_LL(ncclWork*)", "allreduce", "bfloat16"),
        ("ncclDevKernel_ReduceScatter_Sum_f16_RING_LL(x)", "reduce_scatter", "float16"),
        ("ncclDevKernel_AllReduce_Sum_f8e4m3_RING_LL(x)", "allreduce", "float8_e4m3fn"),
        ("ncclDevKernel_AllReduce_Sum_u32_RING_LL(x)", "allreduce", ""),  # signed or not
        ("ncclDevKernel_Broadcast_RING_LL(ncclDevComm*, ulong)", "broadcast", ""),
        ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", "p2p", ""),
        ("ncclSymDevKernel_AllReduce_RSxLD_AGxST_sum_bf16(x)", "allreduce", "bfloat16"),
        ("ncclSymkDevKernel_ReduceScatter_LDMC_sum_f8e5m2(x)", "reduce_scatter", "float8_e5m2"),
        ("ncclSymkDevKernel_AllGather_STMC(ncclSymkDevWorkArgs4K)", "allgather", ""),
        (GENERIC, "", ""),
        ("mscclKernel_Sum_hip_bfloat16_Simple_false(ncclDevComm*)", "", ""),
    ],
)
def test_names_of_kernels_alone(tmp_path: Path, name: str, operation: str, dtype: str) -> None:
    lane = stepped()
    lane.add("kernel", name, 10, 30, 20)
    found = one(lane, tmp_path)
    assert (found.operation, found.dtype, found.nbytes) == (operation, dtype, None)
    assert found.stop_us - found.start_us == 20 and str(found.issued_us) == "nan"


# as PyTorch 2.13 writes them over gloo on two ranks (c10d/Ops.cpp), and the whole buffer's items
GLOO = [
    ("c10d::allreduce_", [[[96]], [], []], ["TensorList", "", ""], "gloo:all_reduce", [96], 96),
    ("c10d::broadcast_", [[[6]], [], []], ["TensorList", "", ""], "gloo:broadcast", [6], 6),
    ("c10d::allgather_", [[], [[6]], []], ["", "TensorList", ""], "gloo:all_gather", [6], 12),
    ("c10d::_allgather_base_", [[12], [6]], ["float", "float"], "gloo:all_gather", [6], 12),
    ("c10d::alltoall_base_", [[6], [6]], ["float", "float"], "gloo:all_to_all", [6], 6),
    ("c10d::gather_", [[], [[6]], []], ["", "TensorList", ""], "gloo:gather", [6], 12),
    ("c10d::scatter_", [[[6]], [], []], ["TensorList", "", ""], "gloo:scatter", [6], 12),
    ("c10d::send", [[[6]], [], []], ["TensorList", "", ""], "gloo:send", [6], 6),
]


@pytest.mark.parametrize(("name", "dims", "types", "annotation", "given", "whole"), GLOO)
def test_collectives_on_a_host(
    tmp_path: Path,
    name: str,
    dims: list[Any],
    types: list[str],
    annotation: str,
    given: list[int],
    whole: int,
) -> None:
    """A backend's annotation counts, with its time; without one torch.distributed's operator."""
    lane = stepped()
    lane.add("cpu_op", name, 10, 30, **{"Input Dims": dims, "Input type": types})
    alone = one(lane, tmp_path, distributedInfo=TWO)
    assert (alone.start_us, alone.stop_us, alone.elements) == (10, 30, whole)
    args = {"Input Dims": [given], "Input type": ["float"]}
    lane.add("user_annotation", annotation, 20, 90, 5, **args)
    found = one(lane, tmp_path, distributedInfo=TWO)
    assert (found.start_us, found.stop_us) == (20, 90)
    assert (found.nbytes, found.operation) == (4 * whole, alone.operation)
    assert found.members == (0, 1)


@pytest.mark.parametrize(
    ("dims", "name", "whole"),
    [
        ([[3], [6]], "c10d::_reduce_scatter_base_", 6),
        ([[[3]], [], []], "c10d::reduce_scatter_", 6),
        ([[6]], "_c10d_functional::reduce_scatter_tensor", 6),
        ([[6]], "_c10d_functional::all_gather_into_tensor", 12),
    ],
)
def test_the_whole_of_parts(tmp_path: Path, dims: list[Any], name: str, whole: int) -> None:
    lane = stepped()
    types = [
        "TensorList" if isinstance(shape[0:1] and shape[0], list) else "float" for shape in dims
    ]
    lane.add("cpu_op", name, 10, 30, **{"Input Dims": dims, "Input type": types})
    assert one(lane, tmp_path, distributedInfo=TWO).elements == whole


def test_an_operator_in_another_counts_once(tmp_path: Path) -> None:
    """Functional collectives call those of c10d."""
    lane = stepped()
    args = {"Input Dims": [[6]], "Input type": ["float"]}
    for at in (10, 40):
        lane.add("cpu_op", "_c10d_functional::all_reduce", at, at + 20, **args)
        lane.add("cpu_op", "c10d::allreduce_", at + 5, at + 15, **{"Input Dims": [[[6]]]})
    lane.add("cpu_op", "_c10d_functional::wait_tensor", 70, 80, **args)
    found = collectives_of(lane.read(tmp_path / "t.json"))
    assert [(x.operation, x.start_us, x.elements, x.number) for x in found] == [
        ("allreduce", 15, 6, 0),
        ("allreduce", 45, 6, 1),
    ]


def test_calibs_own_calls_of_mpi(tmp_path: Path) -> None:
    """microbench/communicators/torch_mpi.py annotates them with the whole buffer."""
    lane = stepped()
    lane.add("cpu_op", "c10d::allreduce_", 8, 52, **{"Input Dims": [[[1024]]]})
    lane.add("user_annotation", "mpi:Allreduce 1024 float32", 10, 50)
    lane.add("user_annotation", "mpi:Allgather 12 bfloat16", 60, 70)
    lane.add("user_annotation", "mpi:Barrier", 80, 90)
    lane.add("user_annotation", "mpi:Bcast 5 int64", 91, 95)
    found = collectives_of(lane.read(tmp_path / "t.json", distributedInfo=TWO))
    assert [(x.operation, x.nbytes, x.size) for x in found] == [
        ("allreduce", 4096, 2),
        ("allgather", 24, 2),
        ("barrier", None, 2),
        ("broadcast", 40, 2),
    ]


def test_collectives_are_of_the_step_that_called_them_and_numbered_in_it(tmp_path: Path) -> None:
    """The host runs ahead: the kernels of step 0 end in step 1; those before the trace are left out."""
    lane = stepped(2)
    for at, key, items in ((910, 1, 8), (950, 2, 8), (955, 3, 9), (1010, 4, 8)):
        launched(lane, GENERIC, at, key, **described("allreduce", items, "Float", [0, 1]))
    launched(lane, GENERIC, -500, 5, **described("allreduce", 8, "Float", [0, 1]))
    found = collectives_of(lane.read(tmp_path / "t.json"))
    assert [(x.step, x.elements, x.number, x.start_us) for x in found] == [
        (0, 8, 0, 1010),
        (0, 8, 1, 1050),
        (0, 9, 0, 1055),
        (1, 8, 0, 1110),
    ]
    assert len({x.key for x in found}) == 4


def test_several_groups_tell_no_group(tmp_path: Path) -> None:
    lane = stepped()
    lane.add("kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", 10, 30, 20)
    groups = [{"ranks": [0, 1]}, {"ranks": [0, 1, 2, 3]}]
    assert one(lane, tmp_path, distributedInfo=TWO | {"pg_config": groups}).size is None
    assert one(lane, tmp_path, distributedInfo=TWO | {"pg_config": groups[:1] * 2}).size == 2
    for wrong in ("x", [1], [{"ranks": "[0, 1"}], {"ranks": [0]}, [{"ranks": [-1, 0]}]):
        assert one(lane, tmp_path, distributedInfo=TWO | {"pg_config": wrong}).size is None
