"""Attention and feed-forward layers as people write them, for tests of tensor parallelism."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

WIDTH, HEADS, TOKENS = 16, 4, 6
EACH = WIDTH // HEADS


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Of (batch, heads, tokens, features)."""
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True)


class Attention(nn.Module):
    """What all have: a product of queries, keys and values, and one at the end."""

    blocks = 3

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y = self.heads(x).transpose(1, 2).reshape(x.shape[0], -1, WIDTH)
        made: Tensor = self.out(y)
        return made

    def apart(self, x: Tensor) -> Tensor:
        """(batch, heads, tokens, features)."""
        return x.view(x.shape[0], x.shape[1], -1, EACH).transpose(1, 2)

    def heads(self, x: Tensor) -> Tensor:
        """Of every head what it makes."""
        raise NotImplementedError


class Chunked(Attention):
    def heads(self, x: Tensor) -> Tensor:
        return attend(*map(self.apart, self.qkv(x).chunk(3, -1)))


class SplitBySize(Attention):
    def heads(self, x: Tensor) -> Tensor:
        return attend(*map(self.apart, self.qkv(x).split([WIDTH, WIDTH, WIDTH], dim=-1)))


class Sliced(Attention):
    def heads(self, x: Tensor) -> Tensor:
        y = self.qkv(x)
        pieces = y[..., :WIDTH], y[..., WIDTH : 2 * WIDTH], y[..., 2 * WIDTH :]
        return attend(*map(self.apart, pieces))


class BlocksFirst(Attention):
    """(3, heads, features), and products written out, with a mask and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.ones(TOKENS, TOKENS).triu(1).bool())
        self.dropout = nn.Dropout(0.1)

    def heads(self, x: Tensor) -> Tensor:
        y = self.qkv(x).view(x.shape[0], TOKENS, 3, HEADS, EACH).permute(2, 0, 3, 1, 4)
        q, k, v = y.unbind(0)
        scores = (q * EACH**-0.5) @ k.transpose(-2, -1)
        scores = scores.masked_fill(self.mask, float("-inf"))
        made: Tensor = self.dropout(scores.softmax(-1)) @ v
        return made


class HeadsFirst(Attention):
    """(heads, 3 features), as GPT-NeoX has them."""

    blocks = 1

    def heads(self, x: Tensor) -> Tensor:
        y = self.qkv(x).view(x.shape[0], TOKENS, HEADS, 3 * EACH).transpose(1, 2)
        return attend(*y.chunk(3, -1))


class Apart(Attention):
    """Three products, heads in the batch, rotated positions."""

    blocks = 1

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Identity()  # type: ignore[assignment]
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))

    def heads(self, x: Tensor) -> Tensor:
        angles = torch.arange(TOKENS)[:, None] * torch.tensor([1.0, 0.1]).repeat(2)

        def turned(y: Tensor) -> Tensor:
            half = torch.cat((-y[..., EACH // 2 :], y[..., : EACH // 2]), -1)
            return y * angles.cos() + half * angles.sin()

        q, k = (turned(self.apart(of(x))) for of in (self.q, self.k))
        q, k, v = (y.reshape(-1, TOKENS, EACH) for y in (q, k, self.apart(self.v(x))))
        made = torch.bmm(torch.bmm(q, k.transpose(1, 2)).softmax(-1), v)
        return made.view(-1, HEADS, TOKENS, EACH)


class Grouped(Attention):
    """Two heads of queries to each of keys and values."""

    blocks = 1

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Identity()  # type: ignore[assignment]
        self.q = nn.Linear(WIDTH, WIDTH)
        self.k, self.v = nn.Linear(WIDTH, WIDTH // 2), nn.Linear(WIDTH, WIDTH // 2)

    def heads(self, x: Tensor) -> Tensor:
        def repeated(y: Tensor) -> Tensor:
            y = self.apart(y)[:, :, None].expand(-1, -1, 2, -1, -1)
            return y.reshape(x.shape[0], HEADS, TOKENS, EACH)

        return attend(self.apart(self.q(x)), repeated(self.k(x)), repeated(self.v(x)))


class Pytorchs(nn.Module):
    """PyTorch's own, whose products are no modules."""

    blocks = 3

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.attention(x, x, x, need_weights=False)[0]
        return made


class Conv1D(nn.Module):
    """A linear layer as transformers' GPT-2 has it: its weight is (inputs, outputs)."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(inputs, outputs) * inputs**-0.5)
        self.bias = nn.Parameter(torch.randn(outputs))

    def forward(self, x: Tensor) -> Tensor:
        size = (*x.shape[:-1], self.bias.shape[0])
        return torch.addmm(self.bias, x.view(-1, x.shape[-1]), self.weight).view(size)


class Gpt2(Attention):
    """Its products, and keys and values behind those of an empty cache."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("empty", torch.zeros(0))
        self.qkv, self.out = Conv1D(WIDTH, 3 * WIDTH), Conv1D(WIDTH, WIDTH)  # type: ignore[assignment]

    def heads(self, x: Tensor) -> Tensor:
        q, k, v = map(self.apart, self.qkv(x).split(WIDTH, dim=2))
        return attend(q, *(torch.cat([self.empty, of], -2) for of in (k, v)))


class WrittenOut(nn.Module):
    """Products of two matrices, (inputs, outputs), without modules; one is of two dimensions."""

    blocks = 1

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.randn(WIDTH, 4 * WIDTH))
        self.down = nn.Parameter(torch.randn(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        y = functional.gelu(x @ self.up)
        return torch.mm(y.view(-1, 4 * WIDTH), self.down).view(x.shape)


class Mlp(nn.Sequential):
    blocks = 1

    def __init__(self) -> None:
        wide = 4 * WIDTH
        super().__init__(nn.Linear(WIDTH, wide), nn.GELU(), nn.Dropout(0.1), nn.Linear(wide, WIDTH))


class Gated(nn.Module):
    """A gate and its values by one product."""

    blocks = 2

    def __init__(self) -> None:
        super().__init__()
        self.both, self.out = nn.Linear(WIDTH, 8 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        gate, values = self.both(x).chunk(2, -1)
        made: Tensor = self.out(functional.silu(gate) * values)
        return made


class Parallel(nn.Module):
    """Attention and feed-forward layers that read the same, added up."""

    blocks = 3

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.mlp = Chunked(), Mlp()

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.attention(x) + self.mlp(x)
        return made


class Cross(nn.Module):
    """Queries of one tensor, keys and values of another: two groups that meet."""

    blocks = 1

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.q, self.kv = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        k, v = self.kv(x).view(-1, TOKENS, 2, HEADS, EACH).permute(2, 0, 3, 1, 4)
        q = self.q(self.norm(x)).view(-1, TOKENS, HEADS, EACH).transpose(1, 2)
        made: Tensor = self.out(attend(q, k, v).transpose(1, 2).flatten(2))
        return made


class Block(nn.Module):
    """A layer between a product that stays whole, as a norm follows, and the classifier."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)
        self.inner, self.head = inner, nn.Linear(WIDTH, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        x = x + self.inner(self.norm(x))
        made: Tensor = self.head(x.mean(1))
        return made


KINDS: dict[str, Callable[[], nn.Module]] = {
    kind.__name__: kind
    for kind in (
        *(Chunked, SplitBySize, Sliced, BlocksFirst, HeadsFirst, Apart, Grouped, Pytorchs),
        *(Mlp, Gated, Parallel, Cross, Gpt2, WrittenOut),
    )
}


def block(name: str) -> Callable[[], nn.Module]:
    """A builder of a model of one such layer, of samples (TOKENS, WIDTH)."""
    return lambda: Block(KINDS[name]())
