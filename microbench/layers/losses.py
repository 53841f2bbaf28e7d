"""The loss of a LayerShape: timed as a layer here, and what training minimizes."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from calib.foundation.layers import LayerShape


class Loss(nn.Module):
    """A mean over the samples and their places; classes at the dimension that `shape` says.

    Of a model with an auxiliary head, which returns the pair (main, auxiliary), it is
    loss(main) + auxiliary_weight loss(auxiliary), with the same targets. It is one module without
    children: the hooks that time a training step see one layer, as a ModelSpec has it.
    """

    def __init__(self, shape: LayerShape) -> None:
        super().__init__()
        self._squares = shape.kind == "mse"
        self._classes_last = "classes_last" in shape.attributes
        weight = shape.attributes.get("auxiliary_weight", 0.0)
        assert isinstance(weight, float | int)
        self._weight = weight

    def forward(self, outputs: Tensor | tuple[Tensor, Tensor], targets: Tensor) -> Tensor:
        """The scalar loss of what a model returns."""
        if isinstance(outputs, Tensor):
            return self._of(outputs, targets)
        main, auxiliary = outputs
        return self._of(main, targets) + self._weight * self._of(auxiliary, targets)

    def _of(self, output: Tensor, targets: Tensor) -> Tensor:
        if self._squares:
            return F.mse_loss(output, targets)
        if self._classes_last:
            output, targets = output.flatten(0, -2), targets.flatten()
        return F.cross_entropy(output, targets)


def random_targets(
    shape: LayerShape, batch: int, generator: torch.Generator, dtype: torch.dtype | None = None
) -> Tensor:
    """Random targets of a loss: classes (batch, *places) of int64, or normal values like the output.

    The values are of `dtype` (None: torch's default); drawn on the generator's device.
    """
    if shape.kind == "mse":
        size = (batch, *shape.input_shapes[0])
        return torch.randn(size, generator=generator, dtype=dtype, device=generator.device)
    size = (batch, *shape.places)
    return torch.randint(shape.classes, size, generator=generator, device=generator.device)
