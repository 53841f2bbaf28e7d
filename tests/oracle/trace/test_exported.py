"""Models that calib's own kinds of layer cannot hold: every ATen operator is one.

The models are small ones of this decade's kinds, written here; each is checked against itself: its
parameters, PyTorch's own count of FLOPs, and every layer rebuilt and run by itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from calib.fitting.parameters.work import work_of
from calib.foundation.layers import Shape
from calib.foundation.operators import one_sample, whole_size
from calib.microbench.layers.operators import operator_call, operator_constants, operator_inputs
from calib.oracle.model.spec import ModelSpec
from calib.oracle.trace.tracing import trace

CPU = torch.device("cpu")


class Attention(nn.Module):
    """Causal self-attention with a fused product of queries, keys and values."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        samples, length, width = x.shape
        q, k, v = (
            part.view(samples, length, self.heads, width // self.heads).transpose(1, 2)
            for part in self.qkv(x).chunk(3, dim=-1)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        made: Tensor = self.out(y.transpose(1, 2).reshape(samples, length, width))
        return made


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.before, self.behind = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.before(x))
        made: Tensor = x + self.mlp(self.behind(x))
        return made


class Gpt(nn.Module):
    """Tokens and positions, blocks, and a head whose weights are the table's."""

    def __init__(self, words: int = 50, width: int = 16, heads: int = 4, length: int = 12) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        made: Tensor = self.head(self.norm(x))
        return made


class Vit(nn.Module):
    """Patches, a class token and learned positions, PyTorch's own encoder."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 16, 8, 8)
        self.token = nn.Parameter(torch.zeros(1, 1, 16))
        self.places = nn.Parameter(torch.zeros(1, 17, 16))
        layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        y = self.patches(x).flatten(2).transpose(1, 2)
        y = torch.cat((self.token.expand(x.shape[0], -1, -1), y), 1) + self.places
        made: Tensor = self.head(self.encoder(y)[:, 0])
        return made


class ConvNext(nn.Module):
    """Depthwise convolution, norm over channels behind, layer scale, stochastic depth."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 4, 4)
        self.depthwise = nn.Conv2d(8, 8, 7, padding=3, groups=8)
        self.norm, self.wide, self.narrow = nn.LayerNorm(8), nn.Linear(8, 32), nn.Linear(32, 8)
        self.scale = nn.Parameter(1e-6 * torch.ones(8))
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = (self.scale * self.narrow(F.gelu(self.wide(y)))).permute(0, 3, 1, 2)
        keep = torch.empty(x.shape[0], 1, 1, 1).bernoulli_(0.9).div_(0.9)
        made: Tensor = self.head((x + y * keep).mean((2, 3)))
        return made


class Mobile(nn.Module):
    """Inverted residual with squeeze and excitation."""

    def __init__(self) -> None:
        super().__init__()
        self.expand, self.norm = nn.Conv2d(3, 12, 1, bias=False), nn.BatchNorm2d(12)
        self.down, self.up = nn.Conv2d(12, 4, 1), nn.Conv2d(4, 12, 1)
        self.head = nn.Linear(12, 7)

    def forward(self, x: Tensor) -> Tensor:
        y = F.hardswish(self.norm(self.expand(x)), inplace=True)
        gate = self.up(F.silu(self.down(y.mean((2, 3), keepdim=True)))).sigmoid()
        made: Tensor = self.head(F.adaptive_avg_pool2d(y * gate, 1).flatten(1))
        return made


class Unet(nn.Module):
    """Down, up by a transposed convolution, a skip joined along the channels, group norm."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.down = nn.Conv2d(8, 16, 3, stride=2, padding=2, dilation=2)
        self.up = nn.ConvTranspose2d(16, 8, 2, 2)
        self.norm, self.last = nn.GroupNorm(4, 16), nn.Conv2d(16, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        skip = F.silu(self.first(x))
        y = F.interpolate(self.up(self.down(skip)), size=skip.shape[2:], mode="nearest")
        made: Tensor = self.last(self.norm(torch.cat((skip, y), 1)))
        return made


class Windows(nn.Module):
    """Attention in shifted windows: the batch in front of heads and windows, a table of positions."""

    index: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)
        self.table = nn.Parameter(torch.zeros(7, 2))
        self.register_buffer("index", torch.arange(4)[:, None] - torch.arange(4)[None] + 3)

    def forward(self, x: Tensor) -> Tensor:
        samples = x.shape[0]
        y = torch.roll(x, -2, 1).view(samples * 4, 4, 8)
        q, k, v = self.qkv(y).view(samples * 4, 4, 3, 2, 4).permute(2, 0, 3, 1, 4)
        bias = self.table[self.index.view(-1)].view(4, 4, 2).permute(2, 0, 1)
        weights = (q * 0.5 @ k.transpose(-2, -1) + bias.unsqueeze(0)).softmax(-1)
        y = (weights @ v).transpose(1, 2).reshape(samples, 16, 8)
        made: Tensor = self.out(torch.roll(y, 2, 1)).mean(1)
        return made


class Parts(nn.Module):
    """Parts of tensors, written in place: what reads the whole reads them, too."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.more = nn.Linear(6, 4), nn.Linear(6, 4), nn.Linear(6, 2)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        self.left.weight.abs()  # of no use
        y = torch.zeros(x.shape[0], 8)
        y[:, :4] = self.left(x)
        y[:, 4:].copy_(self.right(x))
        with torch.autocast("cpu", enabled=False):  # as rotations of attention have it
            y[:, 3:5] += self.more(x)
        made: Tensor = self.head(y)
        return made


class Routed(nn.Module):
    """Experts by the largest scores: what is counted of their indices has no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.scores, self.head = nn.Linear(6, 5), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        values, experts = self.scores(x).topk(2, -1)
        shares = experts.float().cumsum(-1, dtype=torch.int32)
        made: Tensor = self.head(x * values.sum(-1, keepdim=True)) + shares.sum(-1, keepdim=True)
        return made


MODELS: dict[str, tuple[Callable[[], nn.Module], Shape]] = {
    "gpt": (Gpt, (12,)),
    "vit": (Vit, (3, 32, 32)),
    "convnext": (ConvNext, (3, 32, 32)),
    "mobile": (Mobile, (3, 16, 16)),
    "unet": (Unet, (3, 16, 16)),
    "windows": (Windows, (16, 8)),
    "parts": (Parts, (6,)),
    "routed": (Routed, (6,)),
    "lstm": (lambda: nn.Sequential(nn.Linear(4, 6), Last(nn.LSTM(6, 5, batch_first=True))), (9, 4)),
}


class Last(nn.Module):
    """The last output of a recurrent network."""

    def __init__(self, recurrent: nn.Module) -> None:
        super().__init__()
        self.recurrent, self.head = recurrent, nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.head(self.recurrent(x)[0][:, -1])
        return made


def traced(name: str) -> tuple[nn.Module, ModelSpec]:
    make, shape = MODELS[name]
    module = make()
    return module, trace(module, shape, name, "mse")


@pytest.mark.parametrize("name", MODELS)
def test_parameters_and_products_are_pytorchs(name: str) -> None:
    module, spec = traced(name)
    assert spec.parameter_items == sum(of.numel() for of in module.parameters())
    shape, samples = MODELS[name][1], 3
    indices = name == "gpt"
    sample = torch.zeros((samples, *shape), dtype=torch.int64 if indices else torch.float32)
    counter = FlopCounterMode(display=False)
    with counter, torch.device("meta"):  # where attention is products of matrices
        module.to("meta")(sample.to("meta"))
    assert 2 * spec.multiply_adds() == pytest.approx(counter.get_total_flops() / samples, rel=1e-9)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("batch", [2, 5])
def test_every_operator_runs_again_by_its_name_and_arguments(name: str, batch: int) -> None:
    """At a batch of its own, in the sizes that the trace says."""
    _, spec = traced(name)
    operators = [layer for layer in spec.layers if layer.shape.operator is not None]
    assert operators
    for layer in operators:
        shape, of = layer.shape, layer.shape.operator
        assert of is not None
        generator = torch.Generator().manual_seed(0)
        inputs = operator_inputs(
            shape, batch, torch.float32, CPU, layer.needs_input_grad, generator
        )
        parameters = [torch.randn(size) for size in shape.parameter_shapes]
        constants = operator_constants(of, torch.float32, CPU)
        found = operator_call(shape, batch, CPU)(*inputs, *parameters, *constants)
        several = list(found) if isinstance(found, list | tuple) else [found]
        for place, (tensor, size) in enumerate(zip(several, layer.outputs.values(), strict=True)):
            expected = of.size(len(inputs) + place, size, batch)
            assert tuple(tensor.shape) == expected, layer.name
        if layer.has_gradient:
            assert any(each.requires_grad for each in several) or not layer.needs_input_grad, (
                layer.name
            )


def test_the_layers_of_a_block_have_the_names_of_its_modules() -> None:
    _, spec = traced("gpt")
    names = [layer.name for layer in spec.layers]
    for name in ("tokens", "blocks.0.before", "blocks.0.attention.qkv", "blocks.1.mlp.1", "head"):
        assert name in names
    (attention,) = {
        layer.shape.operator.name
        for layer in spec.layers
        if layer.shape.operator is not None and "attention.scaled" in layer.name
    }
    assert attention == "aten.scaled_dot_product_attention.default"
    chunk = next(layer for layer in spec.layers if layer.name == "blocks.0.attention.chunk")
    assert list(chunk.outputs) == [chunk.name, f"{chunk.name}[1]", f"{chunk.name}[2]"]
    assert all(shape == (12, 16) for shape in chunk.outputs.values())


def test_what_writes_into_a_part_of_a_tensor_reaches_its_readers() -> None:
    layers = {layer.name: layer for layer in traced("parts")[1].layers}
    assert layers["head"].inputs == ("zeros",) and layers["head"].needs_input_grad
    assert {"left", "right", "more"} <= layers.keys()
    assert layers["copy"].shape.operator is not None and layers["copy"].shape.operator.is_in_place


def test_indices_beside_values_have_no_gradient() -> None:
    layers = {layer.name: layer for layer in traced("routed")[1].layers}
    assert layers["topk"].gradients == {"topk": True, "topk[1]": False}
    assert layers["to"].inputs == ("topk[1]",) and not layers["to"].needs_input_grad
    assert not layers["cumsum"].needs_input_grad and layers["sum"].needs_input_grad


def test_an_activation_in_place_runs_a_kernel() -> None:
    """Its output is its input's memory, but no view of what it was."""
    (found,) = (x.shape for x in traced("mobile")[1].layers if x.shape.name == "hardswish")
    assert found.operator is not None and found.operator.is_view and not found.is_view
    assert work_of(found, 2).nbytes == 2 * 4 * 2 * 12 * 16 * 16


def test_weights_that_are_used_twice_count_once() -> None:
    module, spec = traced("gpt")
    head = next(layer for layer in spec.layers if layer.name == "head")
    assert head.shape.parameter_shapes == ((50, 16),) and head.shared_parameters == {0: "tokens"}
    assert head.own_parameters == () and isinstance(module, Gpt)


def test_shapes_are_those_of_one_sample_wherever_the_batch_is() -> None:
    prime = 10007
    for size, batch_free in {
        (prime, 3, 4): ((3, 4), None),
        (prime * 6, 4): ((6, 4), 0),
        (12, prime, 4): ((12, 1, 4), 1),
        (4, 4, 2): ((4, 4, 2), -1),
    }.items():
        found = one_sample(size, prime)
        assert found == batch_free
        assert whole_size(*found, prime) == size
    with pytest.raises(ValueError, match="several of its dimensions"):
        one_sample((prime, prime), prime)


def test_what_the_backward_of_attention_keeps() -> None:
    """Queries, keys, values, the output and a logarithm of each row's sum, in float32."""
    _, spec = traced("gpt")
    of = next(x.shape.operator for x in spec.layers if "attention.scaled" in x.name)
    assert of is not None and of.saved.inputs == (0, 1, 2) and of.saved.output
    each, fixed = of.saved.beside
    assert each == pytest.approx(4 * 4 * 12) and fixed < 64


def test_thousands_of_operators_are_traced_at_a_steady_pace() -> None:
    """No work grows with the square of the depth: the records of equal layers are one."""
    deep = nn.Sequential(*[nn.Sequential(nn.Linear(4, 4), nn.SiLU()) for _ in range(100)])
    spec = trace(deep, (4,), "deep", "mse")
    assert len(spec.layers) == 201
    assert len({id(x.shape.operator) for x in spec.layers if x.shape.operator}) == 1
    assert math.isclose(spec.multiply_adds(), 100 * 16)
