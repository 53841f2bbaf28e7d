"""Configurations, and who has and needs which part of a tensor, against masks made item by item."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calib.foundation.layers import LayerShape
from calib.oracle.layout.partitions import (
    Box,
    Configuration,
    computed,
    items,
    moves,
    needed,
    overlap,
    owned,
    part_shape,
    why_impossible,
)

BATCH = 4


def conv(
    size: int = 8,
    kernel: int = 3,
    stride: int = 1,
    padding: int = 1,
    depth: int = 2,
    channels: tuple[int, int] = (4, 8),
) -> LayerShape:
    out = (size + 2 * padding - kernel) // stride + 1
    each = {"kernel": kernel, "stride": stride, "padding": padding}
    return LayerShape(
        kind="conv",
        input_shapes=((channels[0], *[size] * depth),),
        output_shape=(channels[1], *[out] * depth),
        parameter_shapes=((channels[1], channels[0], *[kernel] * depth), (channels[1],)),
        attributes={**{k: (v,) * depth for k, v in each.items()}, "groups": 1},
    )


RELU = LayerShape(kind="relu", input_shapes=((4, 8, 8),), output_shape=(4, 8, 8))
LINEAR = LayerShape(
    kind="linear", input_shapes=((12,),), output_shape=(8,), parameter_shapes=((8, 12), (8,))
)
FLATTEN = LayerShape(kind="flatten", input_shapes=((4, 2, 3),), output_shape=(24,))
CONCAT = LayerShape(kind="concat", input_shapes=((4, 2, 2), (8, 2, 2)), output_shape=(12, 2, 2))
POOL = LayerShape(
    kind="max_pool",
    input_shapes=((4, 8, 8),),
    output_shape=(4, 4, 4),
    attributes={"kernel": (3, 3), "stride": (2, 2), "padding": (1, 1), "ceil_mode": False},
)
LOSS = LayerShape(kind="cross_entropy", input_shapes=((10,),), output_shape=())
SHAPES = [
    conv(),
    conv(9, 3, 2, 1, 1),
    conv(8, 1, 1, 0),
    conv(6, 2, 2, 0, 3),
    RELU,
    LINEAR,
    FLATTEN,
    CONCAT,
    POOL,
]
CONFIGURATIONS = [
    Configuration(s, c, spatial, i)
    for s in (1, 2, 4)
    for c in (1, 2, 4)
    for spatial in ((), (2,), (1, 2), (2, 2))
    for i in (1, 2)
]
POSSIBLE = [
    (shape, of) for shape in SHAPES for of in CONFIGURATIONS if not why_impossible(shape, of, BATCH)
]


def mask(shape: tuple[int, ...], box: Box) -> np.ndarray:
    found = np.zeros((BATCH, *shape), dtype=int)
    found[tuple(slice(a, b) for a, b in box)] = 1
    return found


@settings(max_examples=80, deadline=None)
@given(st.sampled_from(POSSIBLE))
def test_every_item_is_owned_once(case: tuple[LayerShape, Configuration]) -> None:
    shape, of = case
    owners = sum(mask(shape.output_shape, owned(shape, of, BATCH, k)) for k in range(of.parts))
    assert np.all(owners == 1)


@settings(max_examples=80, deadline=None)
@given(st.sampled_from(POSSIBLE))
def test_terms_are_computed_by_every_input_part(case: tuple[LayerShape, Configuration]) -> None:
    shape, of = case
    terms = sum(mask(shape.output_shape, computed(shape, of, BATCH, k)) for k in range(of.parts))
    assert np.all(terms == of.input)


@settings(max_examples=80, deadline=None)
@given(st.sampled_from(POSSIBLE))
def test_a_part_is_as_large_as_what_it_computes(case: tuple[LayerShape, Configuration]) -> None:
    shape, of = case
    part = part_shape(shape, of)
    each = {items(computed(shape, of, BATCH, k)) for k in range(of.parts)}
    assert each == {BATCH // of.sample * part.output_items}
    if shape.kind in ("conv", "linear"):  # equal work: all operations are shared out
        assert part.forward_flops(BATCH // of.sample) * of.parts == shape.forward_flops(BATCH)


def read_by(shape: LayerShape, output: tuple[int, ...], which: int) -> set[tuple[int, ...]]:
    """The items of an input, of one sample, that one item of the output reads: by definition."""
    source = shape.input_shapes[which]
    if shape.kind == "linear":
        return set(np.ndindex(*source))
    if shape.kind == "flatten":
        return {tuple(int(n) for n in np.unravel_index(output[0], source))}
    if shape.kind == "concat":
        before = sum(x[0] for x in shape.input_shapes[:which])
        at = (output[0] - before, *output[1:])
        return {at} if 0 <= at[0] < source[0] else set()
    if shape.kind == "relu":
        return {output}
    kernel, stride, padding = (shape.attributes[k] for k in ("kernel", "stride", "padding"))
    assert isinstance(kernel, tuple) and isinstance(stride, tuple) and isinstance(padding, tuple)
    rows = [
        [r for r in range(o * s - p, o * s - p + k) if 0 <= r < n]
        for o, k, s, p, n in zip(output[1:], kernel, stride, padding, source[1:], strict=True)
    ]
    channels = range(source[0]) if shape.kind == "conv" else [output[0]]
    return set(itertools.product(channels, *rows))


@settings(max_examples=60, deadline=None)
@given(st.sampled_from([case for case in POSSIBLE if case[1].input == 1]))
def test_a_part_needs_what_its_outputs_read(case: tuple[LayerShape, Configuration]) -> None:
    shape, of = case
    for part in {0, of.parts - 1}:
        output = computed(shape, of, BATCH, part)
        outputs = itertools.product(*(range(a, b) for a, b in output[1:]))
        reads = [set[tuple[int, ...]]() for _ in shape.input_shapes]
        for item in outputs:
            for which in range(len(reads)):
                reads[which] |= read_by(shape, item, which)
        for which, found in enumerate(reads):
            box = needed(shape, of, BATCH, part, which)
            assert box[0] == output[0]
            assert set(itertools.product(*(range(a, b) for a, b in box[1:]))) == found


@pytest.mark.parametrize("shape", [conv(), LINEAR])
def test_input_parts_read_their_channels(shape: LayerShape) -> None:
    of = Configuration(input=2)
    boxes = [needed(shape, of, BATCH, part) for part in range(2)]
    assert items(overlap(*boxes)) == 0
    assert sum(map(items, boxes)) == BATCH * shape.input_items


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_moves_bring_every_reader_what_it_needs(data: st.DataObject) -> None:
    """From any layout of RELU's output to any of the next layer: each needed item comes once."""
    shape = data.draw(st.sampled_from([RELU, POOL, SHAPES[0]]))
    before = data.draw(st.sampled_from([of for s, of in POSSIBLE if s is RELU]))
    after = data.draw(st.sampled_from([of for s, of in POSSIBLE if s is shape]))
    owners = [owned(RELU, before, BATCH, k) for k in range(before.parts)]
    readers = [needed(shape, after, BATCH, k) for k in range(after.parts)]
    got = [np.zeros((BATCH, 4, 8, 8), dtype=int) for _ in readers]
    for move in moves(owners, readers):
        assert np.all(mask((4, 8, 8), owners[move.source]) >= mask((4, 8, 8), move.box))
        got[move.target] += mask((4, 8, 8), move.box)
    for target, need in enumerate(readers):
        assert np.array_equal(got[target], mask((4, 8, 8), need))


def test_equal_layouts_move_nothing_for_pointwise_layers() -> None:
    of = Configuration(2, 2, (2,))
    owners = [owned(RELU, of, BATCH, k) for k in range(of.parts)]
    readers = [needed(RELU, of, BATCH, k) for k in range(of.parts)]
    assert all(move.source == move.target for move in moves(owners, readers))


def test_places_count_samples_slowest() -> None:
    of = Configuration(2, 2, (1, 2), 2)
    places = [of.place(k) for k in range(of.parts)]
    assert (
        places == sorted(places, key=lambda x: (x.sample, x.channel, x.spatial, x.input))
        and len(set(places)) == of.parts == 16
    )


@given(st.sampled_from(CONFIGURATIONS))
def test_degrees_name_a_configuration(of: Configuration) -> None:
    again = Configuration.of(of.degrees)
    assert again.degrees == of.degrees and again.parts == of.parts == math.prod(of.degrees.values())


@pytest.mark.parametrize(
    ("shape", "of", "words"),
    [
        (RELU, Configuration(sample=3), "3 does not divide the batch of 4"),
        (RELU, Configuration(channel=3), "3 does not divide its 4 output channels"),
        (RELU, Configuration(spatial=(3,)), "3 does not divide its height of 8"),
        (RELU, Configuration(input=2), "no terms to sum"),
        (LINEAR, Configuration(input=5), "5 does not divide"),
        (LINEAR, Configuration(spatial=(2,)), "not cut in space"),
        (FLATTEN, Configuration(channel=8), "8 does not divide its 4 output channels"),
        (LOSS, Configuration(channel=2), "by samples only"),
        (conv(9), Configuration(spatial=(1, 2)), "2 does not divide its width of 9"),
    ],
)
def test_what_cannot_be_says_why(shape: LayerShape, of: Configuration, words: str) -> None:
    assert words in why_impossible(shape, of, BATCH)
    assert why_impossible(shape, Configuration(sample=2), BATCH) == ""


def test_parts_have_their_own_weights() -> None:
    shape = conv(channels=(4, 8))
    part = part_shape(shape, Configuration(2, 4, (2,)))
    assert part.parameter_shapes == ((2, 4, 3, 3), (2,))
    terms = part_shape(shape, Configuration(channel=2, input=2))
    assert terms.parameter_shapes == ((4, 2, 3, 3),) and terms.input_shapes == ((2, 8, 8),)
