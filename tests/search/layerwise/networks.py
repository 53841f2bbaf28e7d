"""Models for tests of layer-wise searches."""

from __future__ import annotations

import math
from typing import Any

from calib.foundation.layers import LayerShape, Shape
from calib.oracle.model.layer import Layer
from calib.oracle.model.spec import ModelSpec


class Network:
    """A model by its layers, one after the other."""

    def __init__(self, image: Shape) -> None:
        self.layers: list[Layer] = []
        self.shapes: dict[str, Shape] = {"input": image}

    def add(
        self,
        kind: Any,
        output: Shape,
        *inputs: str,
        weights: tuple[Shape, ...] = (),
        **attributes: Any,
    ) -> str:
        name = f"{kind}{len(self.layers)}"
        shape = LayerShape(
            kind=kind,
            input_shapes=tuple(self.shapes[x] for x in inputs),
            output_shape=output,
            parameter_shapes=weights,
            attributes=attributes,
        )
        needs = any(x != "input" for x in inputs)
        self.layers.append(Layer(name=name, shape=shape, inputs=inputs, needs_input_grad=needs))
        self.shapes[name] = output
        return name

    def conv(self, x: str, channels: int, kernel: int = 3) -> str:
        c, *size = self.shapes[x]
        same = {
            "kernel": (kernel,) * len(size),
            "stride": (1,) * len(size),
            "padding": (kernel // 2,) * len(size),
            "groups": 1,
        }
        return self.add(
            "conv",
            (channels, *size),
            x,
            weights=((channels, c, *[kernel] * len(size)), (channels,)),
            **same,
        )

    def relu(self, x: str) -> str:
        return self.add("relu", self.shapes[x], x)

    def head(self, x: str, classes: int = 4) -> ModelSpec:
        items = math.prod(self.shapes[x])
        flat = self.add("flatten", (items,), x)
        dense = self.add("linear", (classes,), flat, weights=((classes, items), (classes,)))
        self.add("cross_entropy", (), dense)
        return ModelSpec(
            name="small",
            input_shape=self.shapes["input"],
            classes=classes,
            layers=tuple(self.layers),
        )
