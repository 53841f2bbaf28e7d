"""LeNet-5 (LeCun et al. 1998, "Gradient-Based Learning Applied to Document Recognition", figure 2)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from calib.training.models.initialize import initialize


class LeNet(nn.Module):
    """Two 5x5 convolutions, each with ReLU and a 2x2 max pooling, then three FC.

    Input (batch, 1, 32, 32), output logits (batch, 10). As it is commonly trained: ReLU, max pooling
    and all connections of the second convolution, where the paper has tanh, trained subsampling and a
    table of connections; 61,706 parameters.
    """

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 6, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(6, 16, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.classifier = nn.Sequential(
            nn.Linear(16 * 5 * 5, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)
        )
        initialize(self)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (batch, 10) of images (batch, 1, 32, 32)."""
        logits: Tensor = self.classifier(torch.flatten(self.features(x), 1))
        return logits


def lenet5() -> LeNet:
    """The published sizes: 1 x 32 x 32, 10 classes, 61,706 parameters."""
    return LeNet()
