"""A small network whose layers every configuration of two to four parts divides, and plans of it."""

from __future__ import annotations

import itertools
import random
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from calib.oracle.layout.partitions import Configuration, why_impossible
from calib.oracle.model.spec import ModelSpec
from calib.oracle.trace.tracing import trace
from calib.training.models import ModelEntry

BATCH = 12
DIMENSIONS = ("sample", "channel", "height", "width", "input")


class Branches(nn.Module):
    """Strides, padding, pools, a sum, a concatenation of parts that do not align, and two linear layers.

    ReLUs in place stand behind layers of any configuration. `norms`: with batch normalisation, and no
    biases before it, whose gradients are nothing but rounding.
    """

    def __init__(self, norms: bool = False) -> None:
        super().__init__()
        norm = nn.BatchNorm2d if norms else nn.Identity
        self.stem = nn.Conv2d(3, 12, 3, padding=1, bias=not norms)
        self.norm = norm(12)
        self.relu = nn.ReLU(inplace=True)
        self.strided = nn.Conv2d(12, 12, 3, stride=2, padding=1, bias=False)
        self.pool = nn.MaxPool2d(3, 1, 1)
        self.point = nn.Conv2d(12, 24, 1)
        self.shortcut = nn.Conv2d(12, 24, 3, padding=1)
        self.narrow = nn.Conv2d(24, 12, 3, padding=1, bias=not norms)
        self.wide = nn.Conv2d(24, 24, 5, padding=2, bias=not norms)
        self.behind = norm(36)
        self.average = nn.AvgPool2d(2)
        self.hidden = nn.Linear(36 * 36, 24)
        self.head = nn.Linear(24, 12)

    def forward(self, x: Tensor) -> Tensor:
        """12 classes of 3 x 24 x 24."""
        x = self.pool(self.strided(self.relu(self.norm(self.stem(x)))))
        x = torch.relu(self.point(x) + self.shortcut(x))
        x = self.behind(torch.cat([self.narrow(x), self.wide(x)], 1))
        x = torch.flatten(self.average(x), 1)
        return self.head(torch.relu(self.hidden(x)))


@cache
def entry_of(norms: bool = False) -> ModelEntry:
    """Branches as a registered model."""
    name = "branches-norms" if norms else "branches"
    return ModelEntry(name, lambda: Branches(norms), (3, 24, 24), "cross_entropy", 12, BATCH)


class Table(nn.Module):
    """A table of its own, looked up by a function, as layers of no module are."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Parameter(torch.randn(9, 12)), nn.Linear(12 * 2, 12)

    def forward(self, x: Tensor) -> Tensor:
        """12 classes of 2 indices."""
        made: Tensor = self.head(torch.flatten(F.embedding(x, self.table), 1))
        return made


TABLE = ModelEntry("table", Table, (2,), "cross_entropy", 12, BATCH, rows=9)


@cache
def spec_of(norms: bool = False) -> ModelSpec:
    """The layers of Branches."""
    return layers_of(entry_of(norms))


def layers_of(about: ModelEntry) -> ModelSpec:
    """The layers of a model."""
    return trace(about.build(), about.input_shape, about.name, about.loss)


def single(spec: ModelSpec, dimension: str, p: int) -> tuple[Configuration, ...]:
    """Every layer cut along one dimension into p parts; by samples where it cannot be."""
    first, other = Configuration.of({dimension: p}), Configuration(p)
    return tuple(
        other if why_impossible(layer.shape, first, BATCH) else first for layer in spec.layers
    )


@cache
def within(p: int) -> list[Configuration]:
    """All on p ranks, those that leave some idle among them."""
    degrees = itertools.product(range(1, p + 1), repeat=len(DIMENSIONS))
    every = (Configuration.of(dict(zip(DIMENSIONS, of, strict=True))) for of in degrees)
    return [of for of in every if of.parts <= p]


def configurations(spec: ModelSpec, layer: int, p: int) -> list[Configuration]:
    """Those that a layer may have."""
    return [of for of in within(p) if not why_impossible(spec.layers[layer].shape, of, BATCH)]


def mixed(spec: ModelSpec, p: int, seed: int) -> tuple[Configuration, ...]:
    """One at random for each layer."""
    draw = random.Random(seed)
    return tuple(draw.choice(configurations(spec, i, p)) for i in range(len(spec.layers)))


def samples_apart(spec: ModelSpec, plan: tuple[Configuration, ...]) -> tuple[Configuration, ...]:
    """The plan with batch normalisation cut by channels alone, so that it is the serial one."""
    return tuple(
        Configuration(channel=of.parts if 12 % of.parts == 0 else 1)
        if layer.shape.kind == "batch_norm"
        else of
        for layer, of in zip(spec.layers, plan, strict=True)
    )
