"""Two ordinary models, as lists of modules, and data that is made up."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from time import perf_counter

import torch
from torch import Tensor, nn

CLASSES = 10
SHAPE = (3, 32, 32)


def convolution(inputs: int, outputs: int) -> list[nn.Module]:
    """Convolution, batch norm, ReLU."""
    return [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()]


def cnn() -> nn.Sequential:
    """A small convolutional network."""
    return nn.Sequential(
        *convolution(3, 32),
        *convolution(32, 32),
        nn.MaxPool2d(2),
        *convolution(32, 64),
        *convolution(64, 64),
        nn.MaxPool2d(2),
        *convolution(64, 128),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(128, CLASSES),
    )


class Block(nn.Module):
    """The feed-forward half of a transformer's layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.relu = nn.ReLU()
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """x and what it adds."""
        y: Tensor = self.down(self.relu(self.up(self.norm(x))))
        return x + y


def mlp() -> nn.Sequential:
    """A residual network of linear layers, with more weights than activations."""
    width = 512
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(3 * 32 * 32, width),
        *(Block(width) for _ in range(4)),
        nn.LayerNorm(width),
        nn.Linear(width, CLASSES),
    )


MODELS: dict[str, Callable[[], nn.Sequential]] = {"cnn": cnn, "mlp": mlp}
# the first module of the second of two stages
CUTS = {"cnn": 6, "mlp": 3}


def parser() -> argparse.ArgumentParser:
    """The options of every script; --batch is that of a rank."""
    words = argparse.ArgumentParser()
    words.add_argument("model", choices=MODELS)
    words.add_argument("--batch", type=int, default=32)
    words.add_argument("--steps", type=int, default=60)
    return words


def arguments() -> argparse.Namespace:
    """What a script was given."""
    return parser().parse_args()


def batches(steps: int, batch: int, seed: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
    """Inputs and targets of every step: one batch in memory, as loading is not what is timed."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(batch, *SHAPE, generator=generator)
    targets = torch.randint(CLASSES, (batch,), generator=generator)
    for _ in range(steps):
        yield inputs, targets


class Log:
    """Prints the time of each step and its loss, as scripts do."""

    def __init__(self, quiet: bool = False) -> None:
        self.quiet = quiet
        self.step = 0
        self.start = perf_counter()

    def __call__(self, loss: float) -> None:
        """The end of a step."""
        now = perf_counter()
        if not self.quiet:
            print(f"step {self.step} loss {loss:.4f} ms {1e3 * (now - self.start):.4f}", flush=True)
        self.step += 1
        self.start = perf_counter()
