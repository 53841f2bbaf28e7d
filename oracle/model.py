"""The ModelSpec record (model.json): the layers of a model with shapes, kinds and edges.

Made by tracing a PyTorch module (oracle/trace.py), never typed by hand; read without torch.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from foundation.files import read_record, write_json
from foundation.layers import LayerShape, Shape

MODEL_FORMAT = 1


class Layer(BaseModel):
    """One layer and the layers that it reads from ("input" is the model's input)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    shape: LayerShape
    inputs: tuple[str, ...]
    needs_input_grad: bool = Field(
        description="false where no layer before it has weights: its dL/dx is never computed"
    )


class ModelSpec(BaseModel):
    """A model as the oracle sees it. The last layer is the loss."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format_version: int = MODEL_FORMAT
    name: str
    input_shape: Shape
    classes: int = Field(ge=1, description="outputs of the last weighted layer")
    layers: tuple[Layer, ...] = Field(min_length=1)

    @property
    def parameter_items(self) -> int:
        """Number of weights and biases."""
        return sum(layer.shape.parameter_items for layer in self.layers)

    @property
    def parameter_shapes(self) -> tuple[Shape, ...]:
        """Shapes of all weights and biases in the order of the layers, as an optimizer sees them."""
        return tuple(shape for layer in self.layers for shape in layer.shape.parameter_shapes)

    def forward_flops(self, batch: int = 1) -> float:
        """Floating-point operations of a forward over `batch` samples (a multiply-add is 2)."""
        return sum(layer.shape.forward_flops(batch) for layer in self.layers)

    def multiply_adds(self) -> float:
        """MAC per sample of convolutions and fully connected layers, as publications count them."""
        weighted = [layer.shape for layer in self.layers if layer.shape.kind in ("conv", "linear")]
        return sum(shape.forward_flops(1) for shape in weighted) / 2.0

    def write(self, path: Path) -> None:
        """Write model.json whole or not at all."""
        write_json(path, self.model_dump())

    @classmethod
    def read(cls, path: Path) -> ModelSpec:
        """Read model.json. Raises FileError."""
        return read_record(cls, path, "model file", MODEL_FORMAT)


def tensors_key(shapes: tuple[Shape, ...]) -> str:
    """A hash that names a list of tensor shapes (for measured update, pack and unpack times)."""
    text = json.dumps([list(shape) for shape in shapes])
    return hashlib.sha256(text.encode()).hexdigest()[:16]
