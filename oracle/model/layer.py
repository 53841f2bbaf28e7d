"""One layer of a ModelSpec."""

from __future__ import annotations

import math
from functools import cached_property

from pydantic import Field

from calib.foundation.layers import LayerShape, Shape
from calib.foundation.records import Record


class Layer(Record):
    """One layer and the names of the layers it reads ("input" is the model's input)."""

    name: str = Field(description="its name in the model")
    shape: LayerShape = Field(description="kind, sizes and attributes")
    inputs: tuple[str, ...] = Field(
        description='names of the layers it reads; "input" is the model\'s input'
    )
    needs_input_grad: bool = Field(
        description="false if no layer before it has weights: dL/dx is then not computed"
    )
    shared_parameters: dict[int, str] = Field(
        default_factory=dict,
        description="which of its parameters a layer before it has, too, and that layer",
    )
    recomputed: str = Field(
        default="",
        description="the checkpointed region that it is in, by the region's first layer: run again in "
        "the backward; empty: none",
    )

    @cached_property
    def outputs(self) -> dict[str, Shape]:
        """The names by which later layers read its outputs: NAME, NAME[1], ...; their shapes."""
        found = {self.name: self.shape.output_shape}
        for place, shape in enumerate(self.shape.more_outputs, 1):
            found[f"{self.name}[{place}]"] = shape
        return found

    @property
    def gradients(self) -> dict[str, bool]:
        """Whether dL/dy is computed, by output: indices beside values have none."""
        operator, has = self.shape.operator, self.has_gradient
        if operator is None or not has:
            return dict.fromkeys(self.outputs, has)
        return dict(zip(self.outputs, operator.differentiable_outputs, strict=True))

    @property
    def own_parameters(self) -> tuple[Shape, ...]:
        """Shapes of the parameters that no layer before it has."""
        shapes = self.shape.parameter_shapes
        return tuple([of for at, of in enumerate(shapes) if at not in self.shared_parameters])

    @property
    def named_parameters(self) -> dict[str, Shape]:
        """The same by name: NAME.weight, NAME.bias, and of operators NAME.parameter2, ..."""
        shapes = self.shape.parameter_shapes
        parts = ["weight", "bias", *(f"parameter{at}" for at in range(2, len(shapes)))]
        return {
            f"{self.name}.{part}": of
            for at, (part, of) in enumerate(zip(parts, shapes, strict=False))
            if at not in self.shared_parameters
        }

    @property
    def own_parameter_items(self) -> int:
        """Items of these."""
        return sum(map(math.prod, self.own_parameters))

    @property
    def has_gradient(self) -> bool:
        """Whether dL/dy is computed: this layer or one before it has weights."""
        if not self.shape.is_differentiable:
            return False
        return self.needs_input_grad or bool(self.shape.parameter_shapes)


def contents(shape: LayerShape) -> tuple[object, ...]:
    """A hashable key of a shape, quick to make."""
    return (
        shape.kind,
        shape.input_shapes,
        shape.output_shape,
        shape.parameter_shapes,
        tuple(shape.attributes.items()),
        shape.operator and shape.operator.contents,
    )
