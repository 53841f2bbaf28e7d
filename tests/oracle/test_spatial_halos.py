"""Halos by sets of indices: which items does a part read, and who has them?"""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from tests.helpers.divided import divide
from tests.oracle.shapes import conv, model_of, pool

from calib.foundation.division import Division
from calib.foundation.errors import InputError
from calib.foundation.layers import LayerShape
from calib.oracle.layout.spatial import halo_rows
from calib.oracle.layout.traffic import grouped_flows, halo_items, layer_flows, messages
from calib.oracle.strategies.halos import JoinLoop, joins
from calib.training.models.specs import spec

Place = tuple[int, ...]
SOME = settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])


def owner(index: int, length: int, parts: int) -> int:
    """Who has a row when the first length % parts ranks have one more."""
    small, larger = divmod(length, parts)
    first = larger * (small + 1)
    return index // (small + 1) if index < first else larger + (index - first) // small


def read_by(
    size: Place, outputs: Place, kernel: int, stride: int, padding: int
) -> dict[Place, set[Place]]:
    """The indices of x that each index of y reads."""
    return {
        y: set(
            itertools.product(
                *(
                    [
                        i
                        for i in range(o * stride - padding, o * stride - padding + kernel)
                        if 0 <= i < n
                    ]
                    for o, n in zip(y, size, strict=True)
                )
            )
        )
        for y in itertools.product(*map(range, outputs))
    }


def most_sent(
    needs: dict[Place, set[Place]], mine: Place, theirs: Place, grid: Place
) -> tuple[int, bool]:
    """(most items between two neighbours, whether anyone needs what no neighbour has).

    `needs` maps items that are cut like `mine` to the items, cut like `theirs`, that they need. A
    message holds whole rows from the first that is needed, as wide as the rank's own part.
    """
    whole = (*grid, *(1,) * (len(mine) - len(grid)))

    def place(item: Place, size: Place) -> Place:
        return tuple(owner(i, n, p) for i, n, p in zip(item, size, whole, strict=True))

    needed: dict[Place, set[Place]] = {}
    for item, others in needs.items():
        needed.setdefault(place(item, mine), set()).update(others)
    owned: dict[Place, set[Place]] = {}
    for item in itertools.product(*map(range, theirs)):
        owned.setdefault(place(item, theirs), set()).add(item)
    most, far = 0, False
    for at, items in needed.items():
        for other in {place(item, theirs) for item in items}:
            apart = [abs(a - b) for a, b in zip(at, other, strict=True)]
            far |= max(apart) > 1
            if sum(apart) != 1:
                continue
            d = apart.index(1)
            theirs_needed = {item[d] for item in items & owned[other]}
            near = {item[d] for item in owned[at]}
            rows = {
                item[d]
                for item in owned[other]
                if min(theirs_needed) <= item[d] < min(near)
                or max(near) < item[d] <= max(theirs_needed)
            }
            width = len({item[:d] + item[d + 1 :] for item in owned[at]})
            most = max(most, len(rows) * width)
    return most, far


@st.composite
def layers(draw: st.DrawFn) -> tuple[LayerShape, Place, tuple[int, int, int]]:
    """A convolution or pooling in one to three dimensions, a grid, and (kernel, stride, padding)."""
    dimensions = draw(st.integers(1, 3))
    longest = {1: 40, 2: 12, 3: 7}[dimensions]
    size = tuple(draw(st.integers(2, longest)) for _ in range(dimensions))
    kernel, stride = draw(st.integers(1, 5)), draw(st.integers(1, 3))
    padding = draw(st.integers(0, kernel // 2))
    assume(all(n + 2 * padding >= kernel for n in size))
    if draw(st.booleans()):
        shape = conv(2, 3, size, kernel, stride, padding)
    else:
        shape = pool("max_pool", 2, size, kernel, stride, padding)
    most = {1: 10, 2: 4, 3: 3}[dimensions]
    grid = tuple(draw(st.integers(1, most)) for _ in range(draw(st.integers(1, dimensions))))
    assume(math.prod(grid) > 1)
    return shape, grid, (kernel, stride, padding)


@SOME
@given(layers())
def test_halos_are_what_the_parts_read(
    case: tuple[LayerShape, Place, tuple[int, int, int]],
) -> None:
    """Of x in the forward, and of dL/dy in the backward, in which each x needs the y that read it.

    That is a convolution's; a pooling's backward returns the rows of the forward.
    """
    shape, grid, (kernel, stride, padding) = case
    size, outputs = shape.input_shapes[0][1:], shape.output_shape[1:]
    assume(all(min(n, o) >= p for n, o, p in zip(size, outputs, grid, strict=False)))
    reads = read_by(size, outputs, kernel, stride, padding)
    readers: dict[Place, set[Place]] = {}
    for y, xs in reads.items():
        for x in xs:
            readers.setdefault(x, set()).add(y)
    of_x, far_x = most_sent(reads, outputs, size, grid)
    of_y, far_y = most_sent(readers, size, outputs, grid)
    try:
        for d, parts in enumerate(grid):
            halo_rows(shape, d, parts)
    except InputError:
        # rows between what is owned and what is needed travel too, so that a wide stride may reach
        # over a neighbour of which nothing is needed
        assert far_x or far_y or stride > kernel
        return
    assert not (far_x or far_y)
    forward, backward = halo_items(shape, grid)
    assert forward == shape.input_shapes[0][0] * of_x
    if shape.kind == "conv":
        assert backward == shape.output_shape[0] * of_y
    else:  # a pooling gives dL/dx of the rows that it took back
        assert backward == forward


@pytest.mark.parametrize("parts", [2, 4, 8, 16, 32])
def test_the_first_layer_of_a_resnet(parts: int) -> None:
    """7x7, stride 2, padding 3 on 224 rows: 3 rows. In 32 parts outputs drift away from their inputs."""
    shape = conv(3, 64, (224, 224), 7, 2, 3)
    reads = read_by((224,), (112,), 7, 2, 3)
    most, far = most_sent(reads, (112,), (224,), (parts,))
    if parts == 32:
        assert far
        with pytest.raises(InputError, match="shorter than the halo"):
            halo_rows(shape, 0, parts)
    else:
        assert (most, far) == (3, False)
        assert halo_rows(shape, 0, parts)[0] == 3


@pytest.mark.parametrize("grid", [(2,), (4,), (2, 2), (4, 2)])
def test_flows_are_counted_and_grouped(grid: Place) -> None:
    """All halos of vgg16-mini: the same number and items one by one, grouped, and as messages."""
    model = spec("vgg16-mini")
    division = Division("spatial", math.prod(grid), 2, grid=grid)
    single, grouped = layer_flows(model, division), grouped_flows(model, division)
    assert {flow.count for flow in single} == {1}
    assert sum(flow.count for flow in grouped) == len(single)
    assert sum(flow.count * flow.items for flow in grouped) == sum(flow.items for flow in single)
    sent = [m.nbytes for m in messages(model, division)][:-1]  # the last are the gradients
    assert sent == [4 * 2 * flow.items for flow in single]
    halos = [flow for flow in single if flow.operation == "halo"]
    assert {flow.phase for flow in halos} == {"halo"}
    # 13 convolutions, all but the first with dL/dy; pools of 2 are aligned
    assert [f.direction for f in halos] == ["forward"] * 13 + ["backward"] * 12


def test_a_pooling_gives_back_the_rows_it_took() -> None:
    """3x3 of stride 2 and padding 1 takes one row of 4 x 8 of x; of dL/dy it would be one of 4 x 4."""
    model = model_of([conv(3, 4, (8, 8), 1, 1, 0), pool("max_pool", 4, (8, 8), 3, 2, 1)])
    division = divide(model, "spatial", 2, 1)
    flows = [f for f in layer_flows(model, division) if f.operation == "halo"]
    assert [(f.direction, f.items) for f in flows] == [("forward", 32), ("backward", 32)]
    # what comes back is added to own rows: nothing is joined
    assert joins(model, division) == {
        "halos of x and their parts": [JoinLoop(2, 4 * 5 * 8)],
        "the parts of y, where the split ends": [JoinLoop(2, 4 * 4 * 4)],
    }


def test_a_layer_without_gradient_of_its_input_sends_none_back() -> None:
    model = model_of([conv(3, 4, (8, 6), 3, 1, 1), conv(4, 4, (8, 6), 3, 1, 1)])
    flows = layer_flows(model, divide(model, "spatial", 2, 1))
    assert [(f.direction, f.items) for f in flows if f.operation == "halo"] == [
        ("forward", 18),
        ("forward", 24),
        ("backward", 24),
    ]
