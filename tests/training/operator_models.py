"""Models of operators as people write them, with all that makes their graphs hard to run in parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from tests.oracle.operator_models import WIDTH, Transformer
from tests.oracle.trace.test_exported import ConvNext, Gpt, Last, Unet, Vit, Windows
from torch import Tensor, nn

from calib.foundation.own import Loss
from calib.training.models import ModelEntry


class SqueezeAndExcitation(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(width, 4, 1), nn.Conv2d(4, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        gate = self.up(F.silu(self.down(F.adaptive_avg_pool2d(x, 1))))
        return x * F.hardsigmoid(gate)


class NormAndActivation(nn.BatchNorm2d):
    """A batch norm with more behind it, as timm has them."""

    def forward(self, x: Tensor) -> Tensor:
        return F.leaky_relu(super().forward(x), 0.1, inplace=True)


class Mobile(nn.Module):
    """Inverted residuals: grouped convolutions, Hardswish in place, batch norms of two kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1, bias=False), NormAndActivation(8), nn.SiLU()
        )
        self.block = nn.Sequential(
            nn.Conv2d(8, 16, 1, bias=False),
            nn.BatchNorm2d(16),
            nn.Hardswish(inplace=True),
            nn.Conv2d(16, 16, 3, padding=1, groups=16, bias=False),
            nn.BatchNorm2d(16),
            nn.GELU(),
            SqueezeAndExcitation(16),
            nn.Conv2d(16, 8, 1),
        )
        self.head = nn.Sequential(nn.Flatten(), nn.Dropout(0.2), nn.Linear(8 * 64, 7))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        made: Tensor = self.head((x + self.block(x)) * torch.sigmoid(x))
        return made


class Unpooled(nn.Module):
    """As SegNet: a pooling with two outputs, the second of which puts values back in their places."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.inner = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.pool, self.unpool = nn.MaxPool2d(2, return_indices=True), nn.MaxUnpool2d(2)
        self.head = nn.Conv2d(4, 2, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        y, places = self.pool(torch.relu(self.stem(x)))
        made: Tensor = self.head(self.unpool(torch.relu(self.inner(y)), places))
        return made


class Shifted(nn.Module):
    """Windows with a mask that the forward writes into a tensor of zeros, as torchvision's Swin."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        places = x.shape[1]
        mask = x.new_zeros(places)
        for number, part in enumerate((slice(0, 3), slice(3, places))):
            mask[part] = number
        apart = (mask[:, None] - mask[None, :]) != 0
        y = self.first(x)
        scores = (y @ y.transpose(1, 2)).masked_fill(apart, -100.0)
        y = self.second(scores.softmax(-1) @ y)
        again = (y @ y.transpose(1, 2)).masked_fill(apart, -100.0)
        made: Tensor = self.head((again.softmax(-1) @ y).mean(1))
        return made


class Awkward(nn.Module):
    """Several outputs, integers and truths, the batch not in front, writes into slices, no_grad, a
    shared layer, a constant, a counter, a hook, stochastic depth, multi-head attention."""

    steps: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 12)
        self.first.register_forward_hook(lambda module, given, made: made * 0.5)
        self.shared = nn.Linear(4, 4)
        self.attention = nn.MultiheadAttention(4, 2)
        self.head = nn.Linear(4, 3)
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.steps += 1
        a, b, c = self.first(x).chunk(3, -1)
        a = self.shared(torch.tanh(a))
        moved = torch.zeros_like(a)
        moved[:, 1:] = a[:, :-1] * 2
        b = self.shared(b).add_(moved)
        with torch.no_grad():
            largest, at = c.max(-1, keepdim=True)
            positive = c > 0
        c = torch.where(positive, c, 0.1 * c) * largest + at / 3
        y = (b * torch.tensor([1.0, -1.0, 2.0, 0.5]).to(b) + c).transpose(0, 1)
        y = y + self.attention(y, y, y, need_weights=False)[0] / len(x)
        keep = x.new_empty(1, x.shape[0], 1).bernoulli_(0.75).div_(0.75)
        made: Tensor = self.head((y * keep).sum(0))
        return made


class Rotary(nn.Module):
    """Norms and angles in float32, whatever the model's item type: as Llama has them."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.linspace(0.5, 1.5, 8))
        self.first, self.head = nn.Linear(8, 8), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        with torch.no_grad():
            angles = torch.arange(x.shape[1], dtype=torch.float32)[:, None] / torch.tensor(
                [1.0, 10.0, 100.0, 1000.0]
            )
        norm = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        y = self.first(self.scale * (wide * norm).to(x.dtype))
        turned = torch.cat((y[..., :4] * angles.cos(), y[..., 4:] * angles.sin()), -1)
        made: Tensor = self.head(turned.type_as(x).mean(1))
        return made


class Recurrent(nn.Module):
    """A hidden state beside the output; a convolution that runs twice."""

    def __init__(self) -> None:
        super().__init__()
        self.twice = nn.Conv1d(4, 4, 3, padding=1)
        self.recurrent, self.head = nn.GRU(4, 5, batch_first=True), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = F.silu(self.twice(F.silu(self.twice(x))))
        y, hidden = self.recurrent(y.transpose(1, 2))
        made: Tensor = self.head(y.mean(1) + hidden[0])
        return made


UNUSED = ("never", "pooler.bias", "pooler.weight", "spare.weight")


class Pooled(Transformer):
    """A pooler whose result is dropped, as BERT's is; a head and a parameter that are never used."""

    def __init__(self) -> None:
        super().__init__()
        self.mlp[2] = nn.Identity()  # no dropout
        self.pooler, self.spare = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 5, bias=False)
        self.never = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = super().forward(x)
        torch.tanh(self.pooler(self.patch(x).mean((2, 3))))
        return made


def _entry(
    name: str,
    build: Callable[[], nn.Module],
    shape: tuple[int, ...],
    outputs: int,
    loss: Loss = "cross_entropy",
    **more: Any,
) -> ModelEntry:
    return ModelEntry(name, build, shape, loss, outputs, 4, **more)


ENTRIES = {
    of.name: of
    for of in (
        _entry("gpt", Gpt, (12,), 50, places=(12,), classes_last=True, rows=50),
        _entry("vit", Vit, (3, 32, 32), 10),
        _entry("convnext", ConvNext, (3, 32, 32), 5),
        _entry("mobile", Mobile, (3, 8, 8), 7),
        _entry("unet", Unet, (3, 16, 16), 4, places=(16, 16)),
        _entry("unpooled", Unpooled, (3, 8, 8), 2, "mse", places=(8, 8)),
        _entry("windows", Windows, (16, 8), 8),
        _entry("shifted", Shifted, (7, 8), 5),
        _entry("awkward", Awkward, (5, 6), 3),
        _entry("rotary", Rotary, (6, 8), 5),
        _entry("recurrent", Recurrent, (4, 9), 3),
        _entry("lstm", lambda: Last(nn.LSTM(4, 5, batch_first=True)), (9, 4), 3, "mse"),
    )
}
POOLED = _entry("pooled", Pooled, (3, 8, 8), 5, untrained=UNUSED)
