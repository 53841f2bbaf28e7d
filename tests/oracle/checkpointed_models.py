"""Small models with checkpointed regions, as users write them; each can be built without."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
from tests.oracle.operator_models import Attention
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from calib.oracle.model.spec import ModelSpec
from calib.oracle.trace.tracing import trace
from calib.training.models import ModelEntry

WIDTH, TOKENS, ROWS = 16, 6, 20
Run = Callable[..., Any]
CHECKPOINTED: Run = partial(checkpoint, use_reentrant=False)


def plainly(function: Run, *args: Any) -> Any:
    """In place of a checkpoint."""
    return function(*args)


class Mlp(nn.Module):
    """A residual block whose last operators, a product and a sum, are not run again."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.norm, self.up, self.down = (
            nn.LayerNorm(width),
            nn.Linear(width, 3 * width),
            nn.Linear(3 * width, width),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(functional.gelu(self.up(self.norm(x))))


class Block(nn.Module):
    """A block of a transformer, with dropout before a sum and at its end."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.attention, self.mlp = nn.LayerNorm(WIDTH), Attention(), Mlp()
        self.drop = nn.Dropout(0.2)

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(self.mlp(x + self.drop(self.attention(self.norm(x)))))


class Convolutions(nn.Sequential):
    """Layers of kinds of their own: convolution, batch norm, ReLU."""

    def __init__(self, channels: int, made: int) -> None:
        super().__init__(
            nn.Conv2d(channels, made, 3, padding=1, bias=False), nn.BatchNorm2d(made), nn.ReLU()
        )


class Net(nn.Module):
    """A stem, blocks in checkpoints, a head of the mean over tokens."""

    def __init__(self, run: Run, *blocks: nn.Module) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 5)
        self.blocks, self.run = nn.ModuleList(blocks), run

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = self.run(block, x)
        return self.head(x.mean(1))


class FromTheInput(Net):
    """Its first region reads the model's input: nothing before it has weights."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.run(lambda x: self.blocks[0](torch.tanh(self.stem(x))), x)
        return self.head(x.mean(1))


class OfTwo(Net):
    """A region that reads two tensors, one of which is read again behind it."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = self.blocks[0](x)
        z = self.run(lambda x, y: torch.sigmoid(self.blocks[1](x * y)), x, y)
        return self.head((y + z).mean(1))


class Nested(Net):
    """A region within a region."""

    def forward(self, x: Tensor) -> Tensor:
        first, second = self.blocks

        def both(x: Tensor) -> Tensor:
            return second(self.run(first, x))

        return self.head(self.run(both, self.stem(x)).mean(1))


class Images(nn.Module):
    """Regions of layers of kinds of their own; one of two blocks."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self.one, self.two, self.three = Convolutions(3, 8), Convolutions(8, 8), Convolutions(8, 8)
        self.run = run
        self.pool, self.head = nn.MaxPool2d(2), nn.Linear(8 * 16, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.run(self.one, x)
        x = self.run(lambda x: x + self.three(self.two(x)), x)
        return self.head(torch.flatten(self.pool(x), 1))


class CutImages(nn.Module):
    """Regions that end with a convolution and with windows that overlap, and one in which images end.

    What that one reads is read again behind it.
    """

    def __init__(self, run: Run) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.three, self.drop = nn.Conv2d(8, 4, 1), nn.Dropout(0.2)
        self.pool, self.average = nn.MaxPool2d(3, 1, 1), nn.AvgPool2d(3, 1, 1)
        self.wide, self.head, self.run = nn.Linear(4 * 64, 12), nn.Linear(12 + 4 * 64, 5), run

    def forward(self, x: Tensor) -> Tensor:
        x = self.run(lambda x: self.two(torch.relu(self.one(x))), x)
        x = self.run(lambda x: self.pool(self.drop(x)), x)
        x = self.run(lambda x: self.average(torch.relu(self.three(x))), x)
        y = self.run(lambda x: torch.relu(self.wide(torch.flatten(x, 1))), x)
        return self.head(torch.cat([y, torch.flatten(x, 1)], 1))


class InSegments(nn.Module):
    """checkpoint_sequential: all but the last segment."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 5)
        self.blocks = nn.Sequential(*(Mlp() for _ in range(4)))
        self.whole = run is plainly

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        if self.whole:
            x = self.blocks(x)
        else:
            x = checkpoint_sequential(self.blocks, 2, x, use_reentrant=False)
        return self.head(x.mean(1))


class Language(nn.Module):
    """Blocks of a language model whose head has the table of its first layer."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self.table, self.norm = nn.Embedding(ROWS, WIDTH), nn.LayerNorm(WIDTH)
        self.blocks, self.run = nn.ModuleList(Block() for _ in range(3)), run
        self.head = nn.Linear(WIDTH, ROWS, bias=False)
        self.head.weight = self.table.weight

    def forward(self, x: Tensor) -> Tensor:
        x = self.table(x)
        for block in self.blocks:
            x = self.run(block, x)
        return self.head(self.norm(x))


class Vision(Net):
    """A vision transformer of 4 patches: a whole tensor, positions added, is cut in its first block."""

    def __init__(self, run: Run) -> None:
        super().__init__(run, Block(), Block())
        self.stem = nn.Conv2d(3, WIDTH, 4, 4)  # type: ignore[assignment]
        self.positions = nn.Parameter(torch.randn(1, 4, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).flatten(2).transpose(1, 2) + self.positions
        for block in self.blocks:
            x = self.run(block, x)
        return self.head(x.mean(1))


MODELS: dict[str, tuple[Callable[[Run], nn.Module], tuple[int, ...]]] = {
    "mlp": (lambda run: Net(run, Mlp(), Mlp(), Mlp()), (TOKENS, WIDTH)),
    "blocks": (lambda run: Net(run, Block(), Block()), (TOKENS, WIDTH)),
    "from-the-input": (lambda run: FromTheInput(run, Mlp()), (TOKENS, WIDTH)),
    "of-two": (lambda run: OfTwo(run, Mlp(), Mlp()), (TOKENS, WIDTH)),
    "nested": (lambda run: Nested(run, Mlp(), Mlp()), (TOKENS, WIDTH)),
    "images": (Images, (3, 8, 8)),
    "cut-images": (CutImages, (3, 8, 8)),
    "in-segments": (InSegments, (TOKENS, WIDTH)),
    "language": (Language, (TOKENS,)),
    "vision": (Vision, (3, 8, 8)),
}


def built(name: str, run: Run = CHECKPOINTED) -> nn.Module:
    torch.manual_seed(0)
    return MODELS[name][0](run).train()


@cache
def traced(name: str, run: Run = CHECKPOINTED) -> ModelSpec:
    return trace(built(name, run), MODELS[name][1], name, "cross_entropy")


@cache
def entry_of(name: str, batch_per_rank: int = 2) -> ModelEntry:
    """To be trained."""
    spec = traced(name)
    loss = spec.layers[-1].shape
    return ModelEntry(
        name,
        lambda: MODELS[name][0](CHECKPOINTED),
        spec.input_shape,
        "cross_entropy",
        loss.classes,
        batch_per_rank,
        places=loss.places,
        classes_last="classes_last" in loss.attributes,
        rows=spec.rows,
    )
