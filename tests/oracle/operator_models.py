"""Small modules of operators that are no kind of layer of their own, as users write them."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.nn import functional

from calib.oracle.model.spec import ModelSpec
from calib.oracle.trace.tracing import trace

WIDTH, HEADS, TOKENS, ROWS = 16, 4, 6, 20


class Attention(nn.Module):
    """Chunked q, k and v, and PyTorch's fused attention."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.dropout = dropout

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, _ = x.shape
        q, k, v = (
            of.view(batch, tokens, HEADS, -1).transpose(1, 2) for of in self.qkv(x).chunk(3, -1)
        )
        y = functional.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout)
        return self.out(y.transpose(1, 2).reshape(batch, tokens, WIDTH))


class WrittenOut(nn.Module):
    """Attention by matmul, mask and softmax; q, k and v by unbind."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.register_buffer("mask", torch.ones(TOKENS, TOKENS).tril() == 0)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, _ = x.shape
        q, k, v = self.qkv(x).reshape(batch, tokens, 3, HEADS, -1).permute(2, 0, 3, 1, 4).unbind(0)
        scores = (q @ k.transpose(-2, -1)) * (WIDTH / HEADS) ** -0.5
        y = scores.masked_fill(self.mask, float("-inf")).softmax(-1) @ v
        return self.out(y.transpose(1, 2).reshape(batch, tokens, WIDTH))


class Transformer(nn.Module):
    """One block of a vision transformer, with a class token and learnt positions."""

    def __init__(self, attention: nn.Module | None = None) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, WIDTH, 4, 4)
        self.token = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.positions = nn.Parameter(torch.zeros(1, 5, WIDTH))
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = attention or Attention()
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Dropout(0.1), nn.Linear(2 * WIDTH, WIDTH)
        )
        self.head = nn.Linear(WIDTH, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.positions
        x = x + self.attention(self.first(x))
        x = x + self.mlp(self.second(x))
        return self.head(x[:, 0])


class Language(nn.Module):
    """A block of a language model, whose last layer has the table of its first."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(ROWS, WIDTH)
        self.positions = nn.Embedding(TOKENS, WIDTH)
        self.norm, self.attention = nn.LayerNorm(WIDTH), WrittenOut()
        self.head = nn.Linear(WIDTH, ROWS, bias=False)
        self.head.weight = self.table.weight

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(x.shape[1], device=x.device)
        x = self.table(x) + self.positions(places)
        x = x + self.attention(self.norm(x))
        return self.head(x).transpose(1, 2)


class Next(nn.Module):
    """A block as ConvNeXt's: depthwise convolution, norm with the channels last, a scale."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 2, 2)
        self.depthwise = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.norm = nn.LayerNorm(8)
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)
        self.scale = nn.Parameter(torch.ones(8, 1, 1))
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.down(functional.gelu(self.up(y))).permute(0, 3, 1, 2)
        keep = x.new_empty((x.shape[0], 1, 1, 1)).bernoulli_(0.9).div_(0.9)
        x = x + self.scale * y * keep
        return self.head(x.mean((-2, -1)))


class Squeezed(nn.Module):
    """Squeeze and excite; activations in place, group norm."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8)
        self.down, self.up = nn.Conv2d(8, 2, 1), nn.Conv2d(2, 8, 1)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.silu(self.norm(self.conv(x)), inplace=True)
        s = functional.adaptive_avg_pool2d(x, 1)
        s = self.up(functional.relu(self.down(s), inplace=True))
        x = x * torch.sigmoid(s)
        x = functional.hardswish(x, inplace=True)
        return self.head(torch.flatten(functional.adaptive_avg_pool2d(x, 1), 1))


class UNet(nn.Module):
    """Down, and up by a transposed convolution, with a skip connection."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 8, 3, 2, 1)
        self.up = nn.ConvTranspose2d(8, 4, 2, 2)
        self.last = nn.Conv2d(8, 5, 1)
        self.act = nn.LeakyReLU(0.1, inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        first = self.act(self.one(x))
        x = functional.elu(self.two(first))
        x = functional.interpolate(self.up(x), scale_factor=1.0, mode="nearest")
        return self.last(torch.cat([first, x], 1))


class Scripted(nn.Module):
    """What else users write: stack, slices, products of inputs, a norm by hand, split."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.gate, self.head = nn.Linear(12, 16), nn.Linear(8, 8), nn.Linear(8, 5)
        self.weight = nn.Parameter(torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.fc(x).split(8, -1)
        y = torch.stack([a * torch.sigmoid(b), functional.silu(self.gate(a))], 1)
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight
        return self.head(torch.logsumexp(y, 1) - y[:, 0].clamp(min=-1.0))


# module, shape of a sample, loss
MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], str]] = {
    "vit": (Transformer, (3, 8, 8), "cross_entropy"),
    "vit, dropout in attention": (lambda: Transformer(Attention(0.1)), (3, 8, 8), "cross_entropy"),
    "language": (Language, (TOKENS,), "cross_entropy"),
    "next": (Next, (3, 8, 8), "cross_entropy"),
    "squeezed": (Squeezed, (3, 8, 8), "cross_entropy"),
    "unet": (UNet, (3, 8, 8), "cross_entropy"),
    "scripted": (Scripted, (12,), "mse"),
}


@lru_cache
def traced(name: str) -> ModelSpec:
    """The ModelSpec of one of these."""
    make, size, loss = MODELS[name]
    return trace(make(), size, name, loss)  # type: ignore[arg-type]
