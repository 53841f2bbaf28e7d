"""Transformers whose tokens divide by 2 and 4, for tests of sequence parallelism."""

from __future__ import annotations

import torch
from tests.helpers.attention import Gpt2, Mlp
from tests.oracle.operator_models import ROWS, WIDTH, Attention, Transformer
from torch import Tensor, nn

TOKENS = 8


class Pooled(Transformer):
    """A vision transformer of 4 patches, without a class token: the mean of all tokens is classified."""

    def __init__(self) -> None:
        super().__init__()
        self.positions = nn.Parameter(torch.randn(1, 4, WIDTH))
        del self.token
        self.last = nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2) + self.positions
        x = x + self.attention(self.first(x))
        x = x + self.mlp(self.second(x))
        made: Tensor = self.head(self.last(x).mean(1))
        return made


class Gpt(nn.Module):
    """Two blocks, a scale after each attention, a norm written out, a tied head.

    The second attention is GPT-2's, whose products have two dimensions.
    """

    def __init__(self) -> None:
        super().__init__()
        self.table, self.positions = nn.Embedding(ROWS, WIDTH), nn.Embedding(TOKENS, WIDTH)
        self.drop = nn.Dropout(0.1)
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH) for _ in range(4)])
        self.attentions = nn.ModuleList([Attention(), Gpt2()])
        self.mlps = nn.ModuleList([Mlp(), Mlp()])
        self.scales = nn.ParameterList([torch.full((WIDTH,), 0.5) for _ in range(2)])
        self.gain = nn.Parameter(torch.ones(WIDTH))
        self.head = nn.Linear(WIDTH, ROWS, bias=False)
        self.head.weight = self.table.weight

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(x.shape[1], device=x.device)
        x = self.drop(self.table(x) + self.positions(places))
        for at, (attention, mlp) in enumerate(zip(self.attentions, self.mlps, strict=True)):
            x = x + self.drop(attention(self.norms[2 * at](x))) * self.scales[at]
            x = x + mlp(self.norms[2 * at + 1](x))
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.gain
        made: Tensor = self.head(x).transpose(1, 2)
        return made


class OneRegion(nn.Module):
    """The model's input, added to what a region makes of it, a norm, and a head of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 8), nn.Linear(8, WIDTH)
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.head(self.norm(x + self.down(self.up(x).relu())))
        return made


class Gated(OneRegion):
    """What the region makes is scaled by what the mean over its tokens says, and by a weight's view."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.gamma = nn.Linear(WIDTH, WIDTH), nn.Parameter(torch.full((WIDTH,), 0.3))

    def forward(self, x: Tensor) -> Tensor:
        y = self.down(self.up(x).relu())
        y = y * self.gate(y.mean(1, keepdim=True)).sigmoid() * self.gamma.view(1, 1, -1)
        made: Tensor = self.head(self.norm(x + y).mean(1))
        return made
