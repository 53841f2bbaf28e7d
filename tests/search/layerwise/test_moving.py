"""What moves between two layers, against sets of items that each device owns and needs."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calib.foundation.layers import LayerShape
from calib.oracle.layout.partitions import Configuration, needed, owned
from calib.search.layerwise.configurations import DIMENSIONS, ConfigurationChoices
from calib.search.layerwise.layouts import BoxLayout, needs, owns
from calib.search.layerwise.moving import busiest
from calib.search.request import Devices

BATCH = 4


def image(
    kind: Any, x: tuple[int, ...], channels: int, kernel: int = 1, stride: int = 1, padding: int = 0
) -> LayerShape:
    """A convolution, pooling or pointwise layer on x."""
    depth = len(x) - 1
    out = [(n + 2 * padding - kernel) // stride + 1 for n in x[1:]]
    each = {"kernel": kernel, "stride": stride, "padding": padding}
    attributes: dict[str, Any] = {k: (v,) * depth for k, v in each.items()}
    weights: tuple[tuple[int, ...], ...] = ()
    if kind == "conv":
        attributes["groups"] = 1
        weights = ((channels, x[0], *[kernel] * depth), (channels,))
    elif kind == "max_pool":
        attributes["ceil_mode"] = False
    else:
        attributes = {}
    return LayerShape(
        kind=kind,
        input_shapes=(x,),
        output_shape=(channels, *out),
        parameter_shapes=weights,
        attributes=attributes,
    )


SOURCE = image("conv", (2, 8, 6), 4, 3, 1, 1)  # its output is 4 x 8 x 6
VOLUME = image("conv", (2, 4, 4, 4), 4)
FLATTEN = LayerShape(kind="flatten", input_shapes=((4, 8, 6),), output_shape=(192,))
LINEAR = LayerShape(
    kind="linear", input_shapes=((192,),), output_shape=(8,), parameter_shapes=((8, 192), (8,))
)
CONCAT = LayerShape(kind="concat", input_shapes=((2, 8, 6), (4, 8, 6)), output_shape=(6, 8, 6))
LOSS = LayerShape(kind="cross_entropy", input_shapes=((8,),), output_shape=())
PAIRS = {
    "padding": (SOURCE, image("conv", (4, 8, 6), 8, 3, 1, 1), 0),
    "stride": (SOURCE, image("conv", (4, 8, 6), 4, 3, 2, 1), 0),
    "kernel 1, stride 2": (SOURCE, image("conv", (4, 8, 6), 4, 1, 2, 0), 0),
    "pooling": (SOURCE, image("max_pool", (4, 8, 6), 4, 2, 2, 0), 0),
    "pointwise": (SOURCE, image("relu", (4, 8, 6), 4), 0),
    "flatten": (SOURCE, FLATTEN, 0),
    "linear": (FLATTEN, LINEAR, 0),
    "loss": (LINEAR, LOSS, 0),
    "concat": (SOURCE, CONCAT, 1),
    "depth": (VOLUME, image("conv", (4, 4, 4, 4), 4, 3, 1, 1), 0),
}
CLUSTERS = (Devices(1, 4), Devices(2, 2), Devices(2, 3), Devices(3, 2), Devices(2, 4))


def of(devices: Devices, shape: LayerShape) -> tuple[Configuration, ...]:
    return ConfigurationChoices(devices, BATCH, DIMENSIONS).configurations(shape)


def every_item(own: set[tuple[int, ...]], box: tuple[tuple[int, int], ...]) -> set[tuple[int, ...]]:
    lows = [a for a, _ in box]
    return {
        tuple(int(n) + a for n, a in zip(at, lows, strict=True))
        for at in np.ndindex(*[b - a for a, b in box])
    } | own


def slowly(
    first: tuple[LayerShape, Configuration],
    then: tuple[LayerShape, Configuration],
    which: int,
    devices: Devices,
) -> tuple[int, int]:
    """The same by sets of items: who sends what to whom."""
    owner = {
        item: part
        for part in range(first[1].parts)
        for item in every_item(set(), owned(*first, BATCH, part))
    }
    leaves: list[Counter[int]] = [Counter(), Counter()]
    comes: list[Counter[int]] = [Counter(), Counter()]
    for part in range(then[1].parts):
        for item in every_item(set(), needed(*then, BATCH, part, which)):
            source = owner[item]
            if source != part:
                level = int(source // devices.per_node != part // devices.per_node)
                leaves[level][source] += 1
                comes[level][part] += 1
    within, between = (
        max([0, *leaves[level].values(), *comes[level].values()]) for level in (0, 1)
    )
    return within, between


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(PAIRS)), st.sampled_from(CLUSTERS), st.data())
def test_what_moves_is_what_is_needed_and_not_there(
    name: str, devices: Devices, data: st.DataObject
) -> None:
    first, then, which = PAIRS[name]
    one = data.draw(st.sampled_from(of(devices, first)))
    other = data.draw(st.sampled_from(of(devices, then)))
    # among other configurations, as in a table
    ones = [Configuration(), one, *of(devices, first)[:2]]
    others = [other, *of(devices, then)[-2:]]
    within, between = busiest(
        owns(first, ones, BATCH, devices.p), needs(then, which, others, BATCH, devices.p), devices
    )
    found = (within[1, 0], between[1, 0])
    assert found == slowly((first, one), (then, other), which, devices)


@pytest.mark.parametrize("name", sorted(PAIRS))
def test_layouts_are_the_boxes_of_partitions(name: str) -> None:
    devices = Devices(1, 6)
    first, then, which = PAIRS[name]
    for shape, boxes, box in (
        (first, owns(first, of(devices, first), BATCH, 6), owned),
        (then, needs(then, which, of(devices, then), BATCH, 6), lambda *a: needed(*a, which)),
    ):
        for c, configuration in enumerate(of(devices, shape)):
            for part in range(configuration.parts):
                ends = zip(
                    boxes.lo[c, :, part].tolist(), boxes.hi[c, :, part].tolist(), strict=True
                )
                assert tuple(ends) == box(shape, configuration, BATCH, part)
            assert sizes(boxes, c)[configuration.parts :] == [0] * (6 - configuration.parts)


def sizes(boxes: BoxLayout, c: int) -> list[int]:
    return [int(n) for n in np.prod(boxes.hi[c] - boxes.lo[c], axis=0)]


def test_equal_configurations_of_pointwise_layers_move_nothing() -> None:
    first, then, _ = PAIRS["pointwise"]
    devices = Devices(2, 4)
    both = [c for c in of(devices, then) if c in of(devices, first)]
    assert len(both) > 20
    own, need = owns(first, both, BATCH, 8), needs(then, 0, both, BATCH, 8)
    within, between = busiest(own, need, devices)
    assert np.all(np.diagonal(within) == 0) and np.all(np.diagonal(between) == 0)
    assert within.max() == 4 * 192 * 3 / 4  # one device has all: 3 quarters go to the others
