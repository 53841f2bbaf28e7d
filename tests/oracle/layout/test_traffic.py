"""Messages against closed forms of formulas.md, on a model made by hand and on vgg16-mini."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from tests.helpers.divided import divide
from tests.oracle.handmade import mlp
from tests.oracle.shapes import conv, model_of, small

from calib.foundation.division import STRATEGIES, Division
from calib.foundation.errors import InputError
from calib.microbench.cases import CollectiveCase
from calib.oracle.layout.shards import rank_parameters
from calib.oracle.layout.traffic import Message, gradient_messages, messages
from calib.oracle.model.spec import ModelSpec
from calib.training.models.specs import spec

B = 12
# conv 3 -> 4 on 8 x 6, ReLU, max pool by 2, FC 48 -> 6; |w| + |bi| = 108 + 4 and 288 + 6
W = 4 * (108 + 4 + 288 + 6)


def sent(strategy: str, p: int, inner: int = 1, segments: int = 1) -> list[Message]:
    return messages(small(), divide(small(), strategy, p, B, inner, segments))


def terms(found: list[Message]) -> list[tuple[str, int, int]]:
    return [(message.operation, message.nbytes, message.group_size) for message in found]


def test_nothing_on_one_rank() -> None:
    for strategy in STRATEGIES:
        assert sent(strategy, 1) == []


def test_data() -> None:
    """AR(p, W)."""
    (message,) = sent("data", 3)
    assert message == Message("allreduce", W, 3, why=message.why)


def test_spatial() -> None:
    """The first layer's halo of x: C x 1 row x width; no dL/dx of it; AG of the pool's y; AR of W."""
    found = sent("spatial", 2)
    assert terms(found) == [
        ("halo", 4 * B * 3 * 1 * 6, 2),
        ("allgather", 4 * B * 4 * 4 * 3, 2),
        ("allreduce", W, 2),
    ]
    assert found[0].grid == (2,)


def test_spatial_backward_halo() -> None:
    """A second convolution 4 -> 5 sends a row of dL/dy, which has its 5 filters."""
    model = model_of([conv(3, 4, (8, 6), 3, 1, 1), conv(4, 5, (8, 6), 5, 1, 2)])
    found = messages(model, divide(model, "spatial", 2, B))
    halos = [message.nbytes for message in found if message.operation == "halo"]
    assert halos == [4 * B * 3 * 1 * 6, 4 * B * 4 * 2 * 6, 4 * B * 5 * 2 * 6]
    assert [m.why for m in found if m.operation == "halo"][-1] == "halo of dL/dy of l2"


def test_spatial_in_two_dimensions() -> None:
    """On 2 x 2 ranks a row of a part is 3 wide and a column 4 high: the larger, 4, is the message."""
    model = small()
    found = messages(model, Division("spatial", 4, B, grid=(2, 2)))
    assert found[0] == Message("halo", 4 * B * 3 * 4, 4, grid=(2, 2), why=found[0].why)


def test_filter() -> None:
    """AG of y, of the last layer for the loss; AR of dL/dx but of the first. Weights stay."""
    assert terms(sent("filter", 2)) == [
        ("allgather", 4 * B * 4 * 8 * 6, 2),
        ("allgather", 4 * B * 6, 2),
        ("allreduce", 4 * B * 48, 2),
    ]


def test_channel() -> None:
    """Split from the second weighted layer: AR of y, AG of dL/dx, of the first split one too."""
    assert terms(sent("channel", 2)) == [
        ("allreduce", 4 * B * 6, 2),
        ("allgather", 4 * B * 48, 2),  # for the gradients of the convolution's weights
    ]
    three = mlp([8, 6, 4, 2])
    assert terms(messages(three, divide(three, "channel", 2, B))) == [
        ("allreduce", 4 * B * 4, 2),
        ("allreduce", 4 * B * 2, 2),
        ("allgather", 4 * B * 4, 2),  # dL/dx of fc3
        ("allgather", 4 * B * 6, 2),  # dL/dx of fc2
    ]
    aside = [conv(3, 3, (8, 6), 3, 1, 1), conv(3, 5, (8, 6), 3, 1, 1)]
    both = read_by("input", model_of(aside))  # nobody needs the gradient of the image
    assert terms(messages(both, divide(both, "channel", 2, B))) == [
        ("allreduce", 4 * B * 5 * 8 * 6, 2),
        ("allreduce", 4 * B * 6, 2),
        ("allgather", 4 * B * 5 * 8 * 6, 2),
    ]


def read_by(source: str, model: ModelSpec) -> ModelSpec:
    """The model whose second layer reads `source` instead, which is behind no weights."""
    first, second, *rest = model.layers
    moved = second.model_copy(update={"inputs": (source,), "needs_input_grad": False})
    return model.model_copy(update={"layers": (first, moved, *rest)})


def test_pipeline() -> None:
    """|y| of a micro-batch of B/S after every layer that runs, but not after the loss."""
    assert terms(sent("pipeline", 2, segments=4)) == [
        ("p2p", 4 * 3 * items, 2) for items in (192, 192, 48, 6)
    ]


def test_data_filter() -> None:
    """B/p1 inside p1 groups at once; then the p2 shards' gradients, p2 apart, p2 rings at once."""
    found = sent("data+filter", 6, inner=2)
    inside = [("allgather", 192), ("allgather", 6), ("allreduce", 48)]
    assert terms(found) == [
        *[(operation, 4 * 4 * items, 2) for operation, items in inside],
        ("allreduce", W // 2, 3),
    ]
    assert [(m.stride, m.groups) for m in found] == [(1, 3), (1, 3), (1, 3), (2, 2)]


def test_data_spatial() -> None:
    """Halos and allgather of B/p1 inside p1 groups at once; W by a leader of each p2 ranks."""
    found = sent("data+spatial", 6, inner=2)
    assert terms(found) == [
        ("halo", 4 * 4 * 3 * 6, 2),
        ("allgather", 4 * 4 * 48, 2),
        ("hierarchical_allreduce", W, 6),
    ]
    assert [(m.groups, m.grid, m.inner) for m in found] == [(3, (2,), 0), (3, (), 0), (1, (), 2)]


def test_vgg16_mini() -> None:
    """13 convolutions and 3 fully connected layers, by their published shapes."""
    model, batch = spec("vgg16-mini"), 8
    widths = [(16, 64)] * 2 + [(32, 32)] * 2 + [(64, 16)] * 3 + [(128, 8)] * 3 + [(128, 4)] * 3
    outputs = [f * n * n for f, n in widths] + [1024, 1024, 100]
    inputs = [3 * 64 * 64, 16 * 64 * 64, 16 * 32 * 32, 32 * 32 * 32, 32 * 16 * 16]
    inputs += [64 * 16 * 16] * 2 + [64 * 8 * 8] + [128 * 8 * 8] * 2 + [128 * 4 * 4] * 3
    inputs += [128 * 2 * 2, 1024, 1024]
    volume = Counter[str]()
    for message in messages(model, divide(model, "filter", 4, batch)):
        volume[message.operation] += message.nbytes
    assert volume == {
        "allgather": 4 * batch * sum(outputs),
        "allreduce": 4 * batch * sum(inputs[1:]),
    }
    volume = Counter[str]()
    for message in messages(model, divide(model, "channel", 4, batch)):
        volume[message.operation] += message.nbytes
    assert volume == {
        "allreduce": 4 * batch * sum(outputs[1:]),
        "allgather": 4 * batch * sum(inputs[1:]),
    }
    spatial = messages(model, divide(model, "spatial", 2, batch))
    rows = [c * n for c, n in [(3, 64), (16, 64), (16, 32), (32, 32), (32, 16), (64, 16), (64, 16)]]
    rows += [c * n for c, n in [(64, 8), (128, 8), (128, 8)] + [(128, 4)] * 3]
    forward = [m.nbytes for m in spatial if m.why.startswith("halo of x")]
    assert forward == [4 * batch * items for items in rows]
    back = [m.nbytes for m in spatial if m.why.startswith("halo of dL/dy")]
    assert back == [4 * batch * f * n for f, n in reversed(widths[1:])]
    (end,) = [m for m in spatial if m.operation == "allgather"]
    assert end.nbytes == 4 * batch * 128 * 2 * 2
    hybrid = messages(model, divide(model, "data+filter", 4, batch, inner=2))
    # all widths are even, so each rank has half of every weight
    assert hybrid[-1].nbytes * 2 == 4 * model.parameter_items


def test_batch_norms_of_a_shard_are_whole() -> None:
    """resnet50-mini, 2 x 2: half of the weighted layers' items, and all of the batch norms'."""
    model = spec("resnet50-mini")
    division = divide(model, "data+filter", 4, 8, inner=2)
    shapes = [layer.shape for layer in model.layers]
    norms = sum(shape.parameter_items for shape in shapes if shape.kind == "batch_norm")
    items = (model.parameter_items - norms) // 2 + norms
    assert messages(model, division)[-1].nbytes == 4 * items
    assert sum(math.prod(shape) for shape in rank_parameters(model, division)) == items


@pytest.mark.parametrize("name", ["vgg16-mini", "resnet50-mini", "cosmoflow-mini"])
def test_every_message_is_a_case(name: str) -> None:
    """Operation, bytes, groups and grid are what microbench accepts, on 4 ranks."""
    model = spec(name)
    count = 0
    for strategy in list(STRATEGIES)[1:]:
        if strategy == "sequence" or (strategy == "tensor" and name == "resnet50-mini"):
            continue  # without attention, and of one linear layer
        division = divide(model, strategy, 4, 8, 2 if "+" in strategy else 1, segments=2)
        for m in messages(model, division):
            case = CollectiveCase(
                operation=m.operation,
                nbytes=m.nbytes,
                group_size=m.group_size,
                stride=m.stride,
                groups=m.groups,
                grid=m.grid,
                inner=m.inner,
                ranks=4,
            )
            assert case.nbytes == m.nbytes
            count += 1
    assert count > 50


@pytest.mark.parametrize(("execution", "gradients"), [("bfloat16", 2), ("bfloat16-mixed", 4)])
def test_half_precision_halves_activations(execution: str, gradients: int) -> None:
    """|y| of 2 bytes an item; gradients as the weights are; sizes are rounded up to 4 bytes."""
    model, some = small(), 0
    for strategy, p in (
        ("spatial", 2),
        ("filter", 2),
        ("channel", 2),
        ("pipeline", 2),
        ("data", 4),
    ):
        division = divide(model, strategy, p, B)
        whole, half = messages(model, division), messages(model.run_as(execution), division)
        exchanged = len(gradient_messages(model, division))
        cut = len(whole) - exchanged
        assert [2 * m.nbytes for m in half[:cut]] == [m.nbytes for m in whole[:cut]]
        for before, after in zip(whole[cut:], half[cut:], strict=True):
            assert 4 * after.nbytes == gradients * before.nbytes
        some += cut
    assert some > 4
    (message, *_) = messages(
        mlp([3, 3, 3]).run_as(execution), divide(mlp([3, 3, 3]), "filter", 3, 1)
    )
    assert message.nbytes == 8  # 3 items of 2 bytes


def test_where_the_split_ends() -> None:
    """resnet50-mini on 2 ranks: before the average pool. In 16 rows: inside the first block of stage 1,
    whose 3x3 convolution makes 8 rows of 16; it and the shortcut each read a layer that was cut.
    """
    model = spec("resnet50-mini")
    gathers = {
        p: [
            m.nbytes
            for m in messages(model, Division("spatial", p, 2))
            if m.operation == "allgather"
        ]
        for p in (2, 16)
    }
    assert gathers == {2: [4 * 2 * 512 * 2 * 2], 16: [4 * 2 * 32 * 16 * 16, 4 * 2 * 64 * 16 * 16]}


def test_what_cannot_be_divided() -> None:
    with pytest.raises(InputError, match="at most 4"):
        messages(small(), Division("filter", 5, 5))
