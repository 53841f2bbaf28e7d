"""Operators of many kinds as layers to be measured, traced from small functions and modules."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from calib.foundation.layers import Shape
from calib.foundation.operators import PRIME
from calib.microbench.cases import LayerCase
from calib.oracle.trace.exported import ExportedLayers
from calib.oracle.trace.layer_list import LayerList
from calib.oracle.trace.program import exported

BATCH = 8
# channels, height and width of images; length and width of sequences
IMAGES: tuple[Shape, ...] = ((16, 14, 14), (32, 28, 28), (64, 56, 56))
SEQUENCES: tuple[Shape, ...] = ((16, 64), (64, 128), (196, 384))

Called = nn.Module | Callable[[Tensor], Tensor]
Make = Callable[[Shape], Called]


def _of(function: Callable[[Tensor], Tensor]) -> Make:
    return lambda shape: function


def _each(*functions: Callable[[Tensor], Tensor]) -> list[Make]:
    return [_of(function) for function in functions]


def _scaled_dot_product(x: Tensor) -> Tensor:
    heads = x.reshape(*x.shape[:2], 4, -1).transpose(1, 2)
    return F.scaled_dot_product_attention(heads, heads, heads)


class _LookUp(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.table = nn.Embedding(1000, width)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.table(x.argmax(dim=2))
        return found


class _Shuffled(nn.Module):
    def __init__(self, length: int) -> None:
        super().__init__()
        self.order: Tensor
        self.register_buffer("order", torch.arange(length).flip(0))

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = x[:, self.order] + torch.index_select(x, 1, self.order)
        return found


OF_IMAGES: tuple[Make, ...] = (
    lambda s: nn.Conv2d(s[0], s[0], 3, padding=1),
    lambda s: nn.Conv2d(s[0], 2 * s[0], 1),
    lambda s: nn.Conv2d(s[0], s[0], 3, padding=2, dilation=2),
    lambda s: nn.Conv2d(s[0], s[0], 3, padding=1, groups=s[0]),
    lambda s: nn.ConvTranspose2d(s[0], s[0] // 2, 2, stride=2),
    lambda s: nn.BatchNorm2d(s[0]),
    lambda s: nn.GroupNorm(8, s[0]),
    lambda s: nn.InstanceNorm2d(s[0], affine=True),
    lambda s: nn.LocalResponseNorm(5),
    lambda s: nn.PReLU(s[0]),
    *_each(
        F.relu,
        F.silu,
        F.gelu,
        F.hardswish,
        F.mish,
        F.elu,
        F.softplus,
        F.leaky_relu,
        F.hardsigmoid,
        F.relu6,
        torch.sigmoid,
        torch.tanh,
        lambda x: F.dropout(x, 0.2),
        lambda x: F.glu(x, 1),
        lambda x: F.max_pool2d(x, 2),
        lambda x: F.avg_pool2d(x, 2),
        lambda x: F.adaptive_max_pool2d(x, 4),
        lambda x: F.adaptive_avg_pool2d(x, 1),
        lambda x: F.interpolate(x, scale_factor=2),
        lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
        lambda x: F.pixel_shuffle(x, 2),
        lambda x: F.pixel_unshuffle(x, 2),
        lambda x: F.pad(x, (1, 1, 1, 1)),
        lambda x: F.pad(x, (1, 1, 1, 1), mode="reflect"),
        lambda x: torch.roll(x, (3, 3), (2, 3)),
        lambda x: torch.flip(x, (3,)),
        lambda x: x.mean((2, 3)),
        lambda x: x.var((2, 3)),
        lambda x: x.amax((2, 3)),
        lambda x: torch.cat([x, x], -1),
        lambda x: torch.cat([x, x], 1),
        lambda x: x + x.mean((2, 3), keepdim=True),
        lambda x: x * torch.sigmoid(x),
        lambda x: x / (1.0 + x * x),
        lambda x: x - 0.5,
        lambda x: torch.where(x > 0, x, 0.1 * x),
        lambda x: x.masked_fill(x > 0, 0.0),
        lambda x: x.abs().pow(1.5),
        lambda x: x**2,
        torch.exp,
        torch.sin,
        torch.erf,
        lambda x: x.clamp(-1.0, 1.0),
        lambda x: torch.rsqrt(x * x + 1.0),
        lambda x: torch.maximum(x, -x),
        lambda x: x.permute(0, 2, 3, 1).contiguous(),
        lambda x: F.unfold(x, 3, padding=1),
        lambda x: torch.stack(x.chunk(2, 1), 2),
        lambda x: x[:, :, ::2, ::2].contiguous(),
        lambda x: x.mean(1, keepdim=True).expand_as(x) * 2.0,
    ),
)
OF_SEQUENCES: tuple[Make, ...] = (
    lambda s: nn.Linear(s[1], 2 * s[1]),
    lambda s: nn.LayerNorm(s[1]),
    lambda s: nn.RMSNorm(s[1]),
    lambda s: _LookUp(s[1]),
    lambda s: _Shuffled(s[0]),
    lambda s: lambda x: x.repeat_interleave(2, dim=1),
    *_each(
        lambda x: torch.softmax(x, -1),
        lambda x: F.log_softmax(x, -1),
        lambda x: torch.logsumexp(x, -1),
        lambda x: torch.matmul(x, x.transpose(1, 2)),
        lambda x: torch.bmm(x, x.transpose(1, 2)),
        lambda x: torch.einsum("bij,bkj->bik", x, x),
        _scaled_dot_product,
        lambda x: x.topk(4, dim=1).values,
        lambda x: x.sort(dim=1).values,
        lambda x: x.cumsum(1),
        lambda x: x.gather(1, x.argsort(dim=1)),
        torch.tril,
        lambda x: x.repeat(1, 2, 1),
        lambda x: x.unbind(1)[0] + x.unbind(1)[1],
        lambda x: x[:, 0],
        lambda x: F.normalize(x, dim=-1),
        lambda x: torch.zeros_like(x).scatter_add(1, x.argsort(dim=1), x),
    ),
)


class _Called(nn.Module):
    """A module around a function."""

    def __init__(self, called: Called) -> None:
        super().__init__()
        self.called = called

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.called(x)
        return found


def cases() -> Iterator[LayerCase]:
    """Every layer that the functions above are traced into, once."""
    seen: set[str] = set()
    for makes, shapes in ((OF_IMAGES, IMAGES), (OF_SEQUENCES, SEQUENCES)):
        for make in makes:
            for shape in shapes:
                module = _Called(make(shape)).to("meta")
                program = exported(module, [torch.empty((PRIME, *shape), device="meta")])
                layers = LayerList(module, shape)
                ExportedLayers(program, layers).record()
                for layer in layers.layers:
                    case = LayerCase(layer=layer.shape, batch=BATCH, ranks=1)
                    if not layer.shape.is_free and case.key not in seen:
                        seen.add(case.key)
                        yield case
