"""How models of operators are divided: what crosses between stages, what is split, what is refused."""

from __future__ import annotations

import pytest
import torch
from tests.oracle.operator_models import MODELS, traced
from torch import Tensor, nn
from torch.nn import functional

from calib.foundation.division import STRATEGIES, Division
from calib.oracle.layout.shards import rank_parameters, rank_shards, split_layers, why_impossible
from calib.oracle.layout.spatial import is_cut, spatial_part
from calib.oracle.layout.stages import (
    crossings,
    sent_tensors,
    stage_borders,
    tensor_graph,
    ties,
    weight_sizes,
    weights_of,
)
from calib.oracle.layout.traffic import messages
from calib.oracle.memory.live_bytes import live_bytes
from calib.oracle.trace.profiled import profile
from calib.oracle.trace.tracing import trace

VIT = traced("vit")


def place(name: str) -> int:
    return tensor_graph(VIT).place[name]


def test_outputs_cross_by_themselves() -> None:
    """Behind the chunk q, k and v and the sum cross; behind a view of q the tensor that it shows."""
    border = place("attention.chunk") + 1
    assert crossings(VIT)[border].forward == (5 * 16,) * 4
    names = tensor_graph(VIT).borders[place("attention.transpose") + 1]
    assert names == ["add", "attention.chunk", "attention.chunk[1]", "attention.chunk[2]"]
    behind = place("attention.scaled_dot_product_attention") + 1
    assert crossings(VIT)[behind].forward == (5 * 16,) * 2  # the sum, and what attention makes
    assert crossings(VIT)[behind].backward == (5 * 16,) * 2


def test_indices_are_as_wide_as_they_are_and_constants_are_not_sent() -> None:
    assert "arange" not in sent_tensors(traced("language"))
    model = trace(Nearest(), (6, 3), "nearest", "cross_entropy")
    found = sent_tensors(model)
    assert {"zeros", "add"}.isdisjoint(found) and "add#2" in found
    # 6 numbers of 8 bytes are 12 of float32
    assert (found["argmax"].items, found["argmax"].gradient) == (12, False)


@pytest.mark.parametrize("name", MODELS)
def test_every_crossing_is_the_edges_over_its_border(name: str) -> None:
    """Against the edges of the graph, looked through free views."""
    model = traced(name)
    made = {out: i for i, layer in enumerate(model.layers) for out in layer.outputs}
    shown = {
        layer.name: layer.inputs[0]
        for layer in model.layers
        if layer.shape.is_free and layer.inputs
    }

    def behind(source: str) -> str:
        of = shown.get(source, "input")
        return source if of == "input" else behind(of)

    for border in range(1, len(model.layers)):
        read = {behind(source) for layer in model.layers[border:] for source in layer.inputs}
        over = [of for of in read if made.get(of, border) < border]
        sent = [sent_tensors(model)[of] for of in over if of in sent_tensors(model)]
        found = crossings(model)[border]
        assert sorted(found.forward) == sorted(of.items for of in sent)
        assert sorted(found.backward) == sorted(of.items for of in sent if of.gradient)


def test_stages_that_share_a_weight_hold_it_and_sum_its_gradient() -> None:
    model = traced("language")
    table = 4 * 20 * 16  # bytes
    for p, boundaries, stages in ((2, (3,), (0, 1)), (3, (3, 6), (0, 2)), (2, (1,), ())):
        pipeline = Division("pipeline", p, 4, segments=2, boundaries=boundaries)
        assert not why_impossible(model, pipeline)
        assert [of.stages for of in ties(model, boundaries)] == ([stages] if stages else [])
        borders = stage_borders(model, boundaries)
        sizes = weight_sizes(model, borders)
        assert sum(nbytes for _, nbytes in sizes) == 4 * model.parameter_items + (
            table if stages else 0
        )
        assert sizes == [
            (of.ntensors, of.nbytes) for of in (weights_of(model, a, b) for a, b in borders)
        ]
        sums = [of for of in messages(model, pipeline) if of.operation == "allreduce"]
        assert [(of.nbytes, of.group_size, of.stride) for of in sums] == (
            [(table, 2, p - 1)] if stages else []
        )
        assert live_bytes(model, pipeline, "sgd") > 0


def test_operators_and_shared_weights_stay_whole() -> None:
    division = Division("filter", 2, 4)
    assert [layer.name for layer in split_layers(VIT, division)] == [
        "patch",
        "attention.qkv",
        "attention.out",
        "mlp.0",
        "mlp.3",
    ]
    language = traced("language")
    assert "head" not in [layer.name for layer in split_layers(language, division)]
    held = rank_parameters(language, division)
    assert held.count((20, 16)) == 1 and (24, 16) in held  # the table; half of q, k and v


def test_an_image_is_cut_up_to_the_first_operator() -> None:
    found = split_layers(traced("next"), Division("spatial", 2, 4, grid=(2,)))
    assert [layer.name for layer in found] == ["stem", "depthwise"]
    (why,) = why_impossible(traced("language"), Division("spatial", 2, 4, grid=(2,)))
    assert "arange" in why and "aten.arange.default needs the whole image" in why


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("strategy", ["data", "spatial", "filter", "channel", "pipeline"])
def test_a_rank_of_any_possible_division_has_messages_and_bytes(name: str, strategy: str) -> None:
    """Two ranks hold no more than one does, but for copies and buffers of what they exchange."""
    model = traced(name)
    grid = (2,) if strategy == "spatial" else ()
    division = Division(strategy, 2, 4, grid=grid, segments=2 if strategy == "pipeline" else 1)
    if why_impossible(model, division):
        return
    assert messages(model, division)
    found = live_bytes(model, division, "sgd")
    assert 0 < found <= 3 * live_bytes(model, Division("serial", 1, 4), "sgd")


def test_a_profiled_model_has_no_parts() -> None:
    """One layer, whatever is in it: only strategies that run it whole are possible."""
    module = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 3))
    model = profile(module, (6,), "one", "mse")
    for strategy, traits in STRATEGIES.items():
        p = 4 if traits.parallel else 1
        inner = {"inner": 2} if traits.hybrid else {}
        why = why_impossible(model, Division(strategy, p, 8, **inner))
        assert bool(why) != traits.whole, strategy
        assert traits.whole or "profiled as one layer" in why[0]


class Nearest(nn.Module):
    """Indices that a sample gives, and a state of zeros for each sample."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(3, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        state = torch.zeros(len(x), 6, 4) + 1.0
        made: Tensor = self.head((self.table(x.argmax(-1)) + state).mean(1))
        return made


class Gated(nn.Module):
    """Pointwise operators between convolutions; a gate of another shape ends the split."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        y = functional.silu(self.first(x))
        y = functional.leaky_relu(self.second(y), 0.1, inplace=True) * torch.tanh(y) + 1.0
        made: Tensor = (y * y.mean((2, 3), keepdim=True)).mean((2, 3))
        return made


def test_pointwise_operators_are_cut_with_the_image() -> None:
    model = trace(Gated(), (3, 8, 8), "gated", "cross_entropy")
    division = Division("spatial", 2, 4, grid=(2,))
    names = [layer.name for layer in split_layers(model, division)]
    assert names == ["first", "silu", "second", "leaky_relu", "tanh", "mul", "add"]
    for shard in rank_shards(model, division):
        if shard.name in names:
            assert shard.layer.output_shape[1:] == (4, 8)
    whole = next(layer.shape for layer in model.layers if layer.name == "silu")
    part = spatial_part(whole, (4, 8))
    assert part.operator is not None and whole.operator is not None
    assert part.operator.saved.backward[0] == whole.operator.saved.backward[0] / 2
    assert part.operator.key == whole.operator.key
    sent = [(of.operation, of.why) for of in messages(model, division)]
    assert ("allgather", "the split ends after add") in sent or any(
        operation == "allgather" and "add" in why for operation, why in sent
    )


def test_what_is_no_map_of_one_item_is_not_cut() -> None:
    model = trace(Gated(), (3, 8, 8), "gated", "cross_entropy")
    shapes = {layer.name: layer.shape for layer in model.layers}
    assert not is_cut(shapes["mul#2"]) and is_cut(shapes["mul"])  # of unequal shapes
    assert not is_cut(shapes["mean"])


class Twice(nn.Module):
    """One convolution that runs twice."""

    def __init__(self, first: nn.Module) -> None:
        super().__init__()
        self.first, self.again = first, nn.Conv2d(3, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        y = functional.silu(self.again(self.first(x)))
        made: Tensor = self.again(y).mean((2, 3))
        return made


def test_a_split_ends_before_shared_weights() -> None:
    """Gradients of split layers are summed over the parts, and those of whole ones are not."""
    division = Division("spatial", 2, 4, grid=(2,))
    first = nn.Sequential(nn.Conv2d(3, 3, 1), nn.SiLU())
    model = trace(Twice(first), (3, 8, 8), "twice", "cross_entropy")
    assert [layer.name for layer in split_layers(model, division)] == ["first.0", "first.1"]
    model = trace(Twice(nn.Identity()), (3, 8, 8), "twice", "cross_entropy")
    (why,) = why_impossible(model, division)
    assert "again, cannot be split: it shares weights with another layer" in why
