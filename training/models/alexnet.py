"""AlexNet (Krizhevsky 2014, "One weird trick", as torchvision has it), full and mini."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from calib.training.models.initialize import initialize

# channels out, kernel, stride, padding, and whether a 3x3 max pooling of stride 2 follows
CONVOLUTIONS = (
    (64, 11, 4, 2, True),
    (192, 5, 1, 2, True),
    (384, 3, 1, 1, False),
    (256, 3, 1, 1, False),
    (256, 3, 1, 1, True),
)


class AlexNet(nn.Module):
    """Five convolutions with ReLU, three poolings, an adaptive average pooling, then three FC.

    Input (batch, 3, size, size), output logits (batch, classes). `divisor` divides the published
    channel counts, `hidden` is the width of the two hidden FC layers, and the average pooling ends
    at `pooled` x `pooled` (at 224 x 224 it gets 6 x 6 and changes nothing: training skips it).
    """

    def __init__(self, classes: int, hidden: int, divisor: int = 1, pooled: int = 6) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 3
        for filters, kernel, stride, padding, followed in CONVOLUTIONS:
            layers.append(nn.Conv2d(channels, filters // divisor, kernel, stride, padding))
            layers.append(nn.ReLU())
            channels = filters // divisor
            if followed:
                layers.append(nn.MaxPool2d(3, stride=2))
        self.features = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2d(pooled)
        self.classifier = nn.Sequential(
            nn.Dropout(0.5),
            nn.Linear(channels * pooled**2, hidden),
            nn.ReLU(),
            nn.Dropout(0.5),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, classes),
        )
        initialize(self)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (batch, classes) of images (batch, 3, size, size)."""
        x = torch.flatten(self.avgpool(self.features(x)), 1)
        logits: Tensor = self.classifier(x)
        return logits


def alexnet() -> AlexNet:
    """The published model: 3 x 224 x 224, 1000 classes, 61.10 M parameters, 0.71 GMAC."""
    return AlexNet(classes=1000, hidden=4096)


def alexnet_mini() -> AlexNet:
    """A quarter of the channels, classifier of width 256: 3 x 64 x 64, 100 classes, 0.3 M."""
    return AlexNet(classes=100, hidden=256, divisor=4, pooled=1)
