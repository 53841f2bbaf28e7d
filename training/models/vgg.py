"""VGG16 (Simonyan and Zisserman 2015, configuration D), full, in ParaDL's form, and mini."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from calib.training.models.initialize import initialize

CHANNELS = (64, 128, 256, 512, 512)
CONVOLUTIONS = (2, 2, 3, 3, 3)


class VGG16(nn.Module):
    """Thirteen 3x3 convolutions in five blocks, each followed by a 2x2 max pooling; then three FC.

    Input (batch, 3, size, size), output logits (batch, classes). `divisor` divides the published
    channel counts; `hidden` is the width of the two hidden FC layers; `round_up` is the poolings'
    ceil_mode. There is no adaptive pooling before the classifier (torchvision has one, which at
    224 x 224 changes nothing).
    """

    def __init__(
        self, size: int, classes: int, hidden: int, divisor: int = 1, round_up: bool = False
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 3
        for block_channels, count in zip(CHANNELS, CONVOLUTIONS, strict=True):
            for _ in range(count):
                layers.append(nn.Conv2d(channels, block_channels // divisor, 3, padding=1))
                layers.append(nn.ReLU())
                channels = block_channels // divisor
            layers.append(nn.MaxPool2d(2, ceil_mode=round_up))
            size = -(-size // 2) if round_up else size // 2
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(
            nn.Linear(channels * size**2, hidden),
            nn.ReLU(),
            nn.Dropout(0.5),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Dropout(0.5),
            nn.Linear(hidden, classes),
        )
        initialize(self)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (batch, classes) of images (batch, 3, size, size)."""
        x = torch.flatten(self.features(x), 1)
        logits: Tensor = self.classifier(x)
        return logits


def vgg16() -> VGG16:
    """The published model: 3 x 224 x 224, 1000 classes, 138.36 M parameters, 15.47 GMAC."""
    return VGG16(size=224, classes=1000, hidden=4096)


def vgg16_226() -> VGG16:
    """ParaDL's: 3 x 226 x 226, pooling that rounds up, FC6 sees 512 x 8 x 8; 169.81 M parameters."""
    return VGG16(size=226, classes=1000, hidden=4096, round_up=True)


def vgg16_mini() -> VGG16:
    """A quarter of the channels, classifier of width 1024: 3 x 64 x 64, 100 classes, 2.6 M."""
    return VGG16(size=64, classes=100, hidden=1024, divisor=4)
