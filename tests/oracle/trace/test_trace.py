"""Traces against real forwards, an independent FLOP counter, and models that must be refused."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.helpers.programs import build
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from calib.foundation.errors import InputError
from calib.foundation.layers import Shape
from calib.microbench.layers.build import build_layer, make_inputs
from calib.oracle.model.spec import ModelSpec
from calib.oracle.trace.tracing import trace
from calib.training.models import entry

MINIS = ("alexnet-mini", "vgg16-mini", "resnet50-mini", "inception-v3-mini", "cosmoflow-mini")


@cache
def mini_spec(name: str) -> ModelSpec:
    found = entry(name)
    return trace(found.build(), found.input_shape, name, found.loss, found.auxiliary_weight)


def hooked_shapes(module: nn.Module, input_shape: Shape) -> dict[str, tuple[Shape, Shape]]:
    """Per-sample (input, output) shape of each leaf module in a real forward of two samples."""
    seen: dict[str, tuple[Shape, Shape]] = {}

    def hook(name: str) -> Any:
        def record(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            seen[name] = (tuple(inputs[0].shape[1:]), tuple(output.shape[1:]))

        return record

    for name, leaf in module.named_modules():
        if not list(leaf.children()) and not isinstance(leaf, nn.Identity):
            leaf.register_forward_hook(hook(name))
    module(torch.zeros(2, *input_shape))
    return seen


@pytest.mark.parametrize("name", MINIS)
def test_shapes_are_those_of_a_real_forward(name: str) -> None:
    model = mini_spec(name)
    real = hooked_shapes(build(name, 0), model.input_shape)
    functions = ("add", "concat", "flatten")
    modules = [x for x in model.layers[:-1] if x.shape.kind not in functions or x.name in real]
    assert {x.name: (x.shape.input_shapes[0], x.shape.output_shape) for x in modules} == real


@pytest.mark.parametrize("name", MINIS)
def test_edges_carry_their_shapes(name: str) -> None:
    """Each layer reads earlier layers, at the shape that they put out."""
    model = mini_spec(name)
    shapes: dict[str, Shape] = {"input": model.input_shape}
    for layer in model.layers:
        assert tuple(shapes[source] for source in layer.inputs) == layer.shape.input_shapes
        assert layer.name not in shapes
        shapes[layer.name] = layer.shape.output_shape


@pytest.mark.parametrize("name", MINIS)
def test_parameters_are_those_of_the_module(name: str) -> None:
    expected = tuple(tuple(parameter.shape) for parameter in build(name, 0).parameters())
    assert mini_spec(name).parameter_shapes == expected


@pytest.mark.parametrize("name", MINIS)
def test_flops_equal_torchs_counter(name: str) -> None:
    model, module = mini_spec(name), build(name, 0)
    batch = 3
    with FlopCounterMode(display=False) as counter:
        module(torch.zeros(batch, *model.input_shape))
    assert counter.get_total_flops() == 2 * batch * model.multiply_adds()
    weighted = [x.shape for x in model.layers if x.shape.kind in ("conv", "linear")]
    assert counter.get_total_flops() == sum(shape.forward_flops(batch) for shape in weighted)


@pytest.mark.parametrize("name", MINIS)
def test_only_the_first_convolution_needs_no_input_gradient(name: str) -> None:
    model = mini_spec(name)
    assert [x.name for x in model.layers if not x.needs_input_grad] == [model.layers[0].name]
    assert model.layers[0].shape.kind == "conv"


def test_nothing_before_the_first_weight_needs_a_gradient() -> None:
    module = nn.Sequential(nn.AvgPool2d(2), nn.ReLU(), nn.Conv2d(3, 4, 1), nn.ReLU(), nn.Flatten())
    model = trace(module, (3, 4, 4), "small", "mse")
    assert [x.needs_input_grad for x in model.layers] == [False, False, False, True, True, True]


def test_residual_join_has_both_inputs_in_order() -> None:
    layers = {layer.name: layer for layer in mini_spec("resnet50-mini").layers}
    assert layers["stages.0.0.add"].inputs == ("stages.0.0.bn3", "stages.0.0.shortcut.1")
    assert layers["stages.0.1.add"].inputs == ("stages.0.1.bn3", "stages.0.0.relu3")  # no Identity
    assert layers["stages.0.1.add"].shape.kind == "add"


def test_attributes() -> None:
    module = nn.Sequential(
        nn.Conv2d(4, 8, (3, 5), stride=2, padding=(1, 2), groups=2, bias=False),
        nn.Conv2d(8, 8, 3, padding="same"),
        nn.MaxPool2d(3, 2, ceil_mode=True),
        nn.AvgPool2d(2, 1, padding=1),
        nn.Dropout(0.25),
        nn.AdaptiveAvgPool2d((2, 1)),
        nn.Flatten(),
        nn.Linear(16, 5),
    )
    shapes = [layer.shape for layer in trace(module, (4, 20, 20), "attributes", "mse").layers]
    assert shapes[0].attributes == {
        "kernel": (3, 5),
        "stride": (2, 2),
        "padding": (1, 2),
        "groups": 2,
    }
    assert shapes[0].parameter_shapes == ((8, 2, 3, 5),)
    assert shapes[1].attributes["padding"] == (1, 1)
    assert shapes[2].attributes == {
        "kernel": (3, 3),
        "stride": (2, 2),
        "padding": (0, 0),
        "ceil_mode": True,
    }
    assert shapes[2].output_shape == (8, 5, 5)  # 4 where the pooling rounds down
    assert shapes[3].attributes["padding"] == (1, 1)
    assert shapes[4].attributes == {"probability": 0.25}
    assert shapes[5].attributes == {} and shapes[5].output_shape == (8, 2, 1)
    assert shapes[7].parameter_shapes == ((5, 16), (5,))


def test_padding_by_name_is_in_numbers_where_it_is_the_same_on_both_sides() -> None:
    module = nn.Sequential(
        nn.Conv2d(3, 4, (3, 5), padding="same"),
        nn.Conv2d(4, 4, 3, padding="valid"),
        nn.Conv2d(4, 4, 2, padding="same"),
    )
    same, valid, uneven = (x.shape for x in trace(module, (3, 8, 8), "padded", "mse").layers[:3])
    assert same.attributes["padding"] == (1, 2) and same.output_shape == (4, 8, 8)
    assert valid.attributes["padding"] == (0, 0) and valid.output_shape == (4, 6, 6)
    assert uneven.kind == "operator" and uneven.output_shape == (4, 6, 6)


def test_layers_in_place_are_of_the_same_kinds() -> None:
    module = nn.Sequential(nn.Linear(6, 6), nn.ReLU(True), nn.Dropout(0.3, True))
    layers = trace(module, (6,), "in place", "mse").layers
    assert [x.shape.kind for x in layers] == ["linear", "relu", "dropout", "mse"]
    assert layers[2].shape.attributes == {"probability": 0.3}


@pytest.mark.parametrize(
    "options", [{}, {"momentum": None}, {"track_running_stats": False}, {"affine": False}]
)
def test_every_batch_norm_in_train_mode_is_one_kind(options: dict[str, Any]) -> None:
    """Also with a cumulative average, whose factor depends on a count."""
    module = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4, **options))
    norm = trace(module, (3, 8, 8), "normed", "mse").layers[1].shape
    assert norm.kind == "batch_norm" and norm.attributes == {}
    assert norm.parameter_shapes == (() if options == {"affine": False} else ((4,), (4,)))


class Forward(nn.Module):
    """A module whose forward is the given function of (self, x)."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function
        self.linear = nn.Linear(6, 6)
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Any:
        return self.function(self, x)


def test_functions_methods_and_operators() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        y = self.relu(self.linear(x))
        z = torch.add(self.relu(y + y), F.relu(y))
        z += y
        return torch.relu(z.add(y)).flatten(1)

    model = trace(Forward(forward), (6,), "functions", "mse")
    assert [(x.name, x.inputs) for x in model.layers] == [
        ("linear", ("input",)),
        ("relu", ("linear",)),
        ("add", ("relu", "relu")),
        ("relu#2", ("add",)),
        ("relu#3", ("relu",)),
        ("add#2", ("relu#2", "relu#3")),
        ("add#3", ("add#2", "relu")),
        ("add#4", ("add#3", "relu")),
        ("relu#4", ("add#4",)),
        ("flatten", ("relu#4",)),
        ("loss", ("flatten",)),
    ]


class Functional(nn.Module):
    """Poolings, dropout and views as functions and methods, of images of `rank` dimensions."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.conv = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[rank - 1](2, 4, 1)
        self.max = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[rank - 1]
        self.average = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[rank - 1]
        self.adaptive = (F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d)[
            rank - 1
        ]
        self.linear = nn.Linear(4 * 2**rank, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.max(self.conv(x), 3, 2, padding=1)
        x = self.average(self.max(x, kernel_size=2), 2, 1, 1, True)
        x = F.dropout(self.adaptive(x, 2), 0.25, self.training)
        x = x.view(x.size(0), -1).view((x.shape[0], -1)).reshape(x.size()[0], -1)
        y: Tensor = self.linear(torch.reshape(torch.flatten(x, 1), (-1, x.size(1))))
        return y


class Modules(nn.Sequential):
    """The same of modules."""

    def __init__(self, rank: int) -> None:
        of = rank - 1
        super().__init__(
            (nn.Conv1d, nn.Conv2d, nn.Conv3d)[of](2, 4, 1),
            (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d)[of](3, 2, 1),
            (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d)[of](2),
            (nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d)[of](2, 1, 1, True),
            (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d)[of](2),
            nn.Dropout(0.25),
            *(nn.Flatten() for _ in range(5)),
            nn.Linear(4 * 2**rank, 3),
        )


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_functions_are_traced_as_their_modules(rank: int) -> None:
    """Layer for layer the same shapes and attributes, so that they find the same measured times."""
    found = trace(Functional(rank), (2, *[13] * rank), "functional", "mse")
    expected = trace(Modules(rank), (2, *[13] * rank), "modules", "mse")
    assert [x.shape for x in found.layers] == [x.shape for x in expected.layers]
    sources = ["input", *[x.name for x in found.layers]]
    assert [x.inputs for x in found.layers] == [(name,) for name in sources[:-1]]
    assert tuple(Functional(rank)(torch.zeros(5, 2, *[13] * rank)).shape) == (5, 3)


def test_a_pooling_over_the_whole_image() -> None:
    """Its kernel is what x.shape is when it runs."""

    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 1)

        def forward(self, x: Tensor) -> Tensor:
            y = self.conv(x)
            return F.avg_pool2d(y, y.shape[2:]).flatten(1)

    pooled = trace(Whole(), (3, 6, 5), "whole", "mse").layers[1].shape
    assert pooled.output_shape == (4, 1, 1)
    assert pooled.attributes == {
        "kernel": (6, 5),
        "stride": (6, 5),
        "padding": (0, 0),
        "ceil_mode": False,
    }


class Later(nn.Module):
    """The kinds that the built-in models do not use."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 6)
        self.norm = nn.LayerNorm((4, 6))
        self.soft = nn.Softmax(dim=-2)
        self.plain = nn.LayerNorm(6, elementwise_affine=False)
        self.head = nn.Linear(6, 5)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.norm(self.table(tokens))
        x = torch.cat([x, self.soft(x), x], 1)
        x = torch.concat((x, F.softmax(self.plain(x), dim=1)), dim=-2)
        x = torch.softmax(input=x, dim=1)
        y: Tensor = self.head(torch.cat(tensors=(F.relu(input=x), x.softmax(1)), axis=1)).flatten(1)
        return y


def test_embedding_norm_softmax_and_concat() -> None:
    module = Later()
    model = trace(module, (4,), "later", "mse")
    assert [(x.name, x.shape.kind, x.inputs, x.shape.output_shape) for x in model.layers] == [
        ("table", "embedding", ("input",), (4, 6)),
        ("norm", "layer_norm", ("table",), (4, 6)),
        ("soft", "softmax", ("norm",), (4, 6)),
        ("concat", "concat", ("norm", "soft", "norm"), (12, 6)),
        ("plain", "layer_norm", ("concat",), (12, 6)),
        ("softmax", "softmax", ("plain",), (12, 6)),
        ("concat#2", "concat", ("concat", "softmax"), (24, 6)),
        ("softmax#2", "softmax", ("concat#2",), (24, 6)),
        ("relu", "relu", ("softmax#2",), (24, 6)),
        ("softmax#3", "softmax", ("softmax#2",), (24, 6)),
        ("concat#3", "concat", ("relu", "softmax#3"), (48, 6)),
        ("head", "linear", ("concat#3",), (48, 5)),
        ("flatten", "flatten", ("head",), (240,)),
        ("loss", "mse", ("flatten",), ()),
    ]
    shapes = {layer.name: layer.shape for layer in model.layers}
    assert shapes["table"].parameter_shapes == ((50, 6),) and shapes["table"].input_shapes == (
        (4,),
    )
    assert shapes["norm"].attributes == {"normalized_shape": (4, 6)}
    assert shapes["norm"].parameter_shapes == ((4, 6), (4, 6))
    assert shapes["plain"].attributes == {"normalized_shape": (6,)}
    assert shapes["plain"].parameter_shapes == ()
    assert shapes["concat"].input_shapes == ((4, 6),) * 3
    assert [layer.needs_input_grad for layer in model.layers] == [False] + [True] * 13
    assert model.parameter_items == sum(p.numel() for p in module.parameters())
    assert tuple(module(torch.zeros(2, 4, dtype=torch.int64)).shape) == (2, 240)


def test_traced_layers_of_later_kinds_can_be_built() -> None:
    """What the trace says can be measured: the layer built from it gives the traced shape."""
    for layer in trace(Later(), (4,), "later", "mse").layers[:-1]:
        built = build_layer(layer.shape, torch.float32, torch.device("cpu"))
        generator = torch.Generator().manual_seed(0)
        inputs = make_inputs(
            layer.shape, 3, torch.float32, torch.device("cpu"), layer.needs_input_grad, generator
        )
        assert tuple(built(*inputs).shape) == (3, *layer.shape.output_shape)


@torch.no_grad()
def decayed(weight: Tensor) -> Tensor:
    return weight.mul_(0.9).sum()


def in_half_precision(self: Forward, x: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return self.linear(x)


REFUSED = {
    "view of a fixed batch": (
        Forward(lambda self, x: self.linear(x).view(2, 6)),
        ["torch.export", "line", "view(2, 6)", "shape '[2, 6]' is invalid"],
    ),
    "size returned": (Forward(lambda self, x: self.linear(x).size(0)), ["must return one tensor"]),
    "shapes that do not fit": (nn.Sequential(nn.Linear(7, 6)), ["in 0 (Linear)", "[batch, 6]"]),
    "two inputs": (nn.Bilinear(6, 6, 2), ["(Bilinear)", "exactly one input", "'input2'"]),
    "unused parameters": (Forward(lambda self, x: self.relu(x)), ["tensor with a gradient"]),
    "norm over samples": (
        nn.Sequential(nn.Linear(6, 6), nn.LayerNorm((2, 6))),
        ["normalized_shape=[2, 6]"],
    ),
    "embedding of activations": (
        nn.Sequential(nn.Linear(6, 6), nn.Embedding(5, 3)),
        ["'indices'", "Long, Int"],
    ),
    "two outputs": (
        Forward(lambda self, x: (self.linear(x), x)),
        ["must return one tensor, not 2"],
    ),
    "one sample": (Forward(lambda self, x: self.linear(x)[0]), ["first dimension is the batch"]),
    "transposed": (
        Forward(lambda self, x: self.linear(x).transpose(0, 1)),
        ["first dimension is the batch"],
    ),
    "products of samples": (
        Forward(lambda self, x: self.linear(x) @ x.T @ x),
        ["aten.matmul.default", ", line ", "the batch multiplies several"],
    ),
    "indices": (Forward(lambda self, x: self.linear(x).argmax(1)), ["with a gradient", "int64"]),
    "changes its weights": (
        Forward(lambda self, x: self.linear(x) + decayed(self.linear.weight)),
        ["changes its weight linear.weight"],
    ),
    "control flow": (
        Forward(lambda self, x: self.linear(x) if x.sum() > 0 else x),
        ["torch.export", "control flow depends on data"],
    ),
    "autocast": (Forward(in_half_precision), ["turns autocast on, for bfloat16"]),
    "no weights": (nn.Sequential(nn.ReLU()), ["has no weights"]),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_in_one_line_that_says_where(case: str) -> None:
    module, words = REFUSED[case]
    with pytest.raises(InputError) as caught:
        trace(module, (6,), "refused", "mse")
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message


def test_module_is_left_as_it_was() -> None:
    module = build("resnet50-mini", 0).eval()
    before = {key: value.clone() for key, value in module.state_dict().items()}
    trace(module, (3, 64, 64), "resnet50-mini", "cross_entropy")
    after = module.state_dict()
    assert not module.training and all(p.device.type == "cpu" for p in module.parameters())
    assert all(torch.equal(before[key], after[key]) for key in before)


@st.composite
def convolutional_nets(draw: st.DrawFn) -> tuple[nn.Module, Shape]:
    """A random Sequential of convolutions, poolings, norms, ReLU and dropout, and its input shape."""
    rank = draw(st.integers(1, 3))
    conv = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[rank - 1]
    norm = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)[rank - 1]
    pool = (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d)[rank - 1]
    average = (nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d)[rank - 1]
    size = tuple(draw(st.lists(st.integers(8, 12), min_size=rank, max_size=rank)))
    channels = first = draw(st.integers(1, 3))
    layers: list[nn.Module] = []
    for _ in range(draw(st.integers(1, 3))):
        outputs, kernel = draw(st.integers(1, 4)), draw(st.integers(1, 3))
        stride = draw(st.integers(1, 2))
        layers.append(
            conv(channels, outputs, kernel, stride, kernel // 2, bias=draw(st.booleans()))
        )
        channels = outputs
        layers += draw(
            st.lists(
                st.sampled_from([norm(outputs), nn.ReLU(), nn.Dropout(0.5)]),
                max_size=2,
                unique=True,
            )
        )
        if draw(st.booleans()):
            kind = draw(st.sampled_from([pool, average]))
            layers.append(kind(2, 1, padding=1, ceil_mode=draw(st.booleans())))
    return nn.Sequential(*layers, nn.Flatten()), (first, *size)


@settings(max_examples=40)
@given(net=convolutional_nets())
def test_random_nets_have_the_shapes_and_flops_of_a_forward(net: tuple[nn.Module, Shape]) -> None:
    module, input_shape = net
    model = trace(module, input_shape, "random", "mse")
    traced = {x.name: (x.shape.input_shapes[0], x.shape.output_shape) for x in model.layers[:-1]}
    with FlopCounterMode(display=False) as counter:
        real = hooked_shapes(module, input_shape)
    assert traced == real
    assert counter.get_total_flops() == 2 * 2 * model.multiply_adds()
    assert model.parameter_items == sum(p.numel() for p in module.parameters())
