"""Rows and ends from repetitions: every column by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
from tests.helpers.divided import model_case

from calib.foundation.layers import LayerShape
from calib.microbench.cases import Case, CollectiveCase, LayerCase, TensorsCase
from calib.microbench.machine.placement import Placement
from calib.microbench.records.samples import Sample
from calib.microbench.rows import case_end, to_table
from calib.microbench.timing.repeat import Repetitions

HOSTS = ["a", "a", "b", "b"]
TWO_NODES = Placement(HOSTS, [[0], [1], [0], [1]], 2, False)
LAYER = LayerShape(
    kind="linear", input_shapes=((4,),), output_shape=(3,), parameter_shapes=((3, 4), (3,))
)


def collective(**fields: Any) -> CollectiveCase:
    content = {"operation": "allreduce", "nbytes": 64, "ranks": 4, "group_size": 4, **fields}
    return CollectiveCase.model_validate(content)


def rows_made(case: Case, result: Repetitions, placement: Placement, *about: Any) -> list[Sample]:
    return [Sample(**row) for row in to_table(case, result, placement, *about).to_pylist()]


def first_row(case: Case, placement: Placement = TWO_NODES, operation: str = "x") -> Sample:
    result = Repetitions(ranks={operation: [[1.0, 3.0], [2.0, 2.5]]}, warmup=1, calls=7)
    first, second = rows_made(case, result, placement, 5, 99.0, ["throttled", "shared_gpu"])
    assert (first.warmup, second.warmup) == (True, False)
    assert (second.seconds, second.skew_seconds, second.rank_seconds) == (2.5, 0.5, [2.0, 2.5])
    assert (second.launch, second.repetition, second.calls) == (5, 1, 7)
    assert second.marks == "throttled,shared_gpu" and second.started_unix_s == 99.0
    assert math.isnan(second.late_seconds) and math.isnan(second.host_seconds)
    return first


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        # level, nodes, ranks (p), active ranks of a node, groups, stride
        ({}, ("system", 2, 4, 2, 1, 1)),
        ({"group_size": 2}, ("node", 1, 2, 2, 1, 1)),
        ({"group_size": 2, "groups": 2}, ("node", 1, 2, 2, 2, 1)),
        ({"group_size": 2, "stride": 2}, ("system", 2, 2, 1, 1, 2)),
        ({"group_size": 2, "stride": 2, "groups": 2}, ("system", 2, 2, 2, 2, 2)),
    ],
)
def test_where_a_group_ran(fields: dict[str, Any], expected: tuple[Any, ...]) -> None:
    row = first_row(collective(**fields))
    found = (row.level, row.nodes, row.ranks, row.active_ranks, row.groups, row.stride)
    assert found == expected
    assert (row.library, row.nbytes, row.key) == ("mpi", 64, "")


def test_columns_of_a_collective() -> None:
    row = first_row(collective(operation="halo", grid=(2, 2), cold=True, start="window"))
    assert (row.key, row.cold, row.start) == ("2x2", True, "window")
    row = first_row(collective(operation="hierarchical_allreduce", inner=2, library="torch_mpi"))
    assert (row.key, row.library) == ("inner=2", "torch_mpi")
    row = first_row(collective(operation="allgather", nbytes=20))
    assert row.nbytes == 32, "two whole items of each of four ranks"


@pytest.mark.parametrize(
    ("protocol", "key"), [("simple", "algorithm=ring protocol=simple"), ("", "algorithm=ring")]
)
def test_what_nccl_is_told_stands_in_the_key_as_logs_have_it(protocol: str, key: str) -> None:
    told = {"library": "nccl", "device": "cuda", "algorithm": "ring", "protocol": protocol}
    assert first_row(collective(**told)).key == key


def test_a_rack_is_the_level_between() -> None:
    racks = Placement(HOSTS, TWO_NODES.cores, 2, False, racks=["r"] * 4)
    assert first_row(collective(), racks).level == "rack"
    assert first_row(collective(group_size=2), racks).level == "node"


def test_columns_of_layers_and_tensors() -> None:
    layer = first_row(LayerCase(ranks=4, layer=LAYER, batch=8, execution="bfloat16"))
    # x, y, w, b of two bytes each
    assert (layer.nbytes, layer.batch, layer.dtype) == (2 * (8 * 7 + 15), 8, "bfloat16")
    assert layer.key == LAYER.key(8, "bfloat16") and (layer.ranks, layer.active_ranks) == (4, 2)
    on_gpu = first_row(LayerCase(ranks=4, layer=LAYER, batch=8, device="cuda", execution="tf32"))
    assert (on_gpu.device, on_gpu.dtype) == ("cuda", "tf32")
    pack = first_row(TensorsCase(ranks=4, operation="pack", key="k", shapes=((3, 4), (3,))))
    assert (pack.key, pack.ntensors, pack.nbytes) == ("k", 2, 60)
    mixed = {"ranks": 4, "key": "k", "execution": "bfloat16-mixed"}
    weights = TensorsCase(operation="accumulate", shapes=((3, 4), (3,)), **mixed)
    row = first_row(weights)
    assert (row.ntensors, row.nbytes, row.dtype) == (2, 60, "bfloat16-mixed")
    shards = TensorsCase(operation="split", shapes=((2, 8, 5),), parts=4, **mixed)
    assert first_row(shards).nbytes == 2 * 80
    concat = TensorsCase(ranks=4, operation="concat", key="k", shapes=((2, 8, 5),), parts=4)
    row = first_row(concat)
    assert (row.key, row.ntensors, row.nbytes) == ("k/4", 4, 320)


def test_an_update_says_its_optimizer() -> None:
    for optimizer, name in (("momentum", "update"), ("sgd", "update_sgd"), ("adam", "update_adam")):
        case = TensorsCase.model_validate(
            {
                "ranks": 4,
                "operation": "update",
                "key": "k",
                "shapes": [(3,)],
                "optimizer": optimizer,
            }
        )
        assert first_row(case, operation="update").operation == name


def test_a_layer_in_place_is_a_row_of_its_own() -> None:
    case = model_case(ranks=1, layer_keys=("a",))
    result = Repetitions(
        ranks={"forward": [[1.0]] * 3, "layer_forward:features.0": [[0.5]] * 2}, warmup=1
    )
    alone = Placement(["a"], [[0]], 1, False)
    rows = rows_made(case, result, alone, 0, 0.0, [])
    assert [(r.operation, r.key) for r in rows] == [("forward", "m")] * 3 + [
        ("layer_forward", "m:features.0")
    ] * 2
    assert case_end(case, 0, 1.0, result).repetitions == 2, "of the phases"
    assert {row.library for row in rows} == {"torch"}
    exchanged = case.model_copy(update={"is_overlap": True, "library": "torch_gloo"})
    assert exchanged.id != case.id
    rows = rows_made(exchanged, Repetitions({"blocking": [[1.0]]}), alone, 0, 0.0, [])
    assert [row.library for row in rows] == ["torch_gloo"]


def test_late_arrival_and_the_host_s_own_time() -> None:
    result = Repetitions(
        ranks={"allreduce": [[1.0, 3.0], [2.0, 2.0]]},
        warmup=1,
        late=[0.1, 0.2],
        host={"allreduce": [[0.3, 0.4], [0.6, 0.5]]},
    )
    rows = rows_made(collective(), result, TWO_NODES, 0, 0.0, [])
    assert [row.late_seconds for row in rows] == [0.1, 0.2]
    assert [row.host_seconds for row in rows] == [0.4, 0.6]


def test_how_a_case_ended() -> None:
    result = Repetitions(
        ranks={"allreduce": [[1.0]] * 9},
        warmup=3,
        stopped_by="interval",
        half_width=0.0123456789,
        first_s=0.5,
        estimate_s=2e-6,
        memory={"peak": 7},
        kernels={"forward": ["k"]},
        workspace={"forward": 8},
    )
    end = case_end(collective(), 2, 1.23456, result, gpus=([{"power_w": 1.0}], [{}]))
    assert (end.repetitions, end.half_width, end.stopped_by) == (6, 0.012346, "interval")
    assert end.estimate_s == 2e-6
    assert (end.first_s, end.memory, end.kernels) == (0.5, {"peak": 7}, {"forward": ["k"]})
    assert end.workspace == {"forward": 8}
    assert (end.launch, end.elapsed_s, end.gpu_before) == (2, 1.2346, [{"power_w": 1.0}])
    assert (end.mean_power_w, end.again) == ([None], 0)
    counted = tuple([{"energy_j": 50.0 * t, "clock_s": t}, {}] for t in (1.0, 3.0))
    again = case_end(collective(), 0, 1.0, result, gpus=counted, again=1)
    assert (again.mean_power_w, again.again) == ([50.0, None], 1)
    never = case_end(collective(), 2, 0.0, stopped_by="skipped: why")
    assert (never.repetitions, never.half_width, never.stopped_by) == (0, None, "skipped: why")
    no_interval = case_end(collective(), 0, 1.0, Repetitions(ranks={"a": [[1.0]] * 3}))
    assert no_interval.half_width is None
