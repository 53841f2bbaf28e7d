"""The loss of a model with two outputs, as GoogLeNet and Inception-v3 have them in training."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn


class AuxiliaryLoss(nn.Module):
    """loss(main) + weight * loss(auxiliary), of a model that returns the pair (main, auxiliary).

    `function` is a loss of (outputs, targets), a mean over the batch; the targets of both outputs
    are the same. It is one module without children, as the losses of torch are: the hooks that time
    a training step see one layer, and in a ModelSpec it is one, that reads both outputs.
    """

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor], weight: float) -> None:
        super().__init__()
        self.function = function
        self.weight = weight

    def forward(self, outputs: tuple[Tensor, Tensor], targets: Tensor) -> Tensor:
        """The scalar loss of outputs (batch, n) each."""
        main, auxiliary = outputs
        return self.function(main, targets) + self.weight * self.function(auxiliary, targets)
