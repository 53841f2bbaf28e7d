"""How models of operators are divided: what crosses between stages, what is split, what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.oracle.operator_models import MODELS, traced
from torch import nn

from calib.foundation.division import STRATEGIES, Division
from calib.oracle.layout.shards import rank_parameters, split_layers, why_impossible
from calib.oracle.layout.stages import crossings, sent_tensors, tensor_graph, weights_of
from calib.oracle.layout.traffic import messages
from calib.oracle.memory.live_bytes import live_bytes
from calib.oracle.trace.profiled import profile

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
    language = traced("language")
    assert "arange" not in sent_tensors(language)
    of = language.layers[0].shape.operator
    assert of is not None
    widened = of.model_copy(update={"axes": (None,)})  # as if each sample had its own
    shape = language.layers[0].shape.model_copy(update={"operator": widened})
    first = language.layers[0].model_copy(update={"shape": shape})
    # 6 numbers of 8 bytes are 12 of float32
    found = sent_tensors(language.model_copy(update={"layers": (first, *language.layers[1:])}))
    assert (found["arange"].items, found["arange"].gradient) == (12, False)


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


def test_layers_that_share_weights_are_in_one_stage() -> None:
    model = traced("language")
    pipeline = Division("pipeline", 2, 4, segments=2)
    (why,) = why_impossible(model, pipeline)
    assert "table and head share weights" in why
    assert why_impossible(model, replace(pipeline, boundaries=(3,)))
    apart = replace(pipeline, boundaries=(1,))  # the positions' indices, and all else
    assert not why_impossible(model, apart)
    assert weights_of(model, 1, len(model.layers)).nbytes == 4 * model.parameter_items
    assert live_bytes(model, apart, "sgd") > 0


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
