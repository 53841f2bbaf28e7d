"""Regions of tensor parallelism: what they are, what a rank runs and sends, when they are impossible."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.helpers.attention import HEADS, KINDS, TOKENS, WIDTH, block
from tests.oracle.operator_models import traced
from torch import nn

from calib.foundation.division import Division
from calib.foundation.errors import InputError
from calib.oracle.layout.regions import regions
from calib.oracle.layout.shards import (
    largest_parts,
    rank_parameters,
    rank_shards,
    split_layers,
    why_impossible,
)
from calib.oracle.layout.traffic import layer_flows, messages
from calib.oracle.layout.workload import workload
from calib.oracle.model.spec import ModelSpec
from calib.oracle.trace.tracing import trace


def tensor(p: int, batch: int = 4) -> Division:
    return Division("tensor", p, batch)


def model_of(name: str) -> ModelSpec:
    return trace(block(name)(), (TOKENS, WIDTH), name, "mse")


def mlp(*widths: int) -> ModelSpec:
    layers: list[nn.Module] = []
    for a, b in pairwise(widths):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return trace(nn.Sequential(*layers[:-1]), (widths[0],), "mlp", "mse")


def test_a_block_of_a_transformer_sends_four_tensors() -> None:
    """Megatron's: batch x tokens x width, two in the forward and two in the backward."""
    model, batch = traced("vit"), 4
    found = messages(model, tensor(2, batch))
    tokens, width = 5, 16
    assert [(m.operation, m.nbytes, m.group_size, m.why) for m in found] == [
        ("allreduce", 4 * batch * tokens * width, 2, f"{what}")
        for what in ("y of attention.out", "y of mlp.3", "dL/dx of mlp.0", "dL/dx of attention.qkv")
    ]
    half = messages(model.run_as("bfloat16-mixed"), tensor(2, batch))
    assert [m.nbytes for m in half] == [m.nbytes // 2 for m in found]


def test_what_is_split_of_a_vision_transformer() -> None:
    model = traced("vit")
    attention, feed_forward = regions(model)
    names = [layer.name for layer in model.layers]

    def named(places: object) -> list[str]:
        return [names[place] for place in places]  # type: ignore[attr-defined]

    assert named(attention.columns) == ["attention.qkv"] and named(attention.rows) == [
        "attention.out"
    ]
    assert named(feed_forward.columns) == ["mlp.0"] and named(feed_forward.rows) == ["mlp.3"]
    assert named(feed_forward.inside) == ["mlp.1", "mlp.2"]
    whole = {"patch", "token", "positions", "first", "second", "add", "add_1", "head", "loss"}
    assert whole.isdisjoint(layer.name for layer in split_layers(model, tensor(2)))


@pytest.mark.parametrize("p", [2, 4])
@pytest.mark.parametrize("name", ["vit", "language"])
def test_operations_of_split_layers_are_divided_by_p(name: str, p: int) -> None:
    """Exactly, and so are weights: but for the biases of the layers that end a region."""
    model = traced(name)
    parts = largest_parts(model, tensor(p))
    for place, part in parts.items():
        whole = model.layers[place].shape
        assert part.forward_flops(3) * p == whole.forward_flops(3), model.layers[place].name
    rows = [at for region in regions(model) for at in region.rows]
    biases = sum(model.layers[at].shape.parameter_shapes[1][0] for at in rows)
    split = sum(model.layers[at].own_parameter_items for at in parts) - biases
    held = sum(math.prod(shape) for shape in rank_parameters(model, tensor(p)))
    assert held == model.parameter_items - split + split // p
    shards = {shard.name: shard for shard in rank_shards(model, tensor(p))}
    assert shards["attention.qkv"].layer.parameter_shapes == ((48 // p, 16), (48 // p,))
    assert shards["attention.out"].layer.parameter_shapes == ((16, 16 // p),)
    assert shards["attention.out"].split and not shards["loss"].split


def test_equal_layers_in_different_roles_have_parts_of_their_own() -> None:
    """One is cut by outputs, another by inputs, the third is whole."""
    model = mlp(8, 8, 8, 8)
    work = workload(model, tensor(2))
    pieces = [work.pieces[at].shape for at in work.index]
    assert [of.parameter_shapes for of in pieces if of.kind == "linear"] == [
        ((4, 8), (4,)),
        ((8, 4),),
        ((8, 8), (8,)),
    ]
    assert work.split == (True, True, True, False, False, False)
    assert [flow.direction for flow in layer_flows(model, tensor(2))] == ["forward"]


@pytest.mark.parametrize("name", KINDS)
def test_one_message_each_way_wherever_a_layer_is_written(name: str) -> None:
    """Once for q, k and v, and for all that reads the same; two for what reads two tensors."""
    flows = layer_flows(model_of(name), tensor(2))
    ways = [flow.direction for flow in flows]
    rows, entries = (2, 1) if name == "Parallel" else (1, 2) if name == "Cross" else (1, 1)
    assert ways == ["forward"] * rows + ["backward"] * entries
    assert {(flow.operation, flow.items) for flow in flows} == {("allreduce", TOKENS * WIDTH)}


def test_weights_of_products_that_are_written_out() -> None:
    """(inputs, outputs): columns are cut along their last axis, rows along their first."""
    model, p = model_of("Gpt2"), 2
    parts = {model.layers[at].name: part for at, part in largest_parts(model, tensor(p)).items()}
    first, last = parts["inner.qkv.addmm"], parts["inner.out.addmm"]
    assert first.parameter_shapes == ((3 * WIDTH // p,), (WIDTH, 3 * WIDTH // p))
    assert last.parameter_shapes == ((WIDTH // p, WIDTH),)
    assert last.operator is not None and last.operator.base == "mm"
    assert last.operator.positional == [{"input": 0}, {"parameter": 0}]
    assert first.operator is not None and first.operator.base == "addmm"
    inner = (WIDTH + 1) * 3 * WIDTH + WIDTH * WIDTH
    held = sum(math.prod(shape) for shape in rank_parameters(model, tensor(p)))
    assert held == model.parameter_items - inner + inner // p
    assert (WIDTH,) in rank_parameters(model, tensor(p))


class Products(nn.Module):
    """A product and its bias, each times a factor."""

    def __init__(self, **factors: float) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(8, 6)), nn.Parameter(torch.ones(6))
        self.last, self.factors = nn.Linear(6, 3), factors

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.last(torch.addmm(self.bias, x, self.weight, **self.factors))
        return made


def test_a_scaled_product_is_no_linear_layer() -> None:
    assert len(regions(trace(Products(), (8,), "plain", "mse"))) == 1
    assert not regions(trace(Products(alpha=0.5), (8,), "scaled", "mse"))


@settings(max_examples=30, deadline=None)
@given(hidden=st.integers(1, 24), p=st.integers(2, 6))
def test_p_divides_the_features(hidden: int, p: int) -> None:
    found = why_impossible(mlp(4, hidden, 3), tensor(p))
    assert bool(found) == (hidden % p > 0)
    if found:
        assert f"has {hidden} heads or features, so p is at most {hidden} and" in found[0]


def test_p_divides_the_heads() -> None:
    model = traced("vit")
    (why,) = why_impossible(model, tensor(3))
    assert "attention.view has 4 heads or features, so p is at most 4 and divides 4" in why
    assert why_impossible(model, tensor(8)) and not why_impossible(model, tensor(HEADS))
    (why,) = why_impossible(model_of("Grouped"), tensor(4))
    assert "so p is at most 2 and divides 2" in why
    with pytest.raises(InputError, match="divides 4"):
        messages(model, tensor(3))


@pytest.mark.parametrize("model", [mlp(8, 8), traced("unet"), traced("scripted")])
def test_a_model_without_a_region(model: ModelSpec) -> None:
    (why,) = why_impossible(model, tensor(2))
    assert why.startswith(f"{model.name} has nothing that tensor parallelism could divide")
    assert not why_impossible(model, tensor(1))
