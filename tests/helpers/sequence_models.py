"""Models whose tokens and heads are divided: a language model and a vision transformer."""

from __future__ import annotations

import torch
from tests.oracle.operator_models import ROWS, WIDTH, Attention
from torch import Tensor, nn
from torch.nn import functional

TOKENS, HEADS = 8, 4


class Masked(nn.Module):
    """Attention written out, with a causal mask that is a buffer, and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.out, self.dropout = nn.Linear(WIDTH, WIDTH), nn.Dropout(0.1)
        self.register_buffer("mask", torch.ones(TOKENS, TOKENS).tril().view(1, 1, TOKENS, TOKENS))

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, _ = x.shape
        q, k, v = (
            of(x).view(batch, tokens, HEADS, -1).transpose(1, 2) for of in (self.q, self.k, self.v)
        )
        scores = (q @ k.transpose(-2, -1)) / (WIDTH / HEADS) ** 0.5
        scores = scores.masked_fill(self.mask[:, :, :tokens, :tokens] == 0, float("-inf"))
        y = self.dropout(scores.softmax(-1)) @ v
        made: Tensor = self.out(y.transpose(1, 2).contiguous().view(batch, tokens, WIDTH))
        return made


class Causal(nn.Module):
    """Fused, packed queries, keys and values; dropout of what it attends to."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.dropout = dropout

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, _ = x.shape
        packed = self.qkv(x).reshape(batch, tokens, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        q, k, v = packed.unbind(0)
        y = functional.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout, is_causal=True)
        made: Tensor = self.out(y.transpose(1, 2).reshape(batch, tokens, WIDTH))
        return made


class Block(nn.Module):
    """Attention and a feed-forward part, norms before them, dropout."""

    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = attention
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH), nn.Dropout(0.1)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.first(x))
        made: Tensor = x + self.mlp(self.second(x))
        return made


class Gpt(nn.Module):
    """Positions from a table, two ways of attention, a head with the table of the tokens.

    `dropout` is that of the fused one.
    """

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.table, self.positions = nn.Embedding(ROWS, WIDTH), nn.Embedding(TOKENS, WIDTH)
        self.blocks = nn.Sequential(Block(Masked()), Block(Causal(dropout)))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, ROWS, bias=False)
        self.head.weight = self.table.weight

    def forward(self, x: Tensor) -> Tensor:
        x = self.table(x) + self.positions(torch.arange(x.shape[1], device=x.device))
        made: Tensor = self.head(self.norm(self.blocks(x)))
        return made


class Vit(nn.Module):
    """Positions that are a parameter; the mean of all tokens, or a class token, to classify."""

    def __init__(self, has_class_token: bool = False) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, WIDTH, 4, 4)
        self.token = nn.Parameter(torch.zeros(1, 1, WIDTH)) if has_class_token else None
        self.positions = nn.Parameter(torch.randn(1, 16 + has_class_token, WIDTH))
        self.block, self.head = Block(Attention()), nn.Linear(WIDTH, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2).contiguous()
        if self.token is not None:
            x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1)
        x = self.block(x + self.positions)
        made: Tensor = self.head(x[:, 0] if self.token is not None else x.mean(1))
        return made
