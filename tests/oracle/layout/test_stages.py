"""Balanced stages against all partitions, and crossings against the edges of the graph."""

from __future__ import annotations

import itertools
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.oracle.handmade import linear, mlp, relu

from calib.foundation.division import Division
from calib.foundation.layers import LayerShape
from calib.oracle.layout.stages import balanced, crossings, stage_names, weights_before, with_stages
from calib.oracle.model.layer import Layer
from calib.oracle.model.spec import ModelSpec


def slowest(seconds: tuple[float, ...], boundaries: tuple[int, ...]) -> Fraction:
    """Exactly."""
    borders = pairwise((0, *boundaries, len(seconds)))
    return max(sum(map(Fraction, seconds[a:b]), Fraction(0)) for a, b in borders)


SECONDS = st.one_of(st.sampled_from([0.0, 0.5, 1.0, 3.0]), st.floats(1e-7, 10.0))


@settings(max_examples=150, deadline=None)
@given(st.lists(SECONDS, min_size=1, max_size=9).map(tuple), st.data())
def test_as_good_as_any_partition(seconds: tuple[float, ...], data: st.DataObject) -> None:
    p = data.draw(st.integers(1, len(seconds)))
    found = balanced(seconds, p)
    assert len(found) == p - 1
    assert all(a < b for a, b in pairwise((0, *found, len(seconds))))
    all_cuts = itertools.combinations(range(1, len(seconds)), p - 1)
    best = min(slowest(seconds, cuts) for cuts in all_cuts)
    assert float(slowest(seconds, found)) == pytest.approx(float(best), rel=1e-12, abs=1e-18)


@pytest.mark.parametrize("p", [2, 3, 7, 30, 59, 60])
def test_against_dynamic_programming(p: int) -> None:
    """60 layers of uneven whole seconds, where trying all partitions would take for ever."""
    seconds = tuple(float(1 + (7 * i * i) % 23) for i in range(60))
    sums = [0.0, *itertools.accumulate(seconds)]
    best = sums[1:]  # of the first layers, in so many stages
    for stages in range(2, p + 1):
        best = [
            min((max(best[j - 1], sums[i] - sums[j]) for j in range(stages - 1, i)), default=1e9)
            for i in range(1, 61)
        ]
    assert float(slowest(seconds, balanced(seconds, p))) == best[-1]


def test_given_boundaries_stay() -> None:
    division = Division("pipeline", 2, 4, boundaries=(3,))
    assert with_stages(division, [1.0] * 5, [9.0, 0.0, 0.0, 0.0, 0.0]).boundaries == (3,)


def test_balanced_by_forward_and_backward() -> None:
    """By the forward alone the border would be 3, by the backward alone 1."""
    division = Division("pipeline", 2, 4)
    forward, backward = [1.0, 1.0, 1.0, 3.0], [5.0, 2.0, 1.0, 1.0]
    assert with_stages(division, forward, backward).boundaries == (2,)


def test_names() -> None:
    assert stage_names(mlp((2, 3, 4)), (1, 3)) == "fc1 | relu1..fc2 | loss"


def test_weights_before() -> None:
    counts, nbytes = weights_before(mlp((2, 3, 4)))
    assert counts == [0, 2, 2, 4, 4]
    assert nbytes == [0, 36, 36, 36 + 64, 36 + 64]


def joined(name: str, sources: tuple[str, str], sizes: tuple[int, int]) -> Layer:
    shape = LayerShape(
        kind="concat", input_shapes=((sizes[0],), (sizes[1],)), output_shape=(sum(sizes),)
    )
    return Layer(name=name, shape=shape, inputs=sources, needs_input_grad=True)


def view(name: str, source: str, items: int) -> Layer:
    shape = LayerShape(kind="flatten", input_shapes=((items,),), output_shape=(items,))
    return Layer(name=name, shape=shape, inputs=(source,), needs_input_grad=True)


@st.composite
def graphs(draw: st.DrawFn) -> ModelSpec:
    """A chain of layers of 1-D tensors with skips over any number of them."""
    sizes, layers, graded = {"input": 5}, list[Layer](), {"input": False}
    source = "input"
    for number in range(draw(st.integers(2, 9))):
        name, kind = f"l{number}", draw(st.sampled_from(["linear", "relu", "join", "view"]))
        read = (source,)
        if kind == "linear":
            layer = linear(name, source, sizes[source], draw(st.integers(1, 9)))
        elif kind == "relu":
            layer = relu(name, source, sizes[source])
        elif kind == "view":
            layer = view(name, source, sizes[source])
        else:
            read = (source, draw(st.sampled_from(sorted(sizes))))
            layer = joined(name, read, (sizes[read[0]], sizes[read[1]]))
        needs = any(graded[one] for one in read)
        layers.append(layer.model_copy(update={"needs_input_grad": needs}))
        graded[name] = needs or kind == "linear"
        sizes[name], source = layer.shape.output_items, name
    head = linear("head", source, sizes[source], 3, first=not graded[source])
    loss = LayerShape(kind="cross_entropy", input_shapes=((3,),), output_shape=())
    last = Layer(name="loss", shape=loss, inputs=("head",), needs_input_grad=True)
    return ModelSpec(name="graph", input_shape=(5,), classes=3, layers=(*layers, head, last))


@settings(max_examples=100, deadline=None)
@given(graphs())
def test_crossings_are_the_edges_over_a_border(model: ModelSpec) -> None:
    """For every border, every edge on its own: where a tensor is really made, who reads it."""
    by_name = {layer.name: (index, layer) for index, layer in enumerate(model.layers)}

    def maker(name: str) -> str:
        while name != "input" and by_name[name][1].shape.is_free:
            name = by_name[name][1].inputs[0]
        return name

    def has_gradient(name: str) -> bool:
        if name == "input":
            return False
        layer = by_name[name][1]
        return bool(layer.shape.parameter_shapes) or any(map(has_gradient, layer.inputs))

    for border, crossing in enumerate(crossings(model)):
        sources = {maker(name) for layer in model.layers[border:] for name in layer.inputs}
        sent = {name for name in sources if name != "input" and by_name[name][0] < border}
        items = {name: by_name[name][1].shape.output_items for name in sent}
        assert sorted(crossing.forward) == sorted(items.values())
        assert sorted(crossing.backward) == sorted(items[n] for n in sent if has_gradient(n))


def test_a_residual_goes_along() -> None:
    """x to its sum with f(g(x)): inside the block two tensors go over a border, after it one."""
    layers = [
        linear("a", "input", 2, 3, first=True),
        relu("b", "a", 3),
        linear("c", "b", 3, 7),
        joined("d", ("c", "a"), (7, 3)),
        Layer(
            name="loss",
            shape=LayerShape(kind="cross_entropy", input_shapes=((10,),), output_shape=()),
            inputs=("d",),
            needs_input_grad=True,
        ),
    ]
    model = ModelSpec(name="block", input_shape=(2,), classes=7, layers=tuple(layers))
    assert [c.forward for c in crossings(model)] == [(), (3,), (3, 3), (3, 7), (10,)]
    assert [c.backward for c in crossings(model)] == [(), (3,), (3, 3), (3, 7), (10,)]
