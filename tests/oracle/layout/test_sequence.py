"""Sequence parallelism: what is cut, rules against operators that are run, messages, limits."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.helpers.attention import KINDS, TOKENS, WIDTH, block
from tests.helpers.sequence_models import TOKENS as EIGHT
from tests.helpers.sequence_models import Causal, Gpt, Vit
from tests.oracle.layout.test_cuts import BATCH, CPU, taken
from tests.oracle.operator_models import traced
from torch import Tensor, nn
from torch.nn import functional

from calib.foundation.division import Division
from calib.foundation.errors import InputError
from calib.foundation.layers import LayerShape
from calib.foundation.operators import PRIME
from calib.microbench.layers.operators import operator_call, operator_constants, operator_inputs
from calib.oracle.layout.cuts import Cut, Passed, part_of, passed_apart
from calib.oracle.layout.sequence import loss_cut, sequence_parts
from calib.oracle.layout.shards import largest_parts, rank_parameters, why_impossible
from calib.oracle.layout.traffic import layer_flows, messages
from calib.oracle.layout.workload import workload
from calib.oracle.model.spec import ModelSpec
from calib.oracle.trace.tracing import trace

ATTENDING = [name for name in KINDS if name not in ("Mlp", "Gated", "WrittenOut")]
GPT = trace(Gpt(), (EIGHT,), "gpt", "cross_entropy")
VIT = trace(Vit(), (3, 16, 16), "vit", "cross_entropy")


def sequence(p: int, batch: int = 4) -> Division:
    return Division("sequence", p, batch)


def model_of(name: str) -> ModelSpec:
    return trace(block(name)(), (TOKENS, WIDTH), name, "mse")


def named(model: ModelSpec, places: Iterable[int]) -> set[str]:
    return {model.layers[at].name for at in places}


def compare(shape: LayerShape, passed: Passed, parts: int) -> None:
    """The layer on parts of what it reads makes the parts of what it makes of the whole."""
    of, part = shape.operator, part_of(shape, passed, parts)
    assert of is not None and part.operator is not None
    generator = torch.Generator().manual_seed(1)
    inputs = operator_inputs(shape, BATCH, torch.float64, CPU, False, generator)
    held = [torch.rand(size, dtype=torch.float64) for size in shape.parameter_shapes]
    held += operator_constants(of, torch.float64, CPU)
    cuts = passed.beside or (None,) * len(held)
    whole = operator_call(shape, BATCH, CPU)(*inputs, *held)
    for rank in range(parts):
        own = operator_inputs(part, BATCH, torch.float64, CPU, False, generator)
        for mine, all_of_it, cut in zip(own, inputs, passed.inputs, strict=True):
            mine.copy_(taken(all_of_it, cut, parts, rank))  # in its own order in memory
        own += [taken(x, cut, parts, rank) for x, cut in zip(held, cuts, strict=True)]
        sizes = [
            *(part.operator.size(at, size, BATCH) for at, size in enumerate(part.input_shapes)),
            *part.parameter_shapes,
            *(size for size, _ in part.operator.constants),
        ]
        assert [tuple(x.shape) for x in own] == [tuple(size) for size in sizes]
        found = operator_call(part, BATCH, CPU)(*own)
        several = (found, whole) if isinstance(whole, list | tuple) else ([found], [whole])
        for mine, all_of_it, cut in zip(*several, passed.outputs, strict=True):
            torch.testing.assert_close(mine, taken(all_of_it, cut, parts, rank))


def check(model: ModelSpec, parts: int) -> int:
    found, met = sequence_parts(model), 0
    assert found is not None
    for place, passed in found.passed.items():
        shape = model.layers[place].shape
        if shape.operator is not None and shape.name != "dropout":
            compare(shape, passed, parts)
            met += 1
    return met


@pytest.mark.parametrize("name", ATTENDING)
def test_every_way_of_attention(name: str) -> None:
    """Operators on parts, value by value; all of the block but its mean and its head is on parts."""
    model = model_of(name)
    assert check(model, 2) > 4
    found = sequence_parts(model)
    assert found is not None
    whole = named(model, set(range(len(model.layers))) - found.passed.keys())
    makes_positions = {of for of in whole if of.startswith("inner.")}  # of Apart
    assert whole - makes_positions == {"mean", "head", "loss"}


@pytest.mark.parametrize("model", [GPT, VIT], ids=["gpt", "vit"])
def test_a_language_model_and_a_vision_transformer(model: ModelSpec) -> None:
    """With positions in a parameter, and a causal mask in a buffer."""
    assert check(model, 4) > 10


def test_a_block_of_a_transformer_sends_eight_all_to_alls() -> None:
    """Queries, keys, values and what comes of them, there and back; the buffer is a rank's part."""
    p, batch = 4, 4
    part = 4 * batch * EIGHT * WIDTH // p
    switches = [("all_to_all", part, p)] * 8 * 2
    found = [(m.operation, m.nbytes, m.group_size) for m in messages(GPT, sequence(p, batch))]
    assert found == [*switches, ("allreduce", 4 * GPT.parameter_items, p)]
    ways = [flow.direction for flow in layer_flows(GPT, sequence(p))]
    assert ways == ["forward"] * 8 + ["backward"] * 8


def test_whole_layers_read_what_was_joined() -> None:
    """Of the vision transformer the mean: one allgather, of which nothing is sent back."""
    flows = layer_flows(VIT, sequence(2))
    (joined,) = [flow for flow in flows if flow.operation == "allgather"]
    assert (joined.direction, joined.items) == ("forward", 16 * WIDTH)
    assert joined.why == "x of mean" and len(flows) == 9


def test_moves_of_a_language_model() -> None:
    """Its input and the positions are cut; all else behind them is, to the loss of a rank's tokens."""
    found = sequence_parts(GPT)
    assert found is not None
    slices = {move.name: (move.after, move.has_gradient) for move in found.moves if move.is_slice}
    assert slices == {"input": (Cut(1), False), "positions": (Cut(0), True)}
    assert not any(move.is_gather for move in found.moves)
    assert loss_cut(GPT) == Cut(1) and loss_cut(VIT) is None
    whole = named(GPT, set(range(len(GPT.layers))) - found.passed.keys())
    assert whole == {
        "arange",
        "positions",
        "blocks.0.attention.eq",
    }  # which makes a mask of a buffer
    products = {"scaled_dot_product_attention", "matmul", "masked_fill", "softmax"}
    by_heads = {GPT.layers[at].shape.name for at in found.by_heads}
    assert products <= by_heads and "linear" not in by_heads and "layer_norm" not in by_heads


@pytest.mark.parametrize("p", [2, 4])
@pytest.mark.parametrize("model", [GPT, VIT], ids=["gpt", "vit"])
def test_operations_of_products_are_divided_by_p(model: ModelSpec, p: int) -> None:
    """Exactly; every rank has all weights."""
    parts = largest_parts(model, sequence(p))
    for place, part in parts.items():
        whole = model.layers[place].shape
        if whole.is_product:
            assert part.forward_flops(3) * p == whole.forward_flops(3), model.layers[place].name
    assert rank_parameters(model, sequence(p)) == model.parameter_shapes
    assert workload(model, sequence(p)).weights.nbytes == 4 * model.parameter_items


def test_p_divides_the_tokens_and_the_heads() -> None:
    (why,) = why_impossible(GPT, sequence(8))
    assert why.startswith(
        "sequence parallelism of gpt on p = 8: p divides 8 tokens (table) and 4 heads"
    )
    assert why.endswith("so p is at most 4") and not why_impossible(GPT, sequence(4))
    with pytest.raises(InputError, match="at most 4"):
        messages(GPT, sequence(3))


CLASS = trace(Vit(has_class_token=True), (3, 16, 16), "vit", "cross_entropy")


@pytest.mark.parametrize(("p", "each"), [(2, 9), (4, 5)])
def test_a_class_token_makes_an_odd_number_of_tokens(p: int, each: int) -> None:
    """Seventeen: parts of 9 or 5, filled up; in attention all 17 of some heads; 9 p or 5 p are sent."""
    batch, parts = 4, largest_parts(CLASS, sequence(p))
    by_name = {CLASS.layers[at].name: part for at, part in parts.items()}
    assert by_name["block.first"].output_shape == (each, WIDTH)
    assert by_name["block.mlp.0"].forward_flops(3) == 3 * 2 * each * WIDTH * 2 * WIDTH
    (product,) = [
        of for of in parts.values() if of.name in ("softmax", "scaled_dot_product_attention")
    ][:1]
    assert 17 in product.input_shapes[0] and 4 // p in product.input_shapes[0]
    flows = Counter((flow.operation, flow.items) for flow in layer_flows(CLASS, sequence(p)))
    assert flows == {("all_to_all", each * WIDTH): 8, ("allgather", each * p * WIDTH): 1}
    switches = [("all_to_all", 4 * batch * each * WIDTH, p)] * 8
    found = [(m.operation, m.nbytes, m.group_size) for m in messages(CLASS, sequence(p, batch))]
    assert Counter(found[:-1]) == Counter(
        [*switches, ("allgather", 4 * batch * each * p * WIDTH, p)]
    )


def test_p_is_at_most_the_tokens_that_nothing_divides() -> None:
    (why,) = why_impossible(CLASS, sequence(8))
    assert "p is at most 17 tokens (add) and divides 4 heads" in why and why.endswith("at most 4")
    assert not why_impossible(CLASS, sequence(2)) and not why_impossible(CLASS, sequence(4))
    assert why_impossible(CLASS, sequence(3))  # heads


@pytest.mark.parametrize("name", ["next", "unet", "scripted"])
def test_a_model_without_attention(name: str) -> None:
    (why,) = why_impossible(traced(name), sequence(2))
    assert "has nothing that sequence parallelism could divide: no attention" in why
    assert not why_impossible(traced(name), sequence(1))


def test_of_images_nothing_is_cut() -> None:
    """A convolution passes no part on, and heads of one token each are none."""
    assert sequence_parts(trace(nn.Conv2d(3, 4, 3), (3, 8, 8), "conv", "mse")) is None


class Scaled(nn.Module):
    """Grouped heads, which the products repeat themselves, and a bias of positions for each head."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.kv = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.bias = nn.Parameter(torch.randn(4, EIGHT, EIGHT))

    def forward(self, x: Tensor) -> Tensor:
        q = self.q(x).view(-1, EIGHT, 4, 4).transpose(1, 2)
        k, v = self.kv(x).view(-1, EIGHT, 2, 2, 4).permute(2, 0, 3, 1, 4)
        bias = self.bias.unsqueeze(0)
        y = functional.scaled_dot_product_attention(q, k, v, attn_mask=bias, enable_gqa=True)
        made: Tensor = self.out(y.transpose(1, 2).flatten(2))
        return made


def test_grouped_heads_and_a_bias_of_each() -> None:
    """Two heads of keys and values for four of queries; the whole bias is cut by heads."""
    model = trace(Scaled(), (EIGHT, WIDTH), "grouped", "mse")
    found = sequence_parts(model)
    assert found is not None
    (bias,) = [move for move in found.moves if move.is_slice and move.name != "input"]
    assert bias.after == Cut(1) and bias.has_gradient
    (why,) = why_impossible(model, sequence(4, 4))
    assert "and 2 heads (scaled_dot_product_attention)" in why and why.endswith("at most 2")


class Rows(nn.Module):
    """As GPT-2 in transformers: rows of all samples by a matrix of weights, with a bias or without."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(WIDTH, 48)), nn.Parameter(torch.randn(48))
        self.out = nn.Parameter(torch.randn(WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        packed = torch.addmm(self.bias, x.view(-1, WIDTH), self.weight).view(-1, EIGHT, 48)
        q, k, v = (of.view(-1, EIGHT, 4, 4).transpose(1, 2) for of in packed.split(WIDTH, 2))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return y.transpose(1, 2).reshape(-1, EIGHT, WIDTH) @ self.out


def test_rows_by_matrices_of_weights() -> None:
    """Their rows are those of all samples: blocks that are each cut."""
    model = trace(Rows(), (EIGHT, WIDTH), "rows", "mse")
    found = sequence_parts(model)
    assert found is not None and check(model, 2) > 8
    whole = [of.name for at, of in enumerate(model.layers) if at not in found.passed]
    assert whole == []
    (product,) = [at for at, of in enumerate(model.layers) if of.shape.name == "addmm"]
    assert found.passed[product].inputs == (Cut(0, PRIME),)


def test_what_passes_no_part_on() -> None:
    """A product over what is cut, a norm over it, a table of its own for each."""
    by_name = {layer.name: layer.shape for layer in model_of("Chunked").layers}
    assert passed_apart(by_name["first"], (Cut(2),)) is None
    assert passed_apart(by_name["norm"], (Cut(2),)) is None
    assert passed_apart(by_name["mean"], (Cut(1),)) is None
    assert passed_apart(by_name["first"], (Cut(1),)) is not None
    assert passed_apart(by_name["norm"], (Cut(1),)) is not None


@settings(max_examples=20, deadline=None)
@given(tokens=st.integers(2, 12), p=st.integers(2, 6))
def test_any_number_of_tokens(tokens: int, p: int) -> None:
    model = trace(Causal(), (tokens, WIDTH), "causal", "mse")
    found = why_impossible(model, sequence(p))
    assert bool(found) == (math.gcd(tokens, 4) % p > 0)
    if found:
        assert f"p divides {tokens} tokens" in found[0]
