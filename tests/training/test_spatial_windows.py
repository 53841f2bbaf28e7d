"""Any window on any grid: the parts of one layer, each on a thread, against the layer run whole."""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, assume, example, given, settings
from tests.helpers.ranks import results, run_ranks
from tests.helpers.tensor_ranks import Noted, TensorRanks
from tests.oracle.shapes import conv, pool, windowed
from torch import Tensor, nn

from calib.foundation.layers import LayerShape
from calib.oracle.layout.spatial import part_ranges, why_whole
from calib.oracle.layout.traffic import halo_items
from calib.training.clock import PhaseClock
from calib.training.split.cell import ImageCell
from calib.training.split.spatial_layers import SplitDropout, part_of

BATCH = 2
KINDS = {"conv": "Conv", "max_pool": "MaxPool", "avg_pool": "AvgPool"}
SOME = settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])


def whole_layer(shape: LayerShape) -> nn.Module:
    """As torch builds it; weights of a fixed seed."""
    of, d = shape.attributes, len(shape.output_shape) - 1
    window = {"kernel_size": of["kernel"], "stride": of["stride"], "padding": of["padding"]}
    make = getattr(nn, f"{KINDS[shape.kind]}{d}d")
    if shape.kind != "conv":
        made: nn.Module = make(**window, ceil_mode=of["ceil_mode"])
        return made
    channels, filters = shape.input_shapes[0][0], shape.output_shape[0]
    layer: Any = make(channels, filters, groups=of["groups"], **window)
    layer.double()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_(generator=generator)
    return layer


def images(shape: tuple[int, ...], seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn((BATCH, *shape), generator=generator, dtype=torch.float64)


def slices(shape: tuple[int, ...], grid: tuple[int, ...], rank: int) -> tuple[slice, ...]:
    """A rank's part: the ranks are row by row."""
    at = list(itertools.product(*(range(n) for n in grid)))[rank]
    cut = [
        slice(*part_ranges(shape[1 + d], n)[i])
        for d, (n, i) in enumerate(zip(grid, at, strict=True))
    ]
    return (slice(None), slice(None), *cut)


def check(shape: LayerShape, grid: tuple[int, ...], twice: bool = False) -> list[list[int]]:
    """Compare all parts with the whole; the messages of every rank, in items of all samples."""
    at = list(itertools.product(*(range(n) for n in grid)))
    layer = whole_layer(shape)
    x, weight = images(shape.input_shapes[0], 2), images(shape.output_shape, 3)
    whole_x = x.clone().requires_grad_()
    y = layer(whole_x)
    (y * weight).sum().backward()
    assert whole_x.grad is not None

    def program(ranks: Any) -> Any:
        sent: list[int] = []  # items of the longest message of every exchange

        def note(_: str, longest: Tensor | None, buffers: list[Tensor]) -> None:
            assert buffers and all(buffer.is_contiguous() for buffer in buffers)
            sent.append(0 if longest is None else longest.numel())

        team: Any = Noted(ranks, note)
        cell = ImageCell(grid, at[team.rank], team, PhaseClock())
        mine = whole_layer(shape)
        part = part_of(shape, cell, mine, None) or mine
        for _ in range(1 + twice):  # nothing of the first may be left
            part.zero_grad()
            own = x[slices(shape.input_shapes[0], grid, team.rank)].clone().requires_grad_()
            found = part(own)
            where = slices(shape.output_shape, grid, team.rank)
            (found * weight[where]).sum().backward()
        return found.detach(), own.grad, [p.grad for p in mine.parameters()], sent

    ranks = results(run_ranks(math.prod(grid), program, TensorRanks))
    for rank, (found, dx, _, _) in enumerate(ranks):
        expected = y.detach()[slices(shape.output_shape, grid, rank)]
        torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11)
        expected = whole_x.grad[slices(shape.input_shapes[0], grid, rank)]
        torch.testing.assert_close(dx, expected, rtol=1e-11, atol=1e-11)
    for number, parameter in enumerate(layer.parameters()):
        total = sum(of[2][number] for of in ranks)
        torch.testing.assert_close(total, parameter.grad, rtol=1e-11, atol=1e-10)
    return [of[3] for of in ranks]


@SOME
@example((conv(2, 3, (4,), 1, 1, 5), (2,)))  # parts that read nothing but padding
@example((conv(2, 3, (9,), 1, 4, 0), (2,)))  # rows that no output reads
@example((pool("max_pool", 2, (13, 5), 2, 2, 0, ceil=True), (3,)))
@example((pool("avg_pool", 2, (13, 13), 3, 1, 1), (2, 4)))
@given(windowed())
def test_parts_are_the_whole(case: tuple[LayerShape, tuple[int, ...]]) -> None:
    """y, dL/dx and dL/dw, and no message longer than the oracle's (but for corners)."""
    shape, grid = case
    assume(not why_whole(shape, grid) and math.prod(grid) > 1)
    sent = check(shape, grid)
    if sum(parts > 1 for parts in grid) == 1:
        expected = [BATCH * items for items in halo_items(shape, grid)]
        calls = [max(sizes) for sizes in zip(*(s for s in sent if len(s) == 2), strict=True)]
        if 0 not in expected and calls:
            assert calls == expected
        assert max((max(s) for s in sent if s), default=0) == max(expected)


CUBE = (7, 6, 5)


@pytest.mark.parametrize(
    "shape",
    [
        conv(2, 4, CUBE, 3, 1, 1),
        conv(2, 4, CUBE, 3, 2, 1).model_copy(
            update={
                "attributes": {
                    "kernel": (3, 3, 3),
                    "stride": (2, 2, 2),
                    "padding": (1, 1, 1),
                    "groups": 2,
                },
                "parameter_shapes": ((4, 1, 3, 3, 3), (4,)),
            }
        ),
        conv(2, 4, CUBE, 2, 1, 1),
        pool("max_pool", 2, CUBE, 3, 1, 1),
        pool("avg_pool", 2, CUBE, 2, 2, 0),
    ],
    ids=["3x3x3", "strided and grouped", "even", "max", "average"],
)
def test_in_three_dimensions(shape: LayerShape) -> None:
    """Corners of 8 parts come by way of the parts beside."""
    check(shape, (2, 2, 2), twice=True)


def test_a_part_can_need_less_than_it_has() -> None:
    """1x1 of stride 2 on 9 rows in [5, 4]: outputs [3, 2] read rows 0, 2, 4 and 6, 8: no message."""
    assert check(conv(2, 3, (9, 4), 1, 2, 0), (2,)) == [[], []]


def test_aligned_layers_stay_as_they_are() -> None:
    team: Any = SimpleNamespace(rank=0)
    cell = ImageCell((2, 2), (0, 0), team, PhaseClock())
    aligned = [
        conv(2, 3, (8, 8), 1, 1, 0),
        conv(2, 3, (8, 8), 1, 2, 0),
        pool("max_pool", 2, (8, 8), 2, 2, 0),
    ]
    assert [part_of(shape, cell, nn.Identity(), None) for shape in aligned] == [None] * 3
    # a window beyond the image has to be filled, which the whole layer's module does on both sides
    assert part_of(pool("max_pool", 2, (8, 8), 2, 2, 1), cell, None, None) is not None


@pytest.mark.parametrize("probability", [0.0, 0.4, 1.0])
def test_dropout_has_the_serial_mask_and_keeps_ranks_in_step(probability: float) -> None:
    """Parts of 5 and 4 rows draw the whole mask, so that the generator moves on by as much."""
    team: Any = None
    x = images((3, 9, 4), 7)
    torch.manual_seed(11)
    expected = nn.functional.dropout(x, probability)
    after = torch.rand(3)
    for rank, rows in enumerate((slice(0, 5), slice(5, 9))):
        part = SplitDropout(probability, (3, 9, 4), ImageCell((2,), (rank,), team, PhaseClock()))
        torch.manual_seed(11)
        assert torch.equal(part(x[:, :, rows]), expected[:, :, rows])
        assert torch.equal(torch.rand(3), after)
        assert part.eval()(x) is x
