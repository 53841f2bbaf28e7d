"""One layer of a ModelSpec."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from calib.foundation.layers import LayerShape


class Layer(BaseModel):
    """One layer and the names of the layers it reads ("input" is the model's input)."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    name: str = Field(description="its name in the model")
    shape: LayerShape = Field(description="kind, sizes and attributes")
    inputs: tuple[str, ...] = Field(
        description='names of the layers it reads; "input" is the model\'s input'
    )
    needs_input_grad: bool = Field(
        description="false if no layer before it has weights: dL/dx is then not computed"
    )

    @property
    def has_gradient(self) -> bool:
        """Whether dL/dy is computed: this layer or one before it has weights."""
        return self.needs_input_grad or bool(self.shape.parameter_shapes)


def contents(shape: LayerShape) -> tuple[object, ...]:
    """A hashable key of a shape, quick to make."""
    return (
        shape.kind,
        shape.input_shapes,
        shape.output_shape,
        shape.parameter_shapes,
        tuple(shape.attributes.items()),
    )
