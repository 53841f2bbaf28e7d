"""Shards against real tensors that are cut by hand and joined again."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st
from tests.helpers.divided import divide
from tests.oracle.handmade import mlp
from tests.oracle.shapes import conv, model_of, pool, relu, small, windowed

from calib.foundation.division import STRATEGIES, Division
from calib.foundation.errors import InputError
from calib.foundation.layers import LayerShape, split_sizes
from calib.microbench.layers.build import BuiltLayer, build_layer
from calib.oracle.layout.grids import best_grid
from calib.oracle.layout.shards import (
    Shard,
    channel_part,
    filter_part,
    rank_parameters,
    rank_shards,
    split_layers,
)
from calib.oracle.layout.spatial import Window, halo_rows, part_ranges, spatial_part, why_whole
from calib.training.models.specs import spec

CPU = torch.device("cpu")
SLOW = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])


@given(st.integers(0, 500), st.integers(1, 60))
def test_split_sizes(n: int, parts: int) -> None:
    """They sum to n, differ by at most one, and the ranges are those sizes one after the other."""
    sizes = split_sizes(n, parts)
    assert (sum(sizes), len(sizes)) == (n, parts)
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)
    ranges = part_ranges(n, parts)
    assert [i for a, b in ranges for i in range(a, b)] == list(range(n))
    assert [b - a for a, b in ranges] == sizes


def set_parameters(layer: BuiltLayer, like: list[torch.Tensor]) -> None:
    with torch.no_grad():
        for mine, other in zip(layer.parameters, like, strict=True):
            mine.copy_(other)


@SLOW
@given(windowed(), st.integers(0, 2**31))
def test_spatial_parts_are_slices_of_the_whole(
    drawn: tuple[LayerShape, tuple[int, ...]], seed: int
) -> None:
    """Every part, run by torch on its rows with halo, gives its slice of the whole output.

    The gradients of the weights sum to the whole's, and dL/dx, halo rows added where they belong, is
    the whole's dL/dx: the same shapes serve the backward.
    """
    shape, grid = drawn
    assume(not why_whole(shape, grid))
    torch.manual_seed(seed)
    whole = build_layer(shape, torch.float64, CPU)
    x = torch.randn(2, *shape.input_shapes[0], dtype=torch.float64, requires_grad=True)
    y = whole(x)
    weights = torch.randn_like(y)
    (y * weights).sum().backward()
    padding = [int(n) for n in shape.attributes["padding"]]
    stride, kernel = shape.attributes["stride"], shape.attributes["kernel"]
    assert isinstance(stride, tuple) and isinstance(kernel, tuple)
    fill = -math.inf if shape.kind == "max_pool" else 0.0
    cut = [d for d, parts in enumerate(grid) if parts > 1]
    # a window that ceil_mode adds reads up to `kernel` rows beyond the padding
    flat = [
        pad
        for d in reversed(range(len(padding)))
        for pad in ([padding[d], padding[d] + kernel[d]] if d in cut else [0, 0])
    ]
    padded = F.pad(x.detach(), flat, value=fill)
    dx = torch.zeros_like(padded)
    dw = [torch.zeros_like(parameter) for parameter in whole.parameters]
    ranges = [part_ranges(shape.output_shape[1 + d], parts) for d, parts in enumerate(grid)]
    for place in itertools.product(*ranges):
        part = spatial_part(shape, tuple(b - a for a, b in place))
        rows = [
            slice(a * stride[d], (b - 1) * stride[d] + kernel[d]) if d in cut else slice(None)
            for d, (a, b) in enumerate(place)
        ]
        mine = padded[(slice(None), slice(None), *rows)].clone().requires_grad_()
        assert tuple(mine.shape[1:]) == part.input_shapes[0]
        layer = build_layer(part, torch.float64, CPU)
        set_parameters(layer, whole.parameters)
        result = layer(mine)
        assert tuple(result.shape[1:]) == part.output_shape
        where = (slice(None), slice(None), *(slice(a, b) for a, b in place))
        torch.testing.assert_close(result, y[where], rtol=1e-12, atol=1e-12)
        (result * weights[where]).sum().backward()
        assert mine.grad is not None
        dx[(slice(None), slice(None), *rows)] += mine.grad
        for number, parameter in enumerate(layer.parameters):
            assert parameter.grad is not None
            dw[number] += parameter.grad
    inner = tuple(
        slice(padding[d], padding[d] + shape.input_shapes[0][1 + d]) if d in cut else slice(None)
        for d in range(len(padding))
    )
    assert x.grad is not None
    torch.testing.assert_close(
        dx[(slice(None), slice(None), *inner)], x.grad, rtol=1e-10, atol=1e-10
    )
    for total, parameter in zip(dw, whole.parameters, strict=True):
        torch.testing.assert_close(total, parameter.grad, rtol=1e-10, atol=1e-10)


@example(n=3, kernel=1, stride=2, padding=3, parts=3)  # a part that reads nothing but padding
@example(n=24, kernel=3, stride=1, padding=1, parts=8)  # 8 parts, all but two of them alike
@example(n=48, kernel=7, stride=2, padding=3, parts=6)
@example(n=24, kernel=7, stride=1, padding=3, parts=12)  # alike, and all too short
@given(
    n=st.integers(1, 30),
    kernel=st.integers(1, 7),
    stride=st.integers(1, 4),
    padding=st.integers(0, 3),
    parts=st.integers(2, 9),
)
def test_halo_rows_by_brute_force(
    n: int, kernel: int, stride: int, padding: int, parts: int
) -> None:
    """Every pair of row and output written out."""
    assume(n + 2 * padding >= kernel)
    shape = conv(1, 1, (n,), kernel, stride, padding)
    outputs = shape.output_shape[1]
    meets = [
        (r, o) for o in range(outputs) for r in range(n) if 0 <= r - o * stride + padding < kernel
    ]
    own_x, own_y = part_ranges(n, parts), part_ranges(outputs, parts)
    most, far = [0, 0], False
    for index in range(parts):
        for way, (mine, owned, needed) in enumerate(
            ((own_y, own_x, lambda o, r: (r, o)), (own_x, own_y, lambda o, r: (o, r)))
        ):
            rows = set()
            for pair in meets:
                other, key = needed(pair[1], pair[0])
                if mine[index][0] <= key < mine[index][1]:
                    rows.add(other)
            first, stop = owned[index]
            # rows between the first that is needed and one's own travel too: a slice is contiguous
            above = max([0, *(first - r for r in rows)])
            below = max([0, *(r - stop + 1 for r in rows)])
            most[way] = max(most[way], above, below)
            lengths = [b - a for a, b in owned]
            far |= above > 0 and above > lengths[index - 1]
            far |= below > 0 and below > lengths[(index + 1) % parts]
    empty = n < parts or outputs < parts
    if empty or far:
        with pytest.raises(InputError, match="without a row" if empty else "shorter than the halo"):
            halo_rows(shape, 0, parts)
    else:
        assert list(halo_rows(shape, 0, parts)) == most


@pytest.mark.parametrize(("kernel", "rows"), [(1, 0), (3, 1), (5, 2), (7, 3)])
def test_halo_of_a_convolution_that_keeps_the_length(kernel: int, rows: int) -> None:
    """floor(K / 2) rows of x and of dL/dy (formulas.md); aligned pooling has none."""
    shape = conv(3, 4, (32, 32), kernel, 1, kernel // 2)
    assert halo_rows(shape, 0, 4) == (rows, rows)
    assert halo_rows(pool("max_pool", 3, (32, 32), 2, 2, 0), 0, 4) == (0, 0)


def test_pooling_that_is_not_aligned_takes_a_row() -> None:
    """7 rows in [4, 3], pooled by 2 to [2, 1]: nothing. 5 rows in [3, 2] to [1, 1]: row 2 travels."""
    assert halo_rows(pool("max_pool", 1, (7,), 2, 2, 0), 0, 2) == (0, 0)
    assert halo_rows(pool("max_pool", 1, (5,), 2, 2, 0), 0, 2) == (1, 1)


def test_window() -> None:
    """Kernel 3, stride 2, padding 1: output 2 reads rows 3 to 5; row 3 is in outputs 1 and 2."""
    along = Window(3, 2, 1)
    assert along.inputs_of((2, 3)) == (3, 6)
    assert along.outputs_of((3, 4)) == (1, 3)
    assert along.outputs_of((4, 5)) == (2, 3)


def by_name(shards: list[Shard]) -> dict[str, list[Shard]]:
    found: dict[str, list[Shard]] = {}
    for shard in shards:
        found.setdefault(shard.name, []).append(shard)
    return found


def test_serial_and_data_and_pipeline_run_whole_layers() -> None:
    model = small()
    layers = [layer for layer in model.layers if layer.shape.kind != "flatten"]
    for strategy, p, segments, batch in (
        ("serial", 1, 1, 12),
        ("data", 4, 1, 3),
        ("pipeline", 2, 6, 2),
    ):
        shards = rank_shards(model, divide(model, strategy, p, 12, segments=segments))
        assert [shard.layer for shard in shards] == [layer.shape for layer in layers]
        assert {shard.batch for shard in shards} == {batch}
        assert [shard.needs_input_grad for shard in shards] == [False, True, True, True, True]
        assert not any(shard.split for shard in shards)


def test_spatial_shapes_by_hand() -> None:
    """8 rows on 2 ranks: 4 each, 6 with halo; pooled to 2; then whole layers at the whole batch."""
    model = small()
    shards = rank_shards(model, divide(model, "spatial", 2, 5))
    shapes = {
        shard.name: (shard.layer.input_shapes[0], shard.layer.output_shape) for shard in shards
    }
    assert shapes == {
        "l1": ((3, 6, 6), (4, 4, 6)),
        "l2": ((4, 4, 6), (4, 4, 6)),
        "l3": ((4, 4, 6), (4, 2, 3)),
        "fc": ((48,), (6,)),
        "loss": ((6,), ()),
    }
    assert shards[0].layer.attributes["padding"] == (0, 1)
    assert [shard.split for shard in shards] == [True, True, True, False, False]
    assert {shard.batch for shard in shards} == {5}


def test_spatial_lists_every_distinct_part() -> None:
    """8 rows in 3 are 3, 3, 2; the pool's 4 outputs are 2, 1, 1."""
    model = small()
    found = by_name(rank_shards(model, divide(model, "spatial", 3, 5)))
    assert [s.layer.output_shape[1] for s in found["l1"]] == [3, 2]
    assert [s.layer.input_shapes[0][1] for s in found["l1"]] == [5, 4]
    assert [s.layer.output_shape[1] for s in found["l3"]] == [2, 1]
    # 2 x 2: rows 4, 4 and columns 3, 3; the pool's 3 columns are 2 and 1
    both = by_name(rank_shards(model, Division("spatial", 4, 5, grid=(2, 2))))
    assert [s.layer.output_shape for s in both["l1"]] == [(4, 4, 3)]
    assert [s.layer.output_shape for s in both["l3"]] == [(4, 2, 2), (4, 2, 1)]
    assert both["l1"][0].layer.attributes["padding"] == (0, 0)


def test_the_split_ends_where_a_part_would_be_empty() -> None:
    """On 8 ranks the convolution has a row each, its pool 4 rows for 8: whole from there on."""
    model = small()
    division = divide(model, "spatial", 8, 1)
    assert [layer.name for layer in split_layers(model, division)] == ["l1", "l2"]
    shards = {shard.name: shard for shard in rank_shards(model, division)}
    assert (shards["l3"].split, shards["l3"].layer.output_shape) == (False, (4, 4, 3))


def test_filter_shapes_by_hand() -> None:
    """4 and 6 filters on 4 ranks: 1 each, and 2 or 1; ReLU and pooling are whole."""
    model = small()
    found = by_name(rank_shards(model, divide(model, "filter", 4, 5)))
    (part,) = found["l1"]
    assert part.layer.output_shape == (1, 8, 6)
    assert part.layer.parameter_shapes == ((1, 3, 3, 3), (1,))
    assert [s.layer.parameter_shapes for s in found["fc"]] == [((2, 48), (2,)), ((1, 48), (1,))]
    assert found["l2"][0].layer == relu(4, (8, 6))
    assert (found["l1"][0].split, found["l2"][0].split) == (True, False)


def test_channel_shapes_by_hand() -> None:
    """The first convolution is whole; of 48 inputs 16 each on 3 ranks; no bias in the part."""
    model = small()
    found = by_name(rank_shards(model, divide(model, "channel", 3, 5)))
    assert (found["l1"][0].layer, found["l1"][0].split) == (model.layers[0].shape, False)
    (part,) = found["fc"]
    assert part.layer.input_shapes == ((16,),)
    assert part.layer.output_shape == (6,)
    assert part.layer.parameter_shapes == ((6, 16),)


def test_hybrids() -> None:
    """p1 x p2 = 2 x 2: half of the batch, and the parts of 2 ranks."""
    model = small()
    for hybrid, plain in (("data+filter", "filter"), ("data+spatial", "spatial")):
        division = divide(model, hybrid, 4, 6, inner=2)
        assert (division.replicas, division.parts, division.local_batch) == (2, 2, 3)
        alone = rank_shards(model, divide(model, plain, 2, 3))
        assert rank_shards(model, division) == alone


@pytest.mark.parametrize("name", ["vgg16-mini", "resnet50-mini", "cosmoflow-mini"])
@pytest.mark.parametrize("p", [2, 4])
def test_parts_make_up_the_models(name: str, p: int) -> None:
    """Operations, outputs and weights of the parts of all ranks are those of the whole layers."""
    model = spec(name)
    whole = {layer.name: layer.shape for layer in model.layers}
    for strategy in ("filter", "channel"):
        shards = [s for s in rank_shards(model, divide(model, strategy, p, 8)) if s.split]
        assert len({s.name for s in shards}) == len(shards)  # all widths are multiples of 4
        for shard in shards:
            full = whole[shard.name]
            assert p * shard.layer.forward_flops(8) == full.forward_flops(8)
            if strategy == "filter":
                assert p * shard.layer.output_items == full.output_items
                assert p * shard.layer.parameter_items == full.parameter_items
            else:
                assert p * shard.layer.input_items == full.input_items
    division = divide(model, "spatial", p, 8)
    for shard in (s for s in rank_shards(model, division) if s.split):
        full = whole[shard.name].output_shape
        counts = [split_sizes(full[1 + d], n) for d, n in enumerate(division.grid)]
        assert list(shard.layer.output_shape[1 : 1 + len(counts)]) in [
            list(sizes) for sizes in itertools.product(*counts)
        ]


@pytest.mark.parametrize("axis", ["filter", "channel"])
@pytest.mark.parametrize("kind", ["conv", "linear"])
def test_parts_of_filters_and_channels_are_the_layer(axis: str, kind: str) -> None:
    """Filter parts side by side are y; channel parts summed, and the bias once, are y (float64)."""
    torch.manual_seed(1)
    shape = conv(5, 7, (6, 5), 3, 1, 1) if kind == "conv" else mlp([5, 7]).layers[0].shape
    whole = build_layer(shape, torch.float64, CPU)
    weight, bias = whole.parameters
    x = torch.randn(2, *shape.input_shapes[0], dtype=torch.float64)
    y = whole(x)
    results = []
    for first, stop in part_ranges(7 if axis == "filter" else 5, 3):
        width = stop - first
        part = filter_part(shape, width) if axis == "filter" else channel_part(shape, width)
        layer = build_layer(part, torch.float64, CPU)
        if axis == "filter":
            set_parameters(layer, [weight[first:stop], bias[first:stop]])
            results.append(layer(x))
        else:
            set_parameters(layer, [weight[:, first:stop]])
            results.append(layer(x[:, first:stop]))
    if axis == "filter":
        joined = torch.cat(results, 1)
    else:
        joined = sum(results[1:], results[0]) + bias.reshape(-1, *(1,) * (y.dim() - 2))
    torch.testing.assert_close(joined, y, rtol=1e-12, atol=1e-12)


def test_every_part_of_the_minis_can_be_built() -> None:
    """Weights, inputs and outputs of each distinct part agree: torch runs it and gives its output."""
    seen = set()
    for name in ("vgg16-mini", "resnet50-mini", "cosmoflow-mini"):
        model = spec(name)
        for strategy in ("spatial", "filter", "channel", "data+filter", "data+spatial"):
            inner = 2 if "+" in strategy else 1
            for shard in rank_shards(model, divide(model, strategy, 4, 4, inner)):
                key = shard.layer.key(shard.batch)
                if not shard.split or key in seen:
                    continue
                seen.add(key)
                layer = build_layer(shard.layer, torch.float32, CPU)
                inputs = [torch.zeros(2, *size) for size in shard.layer.input_shapes]
                assert tuple(layer(*inputs).shape[1:]) == shard.layer.output_shape
    assert len(seen) > 100


def test_rank_parameters() -> None:
    """filter: the larger part; channel: the biases whole; data: all; a batch norm is on every rank.

    fully_sharded: a third of each unit's items, rounded up.
    """
    model = small()
    shards = rank_parameters(model, divide(model, "fully_sharded", 3, 3))
    assert shards == (((108 + 4 + 288 + 6) // 3 + 1,),)
    assert rank_parameters(model, divide(model, "data", 2, 4)) == model.parameter_shapes
    assert rank_parameters(model, divide(model, "spatial", 2, 4)) == model.parameter_shapes
    assert rank_parameters(model, divide(model, "filter", 4, 4)) == (
        (1, 3, 3, 3),
        (1,),
        (2, 48),
        (2,),
    )
    assert rank_parameters(model, divide(model, "channel", 3, 4)) == (
        (4, 3, 3, 3),
        (4,),
        (6, 16),
        (6,),
    )


def test_the_height_is_cut_first() -> None:
    model = small()
    assert best_grid(model, 8) == (8,)
    assert best_grid(model, 16) == (8, 2)
    assert divide(model, "spatial", 16, 1).grid == (8, 2)


def test_many_parts_have_the_layout_of_the_least_work_at_once() -> None:
    """A volume of 512 x 512 x 256: every layout is tried here; of more ranks than that there is none.

    The convolution keeps its length, so that any part of a row is as long as its halo of 1; the whole
    convolution and its ReLU are split, whatever the layout: the one of the fewest dimensions that are
    cut, and of these the tallest.
    """
    size = (512, 512, 256)
    model = model_of([conv(1, 2, size, 3, 1, 1), relu(2, size)], "volume")
    for p in (511, 512, 1021, 2 * 509, 262144, 720720, 7207200, 9699690, 33554432, 67108864):
        possible = [
            (a, b, p // a // b)
            for a in range(1, 513)
            if p % a == 0
            for b in range(1, 513)
            if p // a % b == 0 and p // a // b <= 256
        ]
        trimmed = [g[: max(d + 1 for d in range(3) if g[d] > 1)] for g in possible]
        expected = min(trimmed, key=lambda g: (len(g), *(-n for n in g)), default=(p,))
        assert best_grid(model, p) == expected, p
    for p in (10**30, 2**26 + 1, math.prod(size) + 1):
        assert best_grid(model, p) == (p,)
        with pytest.raises(InputError, match="at most 512 x 512 x 256 ranks"):
            divide(model, "spatial", p, 1)


@pytest.mark.parametrize(
    ("strategy", "p", "inner", "message"),
    [
        ("serial", 2, 1, "serial runs on 1 rank, not on 2"),
        ("data", 5, 1, "p = 5 does not divide the batch of 12 samples"),
        ("data", 24, 1, "p = 24 is over the batch of 12 samples"),
        ("data+filter", 10, 2, "p1 = 5 does not divide the batch"),
        ("data+filter", 6, 4, "p = 6 is not p1 x p2 with p2 = 4"),
        ("filter", 5, 1, "l1 has only 4 filters, so p is at most 4"),
        ("data+filter", 12, 6, "on p2 = 6: l1 has only 4 filters, so p2 is at most 4"),
        ("channel", 49, 1, "fc has only 48 channels, so p is at most 48"),
        ("pipeline", 7, 1, "only 6 layers"),
        (
            "spatial",
            49,
            1,
            "l1, cannot be split: its height of 8 in 49 parts .* at most 8 x 6 ranks",
        ),
        ("expert", 2, 1, "unknown strategy 'expert'; known: serial, data, fully_sharded"),
    ],
)
def test_limits(strategy: str, p: int, inner: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        divide(small(), strategy, p, 12, inner)


def test_limits_of_segments_grids_and_kinds() -> None:
    with pytest.raises(InputError, match="5 segments do not divide the batch of 12"):
        divide(small(), "pipeline", 2, 12, segments=5)
    with pytest.raises(InputError, match="not a layout of 4 ranks"):
        rank_shards(small(), Division("spatial", 4, 12, grid=(3, 2)))
    with pytest.raises(InputError, match="must be at least 1"):
        Division("data", 0, 12)
    with pytest.raises(InputError, match="a linear layer needs the whole image; it needs images"):
        divide(mlp([8, 4]), "spatial", 2, 4)
    with pytest.raises(InputError, match="hand has no layer that channel could split"):
        divide(mlp([8, 4]), "channel", 2, 4)
    halo = model_of([conv(1, 1, (8,), 7, 1, 3)])
    with pytest.raises(InputError, match="height of 8 in 4 parts is shorter than the halo of 3"):
        divide(halo, "spatial", 4, 4)
    ceil = pool("avg_pool", 1, (7,), 2, 2, 0).model_copy(update={"output_shape": (1, 4)})
    assert "ceil_mode" in why_whole(ceil, (2,))
    assert why_whole(conv(1, 1, (8,), 3, 1, 1), (2, 2)) == "it has 1 spatial dimensions"


def test_grouped_convolutions_stay_whole() -> None:
    grouped = conv(4, 4, (8, 8), 3, 1, 1)
    grouped = grouped.model_copy(
        update={
            "attributes": {**grouped.attributes, "groups": 4},
            "parameter_shapes": ((4, 1, 3, 3), (4,)),
        }
    )
    model = model_of([conv(3, 4, (8, 8), 3, 1, 1), grouped])
    assert [layer.name for layer in split_layers(model, divide(model, "filter", 2, 2))] == [
        "l1",
        "fc",
    ]


def test_one_part_is_the_whole_model() -> None:
    model = small()
    serial = rank_shards(model, divide(model, "serial", 1, 4))
    for strategy in STRATEGIES:
        assert rank_shards(model, divide(model, strategy, 1, 4)) == serial
