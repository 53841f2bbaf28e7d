"""CosmoFlow (Mathuriya et al. 2018) in ParaDL's form for inputs of 4 x 512^3, and smaller ones.

Layers at 4 x 512^3: seven valid convolutions, each followed by ReLU, the first six also by average
pooling by 2, then FC 2048, 256, 4 with ReLU between them (models.md has the table of sizes).
A smaller input runs out of voxels, and the layers that would go below one voxel are dropped:

- 256^3: conv6 ends at 1^3, so its pooling and conv7 with its ReLU are dropped (6 convolutions,
  5 poolings); the first FC sees 256 channels.
- 128^3: conv5 ends at 1^3, so its pooling, conv6 with its ReLU and pooling, and conv7 with its ReLU
  are dropped (5 convolutions, 4 poolings); the first FC sees 256 channels.
- mini (32^3): nothing is dropped, because its convolutions are padded by kernel // 2 (the full model
  pads nothing); an even kernel so adds a voxel: conv5 and conv6 go 1^3 -> 2^3 and are pooled to
  1^3, and conv7 ends at 2^3, so the first FC sees 64 * 8 = 512 items.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn

from calib.training.models.initialize import initialize

INPUT_CHANNELS = 4
OUTPUTS = 4


class ConvolutionRow(NamedTuple):
    """One row of the table: channels out, kernel, stride, and whether a pooling by 2 follows."""

    channels: int
    kernel: int
    stride: int
    pooled: bool


CONVOLUTIONS = (
    ConvolutionRow(16, 3, 1, True),
    ConvolutionRow(32, 3, 1, True),
    ConvolutionRow(64, 3, 2, True),
    ConvolutionRow(128, 3, 1, True),
    ConvolutionRow(256, 2, 1, True),
    ConvolutionRow(256, 2, 1, True),
    ConvolutionRow(128, 2, 1, False),
)


class CosmoFlow(nn.Module):
    """Input (batch, 4, size, size, size), output (batch, 4): the cosmological parameters.

    `hidden` are the widths of the hidden FC layers; `divisor` divides the channels; `padded` pads
    each convolution by kernel // 2. Layers that would go below one voxel are dropped.
    """

    def __init__(
        self, size: int, hidden: tuple[int, ...], divisor: int = 1, padded: bool = False
    ) -> None:
        super().__init__()
        self.features = nn.Sequential()
        channels = INPUT_CHANNELS
        gains: dict[nn.Conv3d, float] = {}
        for number, row in enumerate(CONVOLUTIONS, start=1):
            padding = row.kernel // 2 if padded else 0
            if size + 2 * padding < row.kernel:
                break
            convolution = nn.Conv3d(
                channels, row.channels // divisor, row.kernel, row.stride, padding
            )
            # where the kernel is larger than its input, all but (size / kernel)^3 of its taps meet
            # padding; without a gain for that the mini's gradients would be about 1e-6
            gains[convolution] = max(1.0, row.kernel / size) ** 1.5
            self.features.add_module(f"conv{number}", convolution)
            self.features.add_module(f"relu{number}", nn.ReLU())
            channels = row.channels // divisor
            size = (size + 2 * padding - row.kernel) // row.stride + 1
            if row.pooled and size >= 2:
                self.features.add_module(f"pool{number}", nn.AvgPool3d(2))
                size //= 2
        self.classifier = nn.Sequential()
        widths = (channels * size**3, *hidden, OUTPUTS)
        for number, (items, outputs) in enumerate(pairwise(widths), start=1):
            self.classifier.add_module(f"fc{number}", nn.Linear(items, outputs))
            if number <= len(hidden):
                self.classifier.add_module(f"relu{number}", nn.ReLU())
        initialize(self)
        with torch.no_grad():
            for convolution, gain in gains.items():
                convolution.weight.mul_(gain)

    def forward(self, x: Tensor) -> Tensor:
        """Parameters (batch, 4) of volumes (batch, 4, size, size, size)."""
        x = torch.flatten(self.features(x), 1)
        outputs: Tensor = self.classifier(x)
        return outputs


def cosmoflow() -> CosmoFlow:
    """The model of the ParaDL paper: 4 x 512^3, 2,131,252 parameters."""
    return CosmoFlow(size=512, hidden=(2048, 256))


def cosmoflow_256() -> CosmoFlow:
    """4 x 256^3: without the pooling of conv6 and without conv7."""
    return CosmoFlow(size=256, hidden=(2048, 256))


def cosmoflow_128() -> CosmoFlow:
    """4 x 128^3: without the pooling of conv5 and without conv6 and conv7."""
    return CosmoFlow(size=128, hidden=(2048, 256))


def cosmoflow_mini() -> CosmoFlow:
    """4 x 32^3, half the channels, padded so that all layers fit; FC 512, 64, 4."""
    return CosmoFlow(size=32, hidden=(512, 64), divisor=2, padded=True)
