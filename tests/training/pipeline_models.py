"""Small models that are hard to cut into stages, and what the tests of pipelines see of them."""

from __future__ import annotations

import torch
from tests.helpers.programs import quiet
from torch import Tensor, nn

from calib.training.layer_program import LayerProgram
from calib.training.models import ModelEntry
from calib.training.models.resnet import ResNet
from calib.training.models.vgg import VGG16


class TwoHeads(nn.Module):
    """Everything that makes a cut hard: a join, a concatenation, an identity, views by method, a layer
    without weights before the first one that has some, the model's input read late, two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = nn.MaxPool2d(2)
        self.first = nn.Conv2d(2, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.relu = nn.ReLU()
        self.same = nn.Identity()
        self.left = nn.Conv2d(4, 3, 1)
        self.right = nn.Conv2d(4, 1, 3, padding=1)
        self.again = nn.AvgPool2d(2)
        self.head = nn.Linear(6 * 16, 5)
        self.auxiliary = nn.Linear(4 * 16, 5)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        small = self.pool(x)
        y = self.relu(self.norm(self.first(small)))
        kept = self.same(y)
        other = self.auxiliary(kept.view(kept.size(0), -1))
        y = torch.cat([self.left(y), self.right(y)], 1) + kept
        y = torch.cat([self.relu(y), self.again(x)], 1)
        return self.head(y.flatten(1)), other


def small_vgg() -> nn.Module:
    return quiet(VGG16(size=32, classes=10, hidden=8, divisor=32))


def wide() -> nn.Module:
    """Little work and large messages: 1 MB of float64 cross its borders for two samples."""
    return nn.Sequential(
        nn.Conv2d(2, 16, 1),
        nn.ReLU(),
        nn.Conv2d(16, 16, 1),
        nn.ReLU(),
        nn.Conv2d(16, 16, 1),
        nn.ReLU(),
        nn.Conv2d(16, 1, 1),
        nn.Flatten(),
        nn.Linear(64 * 64, 3),
    )


ENTRIES = {
    "two heads": ModelEntry("two heads", TwoHeads, (2, 8, 8), "cross_entropy", 5, 4, 0.4),
    "resnet": ModelEntry("resnet", lambda: ResNet(5, 2, (1, 2)), (3, 8, 8), "cross_entropy", 5, 4),
    "vgg": ModelEntry("vgg", small_vgg, (3, 32, 32), "cross_entropy", 10, 4),
}
WIDE = ModelEntry("wide", wide, (2, 64, 64), "cross_entropy", 3, 4)


def watch(program: LayerProgram) -> dict[str, list[Tensor]]:
    """The outputs of every layer, one for each forward; they keep their gradients."""
    seen: dict[str, list[Tensor]] = {}

    def observer(layer: str, output: Tensor) -> None:
        if output.requires_grad:
            output.retain_grad()
        seen.setdefault(layer, []).append(output)

    program.observer = observer
    return seen
