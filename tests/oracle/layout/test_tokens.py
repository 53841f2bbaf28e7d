"""What sequence parallelism cuts between regions: layers, messages, limits."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.helpers.attention import TOKENS, WIDTH, block
from tests.helpers.token_models import Gated, Gpt, OneRegion, Pooled
from tests.oracle.handmade import mlp
from tests.oracle.operator_models import traced
from torch import Tensor

from calib.foundation.division import Division
from calib.foundation.errors import InputError
from calib.foundation.operators import PRIME
from calib.oracle.layout.cuts import Cut
from calib.oracle.layout.region_tokens import BEGIN, token_cut, token_parts
from calib.oracle.layout.shards import (
    largest_parts,
    partial_parameters,
    rank_parameters,
    why_impossible,
)
from calib.oracle.layout.tokens import TokenParts
from calib.oracle.layout.traffic import layer_flows, messages
from calib.oracle.model.spec import ModelSpec
from calib.oracle.trace.tracing import trace

BATCH = 4


def cut(p: int) -> Division:
    return Division("tensor", p, BATCH, sequence_parallel=True)


def sliced(found: TokenParts) -> list[str]:
    return [move.name for move in found.moves if move.is_slice]


def ends(found: TokenParts) -> list[str]:
    """What whole layers read of what is cut."""
    return [move.name for move in found.moves if move.is_gather and move.way != BEGIN]


@pytest.fixture(scope="module")
def pooled() -> ModelSpec:
    return trace(Pooled(), (3, 8, 8), "pooled", "cross_entropy")


@pytest.fixture(scope="module")
def gpt() -> ModelSpec:
    return trace(Gpt(), (8,), "gpt", "cross_entropy")


def test_norms_and_residuals_run_on_parts(pooled: ModelSpec) -> None:
    """From the sum of patches and positions to the mean over tokens."""
    found, names = token_parts(pooled), [layer.name for layer in pooled.layers]
    assert [names[at] for at in found.passed] == ["first", "add#2", "second", "add#3", "last"]
    assert [names[at] for at in found.scattered] == ["attention.out", "mlp.3"]
    entries = [move for move in found.moves if move.way == BEGIN]
    assert [names[at] for move in entries for at in move.readers] == ["attention.qkv", "mlp.0"]
    assert [move.name for move in entries] == ["first", "second"]
    assert sliced(found) == ["add"] and ends(found) == ["last"]
    assert {move.before or move.after for move in found.moves} == {Cut(1)}
    assert {move.shape(None, 2) for move in found.moves} == {(1, 4, WIDTH)}


def test_dropout_scales_and_a_norm_written_out_run_on_parts(gpt: ModelSpec) -> None:
    """All from the first dropout to the tied head, whose layers before it are whole."""
    found, layers = token_parts(gpt), gpt.layers
    first = next(at for at, layer in enumerate(layers) if layer.name == "norms.0")
    whole = {layers[at].name for at in range(first, len(layers))}
    whole -= {layers[at].name for at in found.passed}
    whole = {name for name in whole if not name.startswith(("attentions", "mlps"))}
    assert whole == {"head", "transpose", "loss"}
    assert sliced(found) == ["drop"] and len(ends(found)) == 1
    rows = [move.after for move in found.scattered.values()]
    assert rows == [Cut(1), Cut(1), Cut(0, PRIME), Cut(1)]  # the third is (samples * tokens, width)


@pytest.mark.parametrize("p", [2, 4])
def test_parts_are_a_pth(gpt: ModelSpec, p: int) -> None:
    """Of tokens, and of operations; weights are as without, and whole."""
    parts = largest_parts(gpt, cut(p))
    for at in token_parts(gpt).passed:
        whole, part = gpt.layers[at].shape, parts[at]
        assert part.output_items * p == whole.output_items
        assert part.parameter_shapes == whole.parameter_shapes
        assert part.forward_flops(3) * p == whole.forward_flops(3)
    plain = Division("tensor", p, BATCH)
    assert rank_parameters(gpt, cut(p)) == rank_parameters(gpt, plain)
    # 4 norms, 4 biases of last layers, 2 scales, 1 gain
    assert sum(map(math.prod, partial_parameters(gpt, cut(p)))) == (8 + 4 + 2 + 1) * WIDTH
    assert partial_parameters(gpt, plain) == ()


def test_an_allreduce_becomes_a_reduce_scatter_and_an_allgather(gpt: ModelSpec) -> None:
    """Four regions; and what is sliced at first, and gathered at last. Then gradients of tokens."""
    tensor = 4 * BATCH * 8 * WIDTH
    sent = messages(gpt, cut(2))
    assert {message.nbytes for message in sent[:-1]} == {tensor}
    ways = Counter((flow.direction, flow.operation) for flow in layer_flows(gpt, cut(2)))
    assert ways == {
        ("forward", "reduce_scatter"): 4,
        ("forward", "allgather"): 4 + 1,
        ("backward", "reduce_scatter"): 4,
        ("backward", "allgather"): 4 + 1,
    }
    gradients = sent[-1]
    assert (gradients.operation, gradients.group_size) == ("allreduce", 2)
    assert gradients.nbytes == 4 * 15 * WIDTH
    assert Counter(m.operation for m in messages(gpt, Division("tensor", 2, BATCH))) == {
        "allreduce": 8
    }


def test_the_models_input_is_sliced() -> None:
    """And gathered for the region that begins with it; a head with weights of its own stays whole."""
    model = trace(OneRegion(), (6, WIDTH), "one", "mse")
    assert sliced(token_parts(model)) == ["input"] and ends(token_parts(model)) == ["norm"]
    flows = Counter((flow.operation, flow.direction) for flow in layer_flows(model, cut(2)))
    assert flows == {
        ("reduce_scatter", "forward"): 1,
        ("allgather", "forward"): 2,
        ("allgather", "backward"): 1,
    }


class Twice(OneRegion):
    """One norm, used before and after."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x)
        return super().forward(x)


def test_shared_weights_stay_whole() -> None:
    model = trace(Twice(), (6, WIDTH), "twice", "mse")
    parts = {model.layers[at].name for at in token_parts(model).passed}
    assert parts == {"add"}


def test_a_whole_tensor_with_a_gradient_stops_parts() -> None:
    """A gate of all tokens, and the view of a weight: the sum behind them is whole."""
    model = trace(Gated(), (6, WIDTH), "gated", "mse")
    parts = token_parts(model)
    assert not parts.passed and ends(parts) == ["down"] and not sliced(parts)


def test_p_divides_the_tokens(gpt: ModelSpec) -> None:
    assert not why_impossible(gpt, cut(2)) and not why_impossible(gpt, cut(4))
    six = trace(block("Chunked")(), (TOKENS, WIDTH), "six", "mse")
    assert not why_impossible(six, cut(2)) and not why_impossible(six, cut(4))


def test_a_class_token_fills_up_the_last_parts() -> None:
    """Of 5 tokens a rank of 2 has 3, and 6 are sent; of 3 tokens there are no 4 parts."""
    model = traced("vit")  # 4 patches and a class token
    parts = {model.layers[at].name: part for at, part in largest_parts(model, cut(2)).items()}
    assert parts["first"].output_shape == (3, WIDTH)
    flows = layer_flows(model, cut(2))
    assert {flow.items for flow in flows} == {6 * WIDTH}
    assert {m.nbytes for m in messages(model, cut(2))[:-1]} == {4 * BATCH * 6 * WIDTH}
    few = trace(OneRegion(), (3, WIDTH), "few", "mse")
    assert not why_impossible(few, cut(2))
    with pytest.raises(InputError, match=r"add has 3 tokens, so p is at most 3$"):
        messages(few, cut(4))


class Images(OneRegion):
    """Rows of an image, which are taken apart: more tokens behind, of which no part is filled up."""

    def forward(self, x: Tensor) -> Tensor:
        x = (x + self.down(self.up(x).relu())).flatten(1, 2)
        made: Tensor = self.head(self.norm(x))
        return made


def test_p_divides_tokens_that_become_others() -> None:
    model = trace(Images(), (6, 2, WIDTH), "images", "mse")
    assert not why_impossible(model, cut(2))
    (why,) = why_impossible(model, cut(4))
    assert "add has 6 tokens, so p is at most 6 and divides 6" in why


def test_a_model_without_tokens() -> None:
    (why,) = why_impossible(mlp([8] * 3), cut(2))
    assert why == (
        "sequence parallelism of hand: no region ends with a tensor that has tokens beside samples and "
        "features"
    )
    assert not why_impossible(mlp([8] * 3), cut(1))


def test_other_strategies_have_none() -> None:
    faults = Division("data", 2, BATCH, sequence_parallel=True).faults
    assert faults == ["data parallelism has no sequence parallelism"]
    assert cut(2).words == "tensor, sequence parallel" and cut(2).slug == "tensor-sequence"


@given(st.integers(2, 9), st.integers(2, 9), st.integers(2, 9))
def test_where_tokens_are(tokens: int, more: int, width: int) -> None:
    """The first axis beside samples and features, also where samples are not the first."""
    assert token_cut((PRIME, tokens, width)) == token_cut((PRIME, tokens, more, width)) == Cut(1)
    assert token_cut((PRIME * tokens, width)) == Cut(0, PRIME)
    assert token_cut((tokens, PRIME, width)) == Cut(0)
    assert token_cut((PRIME, 1, tokens, width)) == Cut(2)
    assert token_cut((PRIME, width)) is None and token_cut((PRIME, 1, width)) is None
