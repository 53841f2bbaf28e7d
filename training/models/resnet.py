"""ResNet-50 and ResNet-152 (He et al. 2016) in the "v1.5" layout of torchvision, full and minis."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from calib.training.models.initialize import initialize

STAGE_BLOCKS = (3, 4, 6, 3)  # ResNet-50
STAGE_BLOCKS_152 = (3, 8, 36, 3)
EXPANSION = 4


class BottleneckBlock(nn.Module):
    """1x1, 3x3 (which carries the stride: v1.5), 1x1 convolution, and a shortcut.

    Input (batch, channels, h, w), output (batch, 4 width, h / stride, w / stride). The shortcut is a
    1x1 convolution with batch norm where the shape changes, else the input itself. Each ReLU is a
    module of its own, so that a layer's name in a trace is its module's name.
    """

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu1 = nn.ReLU()
        self.conv2 = nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.relu2 = nn.ReLU()
        self.conv3 = nn.Conv2d(width, width * EXPANSION, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(width * EXPANSION)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != width * EXPANSION:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels, width * EXPANSION, 1, stride=stride, bias=False),
                nn.BatchNorm2d(width * EXPANSION),
            )
        self.relu3 = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """The block's output (batch, 4 width, h / stride, w / stride)."""
        y = self.relu1(self.bn1(self.conv1(x)))
        y = self.relu2(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        joined: Tensor = self.relu3(y + self.shortcut(x))
        return joined


class ResNet(nn.Module):
    """A 7x7 stem, bottlenecks in four stages, global average pooling and one FC.

    Input (batch, 3, size, size), output logits (batch, classes). `width` is the stem's channels
    (64 as published), `stage_blocks` the bottlenecks of each stage.
    """

    def __init__(
        self, classes: int, width: int = 64, stage_blocks: tuple[int, ...] = STAGE_BLOCKS
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU()
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        stages: list[nn.Module] = []
        channels = width
        for number, blocks in enumerate(stage_blocks):
            stage_width = width * 2**number
            stage: list[nn.Module] = []
            for block in range(blocks):
                stride = 2 if block == 0 and number > 0 else 1
                stage.append(BottleneckBlock(channels, stage_width, stride))
                channels = stage_width * EXPANSION
            stages.append(nn.Sequential(*stage))
        self.stages = nn.Sequential(*stages)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(channels, classes)
        initialize(self)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (batch, classes) of images (batch, 3, size, size)."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = torch.flatten(self.avgpool(self.stages(x)), 1)
        logits: Tensor = self.fc(x)
        return logits


def resnet50() -> ResNet:
    """The published model: 3 x 224 x 224, 1000 classes, 25.56 M parameters, 4.09 GMAC.

    At 3 x 226 x 226, ParaDL's size, the first convolution puts out 113 x 113.
    """
    return ResNet(classes=1000)


def resnet152() -> ResNet:
    """The published model: 3 x 224 x 224, 1000 classes, 60.19 M parameters, 11.51 GMAC."""
    return ResNet(classes=1000, stage_blocks=STAGE_BLOCKS_152)


def resnet50_mini() -> ResNet:
    """A quarter of the channels: for 3 x 64 x 64, 100 classes, 1.5 M parameters."""
    return ResNet(classes=100, width=16)


def resnet152_mini() -> ResNet:
    """An eighth of the channels, all 50 bottlenecks: for 3 x 64 x 64, 100 classes, 1.0 M."""
    return ResNet(classes=100, width=8, stage_blocks=STAGE_BLOCKS_152)
