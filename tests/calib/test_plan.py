"""A plan measures all that serial and data-parallel training of its models will be asked for."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calib.plan import FULL, QUICK, Effort, batch_of, make_plan, size_grid
from foundation.errors import InputError
from microbench.cases import CollectiveCase, InPlaceCase, LayerCase, Plan, TensorsCase
from oracle.model import ModelSpec, tensors_key
from tests.oracle.handmade import mlp
from training.models import entry
from training.models.specs import spec

MINIS = ("vgg16-mini", "resnet50-mini", "cosmoflow-mini")
SIZES = (1, 2, 4)


@pytest.fixture(scope="module")
def pairs() -> list[tuple[ModelSpec, int]]:
    return [(spec(name), entry(name).batch_per_pe) for name in MINIS]


@pytest.fixture(scope="module", params=[FULL, QUICK], ids=["full", "quick"])
def plan(request: pytest.FixtureRequest, pairs: list[tuple[ModelSpec, int]]) -> Plan:
    return make_plan(pairs, SIZES, request.param, seed=3)


@given(factor=st.integers(2, 1000))
def test_grid(factor: int) -> None:
    """8 B to 64 MiB, both included, geometric but for the last step; whole float32 items."""
    grid = size_grid(factor)
    assert (grid[0], grid[-1]) == (8, 64 * 2**20)
    assert all(b == factor * a for a, b in pairwise(grid[:-1]))
    assert grid[-2] < grid[-1] <= factor * grid[-2]
    assert all(nbytes % 4 == 0 for nbytes in grid)


def test_every_layer_of_every_model_is_measured_at_every_size(
    plan: Plan, pairs: list[tuple[ModelSpec, int]]
) -> None:
    for size in SIZES:
        keys = {case.key for case in plan.cases_for(size) if isinstance(case, LayerCase)}
        needed = {
            layer.shape.key(batch, "float32", layer.needs_input_grad)
            for model, batch in pairs
            for layer in model.layers
            if layer.shape.kind != "flatten"
        }
        assert keys == needed


def test_collectives(plan: Plan, pairs: list[tuple[ModelSpec, int]]) -> None:
    """Both operations over the grid, allreduce also at the models' own gradient sizes."""
    gradients = {4 * model.parameter_items for model, _ in pairs}
    for size in SIZES:
        cases = [case for case in plan.cases_for(size) if isinstance(case, CollectiveCase)]
        if size == 1:
            assert cases == []
            continue
        sizes = {
            operation: {case.nbytes for case in cases if case.operation == operation}
            for operation in ("allreduce", "p2p")
        }
        assert {8, 64 * 2**20} <= sizes["p2p"]
        assert sizes["allreduce"] == sizes["p2p"] | gradients
        grid = sorted(sizes["p2p"])
        ratios = {b / a for a, b in pairwise(grid)}
        assert max(ratios) <= (2 if plan.budget_seconds == FULL.budget_s else 8)


def test_tensor_lists(plan: Plan, pairs: list[tuple[ModelSpec, int]]) -> None:
    """The update of every model at every size; its packing where there is somebody to send to."""
    for size in SIZES:
        cases = [case for case in plan.cases_for(size) if isinstance(case, TensorsCase)]
        for model, _ in pairs:
            key = tensors_key(model.parameter_shapes)
            mine = {case.operation: case for case in cases if case.key == key}
            assert set(mine) == ({"update"} if size == 1 else {"update", "pack"})
            assert mine["update"].shapes == model.parameter_shapes
        assert all(case.key == tensors_key(case.shapes) for case in cases)


def test_models_in_place(plan: Plan, pairs: list[tuple[ModelSpec, int]]) -> None:
    """Its parts are what the other cases measure: one layer key for each layer that runs."""
    for size in SIZES:
        cases = plan.cases_for(size)
        keys = {case.key for case in cases if isinstance(case, LayerCase | TensorsCase)}
        found = {case.model: case for case in cases if isinstance(case, InPlaceCase)}
        assert set(found) == set(MINIS)
        for model, batch in pairs:
            case = found[model.name]
            running = [layer for layer in model.layers if layer.shape.kind != "flatten"]
            assert len(case.layer_keys) == len(running)
            assert {*case.layer_keys, case.tensors_key} <= keys
            assert case.gradient_bytes == 4 * model.parameter_items
            items = sum(layer.shape.output_items for layer in running)
            assert case.activation_bytes == 4 * batch * items


def test_no_case_twice(plan: Plan) -> None:
    """Equal work has one id, and an id is one work."""
    assert max(Counter(case.id for case in plan.cases).values()) == 1
    work = [case.model_copy(update={"purpose": ""}) for case in plan.cases]
    assert len(set(map(str, work))) == len(work)


def test_models_that_share_layers_share_cases() -> None:
    """Two nets, the second is the first under another name: no more layers to measure."""
    effort = Effort(budget_s=1.0, launches=1, grid_factor=8, iterations=1)
    one = make_plan([(mlp([12, 8, 3], "a"), 4)], [1], effort)
    two = make_plan([(mlp([12, 8, 3], "a"), 4), (mlp([12, 8, 3], "b"), 4)], [1], effort)
    assert [case.id for case in two.cases] == [case.id for case in one.cases]
    assert one.cases, "nothing to compare"


def test_effort_and_seed_are_in_the_plan(pairs: list[tuple[ModelSpec, int]]) -> None:
    effort = replace(QUICK, budget_s=7.5, launches=3)
    plan = make_plan(pairs[:1], [2], effort, seed=9)
    assert (plan.budget_seconds, plan.launches, plan.seed, plan.sizes) == (7.5, 3, 9, [2])
    assert plan == make_plan(pairs[:1], [2], effort, seed=9)
    assert Plan.model_validate_json(plan.model_dump_json()) == plan


def test_batch_of() -> None:
    assert batch_of("vgg16-mini", 3) == 3
    assert batch_of("some/model.json", 3) == 3
    assert batch_of("vgg16-mini", None) == entry("vgg16-mini").batch_per_pe
    with pytest.raises(InputError, match="give --batch-per-pe"):
        batch_of("some/model.json", None)
