"""Cases: an id is what is measured, and it never changes by accident."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from pydantic import ValidationError
from tests.helpers.divided import model_case
from tests.helpers.words import words_of

from calib.foundation.layers import LayerShape
from calib.microbench.cases import CollectiveCase, LayerCase, Plan, TensorsCase

LAYER = LayerShape(
    kind="linear", input_shapes=((4,),), output_shape=(3,), parameter_shapes=((3, 4), (3,))
)
ALLREDUCE = CollectiveCase(ranks=2, group_size=2, operation="allreduce", nbytes=1024)
CASES = [
    ALLREDUCE,
    CollectiveCase(ranks=2, group_size=2, operation="p2p", nbytes=1024),
    LayerCase(ranks=2, layer=LAYER, batch=8),
    TensorsCase(ranks=2, operation="pack", key="abc", shapes=((3, 4), (3,), ())),
    model_case(layer_keys=("a", "b"), activation_bytes=1, tensors_key="abc", gradient_bytes=2),
]


def test_golden_ids() -> None:
    """Rows of old runs are found by these: if this fails, old runs cannot be gone on with.

    The first is computed here from the bytes that are hashed.
    """
    text = 'CollectiveCase{"group_size": 2, "nbytes": 1024, "operation": "allreduce", "ranks": 2}'
    assert ALLREDUCE.id == hashlib.sha256(text.encode()).hexdigest()[:16]
    assert [case.id for case in CASES] == GOLDEN


GOLDEN = words_of(
    "890aec077b6a4e67 8e60b976d36ee67d 9d3ea846e35c38bd 3b05d90a69647597 9fbd7e6919071f74"
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.kind)
def test_id_does_not_depend_on_the_purpose(case: Any) -> None:
    assert case.model_copy(update={"purpose": "for people", "tier": 2}).id == case.id


@pytest.mark.parametrize(
    ("case", "change"),
    [
        (CASES[0], {"nbytes": 1028}),
        (CASES[0], {"ranks": 4}),
        (CASES[0], {"operation": "p2p"}),
        (CASES[1], {"stride": 2}),
        (CASES[0], {"groups": 2}),
        (CASES[0], {"library": "torch_mpi"}),
        (CASES[0], {"cold": True}),
        (CASES[0], {"start": "window"}),
        (CASES[2], {"passes": "parts"}),
        (CASES[2], {"device": "cuda"}),
        (CASES[3], {"optimizer": "adam"}),
        (CASES[3], {"parts": 2}),
        (CASES[2], {"batch": 16}),
        (CASES[2], {"execution": "float64"}),
        (CASES[2], {"needs_input_grad": False}),
        (CASES[2], {"layer": LAYER.model_copy(update={"output_shape": (2,)})}),
        (CASES[2], {"ranks": 1}),
        (CASES[3], {"operation": "update"}),
        (CASES[3], {"key": "abd"}),
        (CASES[3], {"shapes": ((3, 4), (3,), (1,))}),
        (CASES[4], {"model": "n"}),
        (CASES[4], {"layer_keys": ("a",)}),
    ],
)
def test_id_depends_on_what_is_measured(case: Any, change: dict[str, Any]) -> None:
    changed = case.model_copy(update=change)
    assert changed.id != case.id
    assert changed.model_copy(update={k: getattr(case, k) for k in change}).id == case.id


def test_ids_survive_the_plan_file() -> None:
    """Ranks get the plan as JSON; a number that came back as another type would change an id."""
    pool = LayerShape(
        kind="max_pool",
        input_shapes=((2, 4, 4),),
        output_shape=(2, 2, 2),
        attributes={"kernel": (2, 2), "ceil_mode": False, "stride": (2, 2), "padding": (0, 0)},
    )
    dropout = LayerShape(
        kind="dropout", input_shapes=((4,),), output_shape=(4,), attributes={"probability": 1.0}
    )
    layers = [LayerCase(ranks=1, layer=layer, batch=2) for layer in (pool, dropout)]
    plan = Plan(cases=(*CASES, *layers), budget_seconds=3, seed=5)
    again = Plan.model_validate_json(plan.model_dump_json())
    assert again == plan
    assert [case.id for case in again.cases] == [case.id for case in plan.cases]


def test_sizes_and_cases_of_a_launch() -> None:
    def case(ranks: int, nbytes: int, purpose: str = "") -> CollectiveCase:
        return CollectiveCase(
            ranks=ranks, group_size=2, operation="p2p", nbytes=nbytes, purpose=purpose
        )

    cases = (case(4, 8), case(2, 8), case(4, 16, "a"), case(4, 16, "b"), case(2, 32), case(4, 8))
    plan = Plan(cases=cases, budget_seconds=1.0)
    assert plan.sizes == [2, 4]
    assert [c.nbytes for c in plan.cases_for(4)] == [8, 16]
    assert [c.nbytes for c in plan.cases_for(2)] == [8, 32]
    assert plan.cases_for(3) == []


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (CollectiveCase, {"ranks": 2, "group_size": 2, "operation": "gather", "nbytes": 8}),
        (CollectiveCase, {"ranks": 0, "group_size": 2, "operation": "p2p", "nbytes": 8}),
        (CollectiveCase, {"ranks": 2, "group_size": 2, "operation": "p2p", "nbytes": 0}),
        (
            CollectiveCase,
            {"ranks": 2, "group_size": 2, "operation": "p2p", "nbytes": 8, "colour": 1},
        ),
        (LayerCase, {"ranks": 2, "layer": LAYER, "batch": 0}),
        (TensorsCase, {"ranks": 2, "operation": "pack", "key": "a", "shapes": ()}),
        (Plan, {"cases": [], "budget_seconds": 0}),
        (Plan, {"cases": [], "budget_seconds": float("nan")}),
        (Plan, {"cases": [], "budget_seconds": 1, "launches": 0}),
        (Plan, {"cases": [{"kind": "dance", "ranks": 1}], "budget_seconds": 1}),
    ],
)
def test_what_cannot_be_measured_is_refused(kind: Any, fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        kind.model_validate(fields)


TOLD = {"library": "nccl", "device": "cuda", "algorithm": "tree", "protocol": "simple"}


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"library": "mpi"}, "NCCL is told an algorithm, not mpi"),
        ({"algorithm": "pat"}, "NCCL has no pat/simple for allreduce"),
        ({"algorithm": "nvls", "protocol": "ll128"}, "NCCL has no nvls/ll128 for allreduce"),
        ({"operation": "allgather"}, "NCCL has no tree/simple for allgather"),
        ({"algorithm": ""}, "a protocol is told with an algorithm"),
        ({"algorithm": "nvls", "protocol": "ll"}, "NCCL has no nvls/ll for allreduce"),
        ({"protocol": "ll64"}, "Input should be"),
    ],
)
def test_what_nccl_cannot_be_told_is_refused(fields: dict[str, Any], reason: str) -> None:
    content = {"ranks": 2, "group_size": 2, "operation": "allreduce", "nbytes": 8, **TOLD}
    assert CollectiveCase.model_validate(content).label == (
        "nccl allreduce 8 B on 2 ranks (by tree/simple)"
    )
    with pytest.raises(ValidationError, match=reason):
        CollectiveCase.model_validate(content | fields)


@pytest.mark.parametrize("fields", [{"library": "torch_mpi"}, {"library": "nccl", "cold": True}])
def test_graphs_are_of_warm_calls_of_nccl(fields: dict[str, Any]) -> None:
    content = {"ranks": 2, "group_size": 2, "operation": "allreduce", "nbytes": 8, "device": "cuda"}
    good = CollectiveCase.model_validate(content | {"library": "torch_nccl", "mode": "graph"})
    assert good.label == "torch_nccl allreduce 8 B on 2 ranks (as a graph)"
    assert good.id != good.model_copy(update={"mode": "eager"}).id
    with pytest.raises(
        ValidationError, match="a CUDA graph is of warm calls of nccl or torch_nccl"
    ):
        CollectiveCase.model_validate(content | {"mode": "graph"} | fields)


def test_id_does_not_depend_on_the_order_of_attributes() -> None:
    attributes = {"kernel": (2, 2), "ceil_mode": False, "stride": (2, 2), "padding": (0, 0)}
    ids = [
        LayerCase(
            ranks=1,
            layer=LayerShape.model_validate(
                {
                    "kind": "max_pool",
                    "input_shapes": [[2, 4, 4]],
                    "output_shape": [2, 2, 2],
                    "attributes": dict(items),
                }
            ),
            batch=2,
        ).id
        for items in (attributes.items(), reversed(attributes.items()))
    ]
    assert ids[0] == ids[1]
