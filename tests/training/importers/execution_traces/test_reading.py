"""Execution traces: Chakra's by google.protobuf, real ones of PyTorch, and files that are neither."""

from __future__ import annotations

import base64
import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.training.launching import python

from calib.foundation.errors import FileError
from calib.foundation.protobuf import field, with_length
from calib.training.importers.execution_traces.reading import read_execution_trace
from calib.training.importers.execution_traces.record import (
    Communication,
    ExecutionTrace,
    TraceNode,
    TraceTensor,
)

# Made by google.protobuf 7.36.2 with a module that protoc made of et_def.proto (mlcommons/chakra,
# 89c551d7): GlobalMetadata with a string, int64, double, float, int32, uint32, sint64, fixed32 and
# sfixed64; a COMP_NODE, a COMM_SEND_NODE, a MEM_LOAD_NODE, and a COMM_COLL_NODE with inputs and the same
# attributes, bytes and a list. It begins with "{" and a line feed, as JSON may.
GOLDEN = base64.b64decode(
    "ewoFMC4wLjQSEAoGc2NoZW1h6gEFMS4xLjASDAoIc3RhcnRfdHNIDBIPCgFkEgF4GQAAAAAAAPg/EggKAWYtAAAAPxIOCgFpOP3/"
    "/////////wESBQoBdVgEEgYKAXOIAQkSCQoBeJ0BBgAAABINCgF5yQH5/////////wwIARIEcm9vdBgEOAI1CAISAXMYBSoBAVIN"
    "Cgljb21tX3NpemVICFIMCghjb21tX2RzdDgDUgwKCGNvbW1fdGFnOAkKCKsCEgNtZW0YApcCCKwCEg1uY2NsRGV2S2VybmVsGAci"
    "AQEqAwKrAjAFONwLQk4KHVtbMSwgMiwgMCwgMjEyLCA0LCAnY3VkYTowJ11dEgtbWzIxMl0sIFtdXRogWydUZW5zb3IoYzEwOjpC"
    "RmxvYXQxNiknLCAnSW50J11SDgoJaXNfY3B1X29w2AEAUg0KCWNvbW1fdHlwZUgCUg4KCWNvbW1fc2l6ZWioA1INCgdwZ19uYW1l"
    "6gEBN1IPCgFkEgF4GQAAAAAAAPg/UggKAWYtAAAAP1IOCgFpOP3//////////wFSBQoBdVgEUgYKAXOIAQlSCQoBeJ0BBgAAAFIN"
    "CgF5yQH5/////////1IHCgFi+gEBelIJCgFsUgQKAgEC"
)
HEAD = with_length(field(1, "0.0.4"))


def kept(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def wrong(path: Path, groups: Path | None = None) -> str:
    """The one line of a file that is refused."""
    with pytest.raises(FileError) as error:
        read_execution_trace(path, groups)
    assert "\n" not in str(error.value) and path.name in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("packed", [False, True])
def test_chakra_as_googles_protobuf_writes_it(packed: bool, tmp_path: Path) -> None:
    data = gzip.compress(GOLDEN) if packed else GOLDEN
    groups = kept(tmp_path / "groups.json", b'{"7": [4, 5, 6]}')
    found = read_execution_trace(kept(tmp_path / "a.et", data), groups)
    assert found.schema == "Chakra 0.0.4"
    numbers = {"d": 1.5, "f": 0.5, "i": -3, "u": 4, "s": -5, "x": 6, "y": -7}
    assert found.about == {"schema": "1.1.0", "start_ts": 12} | numbers
    root, send, memory, collective = found.nodes
    assert root == TraceNode(1, "root", "compute", 0.0, 2e-6)
    message = Communication("p2p", 8, peer=3, tag=9)
    assert send == TraceNode(2, "s", "send", 0.0, 0.0, communication=message, after=(1,))
    assert (memory.id, memory.kind) == (299, "memory")
    assert collective == TraceNode(
        300,
        "ncclDevKernel",
        "collective",
        5e-6,
        pytest.approx(1.5e-3),
        inputs=(TraceTensor((212,), "bfloat16"),),
        communication=Communication("allgather", 424, group="7", ranks=(4, 5, 6)),
        after=(2, 299, 1),
        parent=1,
    )
    assert collective.communication is not None
    assert collective.communication.buffer_bytes == 3 * 424


def test_dependencies_that_are_not_packed(tmp_path: Path) -> None:
    """As writers of proto2 and some languages have them; both are to be read (encoding guide)."""
    nodes = [field(1, 1) + field(3, 4), field(1, 2) + field(3, 4)]
    nodes += [field(1, 3) + field(5, 1) + field(5, 2)]
    path = kept(tmp_path / "a.et", HEAD + b"".join(map(with_length, nodes)))
    assert [node.after for node in read_execution_trace(path).nodes] == [(), (), (1, 2)]


CHAKRA_MISTAKES = {
    "empty": (b"", "has no nodes"),
    "metadata alone": (HEAD, "has no nodes"),
    "cut off": (GOLDEN[:-3], "node 4 of the file: cut off"),
    "text": (b"hello, this is no trace at all", "no Chakra trace, or damaged"),
    "another message": (with_length(field(9, 9)), "its first message: it has no version"),
    "a huge node": (HEAD + b"\xff\xff\xff\xff\x0f", "a message of 4294967295 bytes"),
    "twice": (HEAD + 2 * with_length(field(1, 5)), "node 5 is there twice"),
    "dangling": (HEAD + with_length(field(1, 5) + field(5, 7)), "depends on 7, which is not there"),
    "no such collective": (
        HEAD + with_length(field(3, 7) + field(10, field(1, "comm_type") + field(9, 77))),
        "comm_type 77",
    ),
    "a size below 0": (
        HEAD + with_length(field(3, 7) + field(10, field(1, "comm_size") + field(9, -4))),
        "comm_size is -4",
    ),
}


@pytest.mark.parametrize("name", CHAKRA_MISTAKES)
def test_a_damaged_chakra_trace(name: str, tmp_path: Path) -> None:
    data, said = CHAKRA_MISTAKES[name]
    assert said in wrong(kept(tmp_path / "a.et", data))


@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(at=st.integers(0, len(GOLDEN) - 1), byte=st.integers(0, 255))
def test_a_wrong_byte_is_no_traceback(at: int, byte: int, tmp_path: Path) -> None:
    data = GOLDEN[:at] + bytes([byte]) + GOLDEN[at + 1 :]
    try:
        found = read_execution_trace(kept(tmp_path / "a.et", data))
    except FileError as error:
        assert "a.et" in str(error)
    else:
        assert isinstance(found, ExecutionTrace)


@pytest.mark.parametrize("content", ["[]", '{"1": 3}', '{"1": [-1]}', "{"])
def test_groups_that_are_none(content: str, tmp_path: Path) -> None:
    groups = kept(tmp_path / "groups.json", content.encode())
    with pytest.raises(FileError, match="comm-group file"):
        read_execution_trace(kept(tmp_path / "a.et", GOLDEN), groups)


# PyTorch

PROGRAM = """
import sys
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.profiler import ExecutionTraceObserver


def rank_of_two(rank):
    dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=rank, world_size=2)
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    net = nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    observer = ExecutionTraceObserver()
    observer.register_callback(f"et.{rank}.json")
    for turn in range(3):
        if turn == 2:  # DDP has rebuilt its buckets, which it broadcasts, in the second
            observer.start()
        net(torch.randn(5, 8)).sum().backward()
        optimizer.step()
    t = torch.ones(7, dtype=torch.float64)
    dist.all_gather([torch.empty_like(t) for _ in range(2)], t)
    dist.send(t, 1, tag=3) if rank == 0 else dist.recv(t, 0, tag=3)
    dist.broadcast(t, 0)
    observer.stop()
    observer.unregister_callback()
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(rank_of_two, nprocs=2)
"""


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> tuple[ExecutionTrace, ExecutionTrace]:
    """Of two ranks that train a small network with DistributedDataParallel over gloo."""
    here = tmp_path_factory.mktemp("et")
    (here / "program.py").write_text(PROGRAM)
    done = python(here, "program.py", str(here / "store"))
    assert done.returncode == 0, done.stderr
    first, second = (read_execution_trace(here / f"et.{rank}.json") for rank in range(2))
    return first, second


@pytest.mark.waits
def test_a_real_trace_of_pytorch(traces: tuple[ExecutionTrace, ExecutionTrace]) -> None:
    trace, _ = traces
    assert trace.schema.startswith("PyTorch 1.1.")
    by_id = {node.id: node for node in trace.nodes}
    matmul, second = (node for node in trace.nodes if node.name == "aten::addmm")
    assert matmul.inputs == tuple(TraceTensor(of, "float32") for of in ((16,), (5, 8), (8, 16)))
    assert second.inputs[1] == TraceTensor((5, 16), "float32")
    # the second layer reads what the ReLU made, which read what the first one made
    (relu,) = (
        by_id[of] for of in second.after if "relu" in by_id[of].name or "clamp" in by_id[of].name
    )
    assert matmul.id in relu.after or by_id[relu.parent or 0].name == "aten::relu"
    assert matmul.parent is not None and by_id[matmul.parent].name == "aten::linear"
    assert all(node.duration_s is None for node in trace.nodes)


@pytest.mark.waits
def test_what_a_real_trace_sends(traces: tuple[ExecutionTrace, ExecutionTrace]) -> None:
    """One bucket of 8 x 16 + 16 + 16 x 4 + 4 gradients, float32; then the calls of the program."""
    sent = [[node.communication for node in trace.nodes if node.communication] for trace in traces]
    of_all = {"group": "0", "ranks": (0, 1)}
    expected = [
        Communication("allreduce", 4 * 212, 212, "float32", **of_all),
        Communication("allgather", 56, 7, "float64", **of_all),
        Communication("p2p", 56, 7, "float64", **of_all, peer=1, tag=3),
        Communication("broadcast", 56, 7, "float64", **of_all),
    ]
    assert sent[0] == expected
    assert sent[1] == [*expected[:2], replace(expected[2], peer=0), expected[3]]
    assert [node.kind for node in traces[1].nodes if node.communication] == [
        "collective",
        "collective",
        "receive",
        "collective",
    ]


def tensor(number: int, items: int, size: int = 2) -> list[Any]:
    return [number, number + 100, 0, items, size, "cuda:0"]


def nccl(attributes: dict[str, Any], values: list[Any], kind: str) -> dict[str, Any]:
    return {
        "id": 5,
        "name": "record_param_comms",
        "ctrl_deps": 4,
        "inputs": {
            "values": values,
            "shapes": [[[32]], *[[] for _ in values[1:]]],
            "types": [kind, *["Int" for _ in values[1:]]],
        },
        "outputs": {"values": [], "shapes": [], "types": []},
        "attrs": [{"name": of, "type": "", "value": value} for of, value in attributes.items()],
    }


def trace_of(*nodes: dict[str, Any], schema: str = "1.1.0-chakra.0.0.4") -> bytes:
    return json.dumps({"schema": schema, "pid": 1, "nodes": nodes}).encode()


GIVEN = [[tensor(1, 32)], 17, ["2", "tp"], 0, "_allgather_base"]
BF16 = "GenericList[Tensor(c10::BFloat16)]"


def test_nccl_by_attributes_and_by_places(tmp_path: Path) -> None:
    """record_param_comms: with attributes (1.1.0), and before by the place of its arguments (PARAM)."""
    attributes = {
        "collective_name": "_allgather_base",
        "in_msg_nelems": 32,
        "dtype": "BFloat16",
        "pg_name": "2",
        "global_rank_start": 4,
        "global_rank_stride": 2,
        "pg_size": 3,
    }
    call = {"id": 4, "name": "c10d::_allgather_base_", "ctrl_deps": 1, "inputs": {}, "outputs": {}}
    for of, ranks in ((attributes, (4, 6, 8)), ({}, ())):
        path = kept(tmp_path / "a.json", trace_of(call, nccl(of, GIVEN, BF16)))
        called, node = read_execution_trace(path).nodes
        assert called.kind == "label" and node.kind == "collective" and node.parent == 4
        expected = Communication("allgather", 64, 32, "bfloat16", "2", ranks)
        assert node.communication == expected
        assert expected.buffer_bytes == (192 if ranks else None)


def test_a_wait_is_no_communication(tmp_path: Path) -> None:
    wait = nccl({}, [17, ["2", "tp"], 0, "wait"], "Int")
    (node,) = read_execution_trace(kept(tmp_path / "a.json", trace_of(wait))).nodes
    assert (node.kind, node.communication) == ("label", None)


def test_times_of_a_linked_trace_and_the_first_schema(tmp_path: Path) -> None:
    """chakra_trace_link adds ts, inclusive_dur and kernels; schema 1.0.1 has no objects of lists."""
    kernel = {
        "id": 3,
        "name": "sgemm",
        "ctrl_deps": 2,
        "cat": "kernel",
        "ts": 7,
        "inclusive_dur": 5,
    }
    (node,) = read_execution_trace(kept(tmp_path / "a.json", trace_of(kernel))).nodes
    assert (node.kind, node.start_s, node.duration_s) == ("kernel", 7e-6, 5e-6)
    old = {
        "id": 2,
        "name": "aten::mm",
        "parent": 1,
        "op_schema": "aten::mm(Tensor self, Tensor mat2) -> Tensor",
        "inputs": [tensor(1, 6, 4), tensor(2, 6, 4)],
        "input_shapes": [[2, 3], [3, 2]],
        "input_types": ["Tensor(float)", "Tensor(double)"],
        "outputs": [tensor(3, 4, 4)],
        "output_shapes": [[2, 2]],
        "output_types": ["Tensor(float)"],
    }
    add = {**old, "id": 9, "name": "aten::add", "inputs": [tensor(3, 4, 4)] * 2}
    path = kept(tmp_path / "b.json", trace_of(old, add, schema="1.0.1"))
    first, second = read_execution_trace(path).nodes
    assert first.inputs == (TraceTensor((2, 3), "float32"), TraceTensor((3, 2), "float64"))
    assert (first.kind, first.parent, second.after) == ("compute", 1, (2,))


NODE = {"id": 2, "name": "aten::mm", "ctrl_deps": 1}
TENSOR = {"values": [tensor(1, 6)], "shapes": [[2, 3]], "types": ["Tensor(float)"]}
PYTORCH_MISTAKES = {
    "schema": (trace_of(NODE, schema="2.0.0"), "schema '2.0.0' is not one that is read"),
    "no nodes": (b'{"schema": "1.1.0"}', "has no nodes"),
    "cut off": (trace_of(NODE)[:-4], "truncated"),
    "no id": (trace_of({"name": "x"}), "no id or no name"),
    "id": (trace_of({**NODE, "id": -3}), "id is -3"),
    "twice": (trace_of(NODE, NODE), "node 2 is there twice"),
    "duration": (trace_of({**NODE, "inclusive_dur": "long"}), "inclusive_dur is 'long'"),
    "lists": (trace_of({**NODE, "inputs": {"shapes": 3}}), "no list"),
    "types": (trace_of({**NODE, "inputs": {**TENSOR, "shapes": []}}), "shapes and types"),
    "shape": (trace_of({**NODE, "inputs": {**TENSOR, "shapes": [[-1]]}}), "of shape [-1]"),
}


@pytest.mark.parametrize("name", PYTORCH_MISTAKES)
def test_a_damaged_trace_of_pytorch(name: str, tmp_path: Path) -> None:
    data, said = PYTORCH_MISTAKES[name]
    assert said in wrong(kept(tmp_path / "a.json", data))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    assert "does not exist" in wrong(tmp_path / "none.et")
    assert "cannot read" in wrong(tmp_path)
    assert "gzip" in wrong(kept(tmp_path / "a.et", gzip.compress(GOLDEN)[:40]))


def test_a_node_does_not_wait_for_its_callers(tmp_path: Path) -> None:
    """add_ writes in place what the mul_ in it reads; both depend on fill_ alone, relu on the last."""
    lists = {"values": [tensor(1, 6)], "shapes": [[6]], "types": ["Tensor(float)"]}
    about = {"inputs": lists, "outputs": lists}
    calls = [
        (2, "aten::fill_", 1),
        (3, "aten::add_", 1),
        (4, "aten::mul_", 3),
        (6, "aten::relu", 1),
    ]
    nodes = [{"id": of, "name": name, "ctrl_deps": by, **about} for of, name, by in calls]
    found = read_execution_trace(kept(tmp_path / "a.json", trace_of(*nodes[::-1]))).nodes
    assert [(node.id, node.after) for node in found] == [(2, ()), (3, (2,)), (4, (2,)), (6, (4,))]


def test_callers_that_call_each_other_end(tmp_path: Path) -> None:
    """A chain without an end, and one of 3000 calls."""
    nodes = [{**NODE, "id": of, "ctrl_deps": of % 3000 + 1} for of in range(1, 3001)]
    found = read_execution_trace(kept(tmp_path / "a.json", trace_of(*nodes)))
    assert len(found.nodes) == 3000
