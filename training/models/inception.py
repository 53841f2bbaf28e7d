"""Inception-v3 (Szegedy et al. 2016) in torchvision's layout with its auxiliary head, and a mini.

In train mode the model returns two outputs, the main logits and those of the auxiliary head; the
loss of a training step is loss(main) + 0.4 loss(auxiliary) (microbench/layers/losses.py), and in a
ModelSpec one loss layer reads both. In eval mode the head does not run. The head is run last, not
where it branches off: so what a strategy splits up to the first whole layer is the main way.

At the end of the head stands a 5x5 convolution of a 5x5 image, and a batch norm of one item per
sample: the model cannot be trained with one sample per rank.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from calib.training.models.initialize import initialize

EPSILON = 0.001


class ConvolutionSpec(NamedTuple):
    """Channels out, kernel (rows, columns), stride, padding (rows, columns)."""

    channels: int
    kernel: tuple[int, int]
    stride: int = 1
    padding: tuple[int, int] = (0, 0)


def square(channels: int, kernel: int, stride: int = 1, padding: int = 0) -> ConvolutionSpec:
    """A convolution with a square kernel."""
    return ConvolutionSpec(channels, (kernel, kernel), stride, (padding, padding))


def row(channels: int, length: int) -> ConvolutionSpec:
    """1 x length, padded so that the image keeps its size."""
    return ConvolutionSpec(channels, (1, length), 1, (0, length // 2))


def column(channels: int, length: int) -> ConvolutionSpec:
    """length x 1, padded so that the image keeps its size."""
    return ConvolutionSpec(channels, (length, 1), 1, (length // 2, 0))


class Unit(nn.Module):
    """Convolution without bias, batch norm, ReLU."""

    def __init__(self, channels: int, spec: ConvolutionSpec) -> None:
        super().__init__()
        self.conv = nn.Conv2d(
            channels, spec.channels, spec.kernel, spec.stride, spec.padding, bias=False
        )
        self.bn = nn.BatchNorm2d(spec.channels, eps=EPSILON)
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """(batch, spec.channels, h', w')."""
        y: Tensor = self.relu(self.bn(self.conv(x)))
        return y


def chain(channels: int, *specs: ConvolutionSpec) -> nn.Sequential:
    """Units one after the other."""
    inputs = (channels, *(spec.channels for spec in specs))
    return nn.Sequential(*(Unit(n, spec) for n, spec in zip(inputs, specs, strict=False)))


class Forked(nn.Module):
    """Units one after the other, then a 1x3 and a 3x1 that both read the last; joined."""

    def __init__(self, channels: int, stem: nn.Sequential, filters: int) -> None:
        super().__init__()
        self.stem = stem
        self.row = Unit(channels, row(filters, 3))
        self.column = Unit(channels, column(filters, 3))

    def forward(self, x: Tensor) -> Tensor:
        """(batch, 2 filters, h, w)."""
        x = self.stem(x)
        return torch.cat((self.row(x), self.column(x)), 1)


class InceptionBlock(nn.Module):
    """Branches that all read the block's input, joined along the channels in their order."""

    def __init__(self, **branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleDict(branches)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, sum of the branches' channels, h', w')."""
        return torch.cat([branch(x) for branch in self.branches.values()], 1)


def averaged(channels: int, filters: int) -> nn.Sequential:
    """The fourth branch: a 3x3 average (zeros at the border are counted) and a 1x1 convolution."""
    return nn.Sequential(nn.AvgPool2d(3, 1, padding=1), Unit(channels, square(filters, 1)))


WidthOf = Callable[[int], int]  # published channels -> this model's


def block_a(n: WidthOf, channels: int, pooled: int) -> InceptionBlock:
    """35 x 35 (figure 5): 1x1; 5x5; two 3x3; average."""
    return InceptionBlock(
        one=chain(channels, square(n(64), 1)),
        five=chain(channels, square(n(48), 1), square(n(64), 5, padding=2)),
        twice=chain(channels, square(n(64), 1), square(n(96), 3, 1, 1), square(n(96), 3, 1, 1)),
        pool=averaged(channels, n(pooled)),
    )


def block_b(n: WidthOf, channels: int) -> InceptionBlock:
    """35 x 35 to 17 x 17 (figure 10): 3x3; two 3x3; maximum; each of stride 2."""
    return InceptionBlock(
        three=chain(channels, square(n(384), 3, 2)),
        twice=chain(channels, square(n(64), 1), square(n(96), 3, 1, 1), square(n(96), 3, 2)),
        pool=nn.MaxPool2d(3, stride=2),
    )


def block_c(n: WidthOf, channels: int, inner: int) -> InceptionBlock:
    """17 x 17 (figure 6): 1x1; 1x7 and 7x1; twice 7x1 and 1x7; average."""
    i = n(inner)
    return InceptionBlock(
        one=chain(channels, square(n(192), 1)),
        seven=chain(channels, square(i, 1), row(i, 7), column(n(192), 7)),
        twice=chain(channels, square(i, 1), column(i, 7), row(i, 7), column(i, 7), row(n(192), 7)),
        pool=averaged(channels, n(192)),
    )


def block_d(n: WidthOf, channels: int) -> InceptionBlock:
    """17 x 17 to 8 x 8: 3x3; 1x7, 7x1 and 3x3; maximum; each of stride 2."""
    return InceptionBlock(
        three=chain(channels, square(n(192), 1), square(n(320), 3, 2)),
        seven=chain(
            channels, square(n(192), 1), row(n(192), 7), column(n(192), 7), square(n(192), 3, 2)
        ),
        pool=nn.MaxPool2d(3, stride=2),
    )


def block_e(n: WidthOf, channels: int) -> InceptionBlock:
    """8 x 8 (figure 7): 1x1; forked 1x1; forked 3x3; average."""
    twice = chain(channels, square(n(448), 1), square(n(384), 3, 1, 1))
    return InceptionBlock(
        one=chain(channels, square(n(320), 1)),
        three=Forked(n(384), chain(channels, square(n(384), 1)), n(384)),
        twice=Forked(n(384), twice, n(384)),
        pool=averaged(channels, n(192)),
    )


class InceptionV3(nn.Module):
    """A stem of five convolutions, eleven blocks, global average pooling, FC; an auxiliary head.

    Input (batch, 3, size, size). Output logits (batch, classes); in train mode a pair of them, the
    main and the auxiliary ones. `divisor` divides the published channel counts; `head` is the
    side of the image that the head's pooling leaves, and so the kernel of its last convolution.
    """

    def __init__(self, classes: int, divisor: int = 1, head: int = 5) -> None:
        super().__init__()

        def n(published: int) -> int:
            return published // divisor

        self.stem = nn.Sequential(
            *chain(3, square(n(32), 3, 2), square(n(32), 3), square(n(64), 3, 1, 1)),
            nn.MaxPool2d(3, stride=2),
            *chain(n(64), square(n(80), 1), square(n(192), 3)),
            nn.MaxPool2d(3, stride=2),
        )
        self.middle = nn.Sequential(
            block_a(n, n(192), 32),
            block_a(n, n(256), 64),
            block_a(n, n(288), 64),
            block_b(n, n(288)),
            *(block_c(n, n(768), inner) for inner in (128, 160, 160, 192)),
        )
        self.end = nn.Sequential(
            block_d(n, n(768)), block_e(n, n(1280)), block_e(n, n(2048)), nn.AdaptiveAvgPool2d(1)
        )
        self.dropout = nn.Dropout(0.5)
        self.fc = nn.Linear(n(2048), classes)
        self.auxiliary = nn.Sequential(
            nn.AvgPool2d(5, stride=3),
            *chain(n(768), square(n(128), 1), square(n(768), head)),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(n(768), classes),
        )
        initialize(self)

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """Logits (batch, classes) of images (batch, 3, size, size); in train mode also the head's."""
        middle = self.middle(self.stem(x))
        logits: Tensor = self.fc(self.dropout(torch.flatten(self.end(middle), 1)))
        return (logits, self.auxiliary(middle)) if self.training else logits


def inception_v3() -> InceptionV3:
    """The published model: 3 x 299 x 299, 1000 classes, 27.16 M parameters with the head.

    5.71 GMAC without the head, 5.72 with it.
    """
    return InceptionV3(classes=1000)


def inception_v3_mini() -> InceptionV3:
    """An eighth of the channels: for 3 x 155 x 155, 100 classes, 0.4 M parameters.

    155 is the smallest input at which the last convolution of the head is larger than 1x1.
    """
    return InceptionV3(classes=100, divisor=8, head=2)
