"""The configurations of a layer: degrees over its dimensions, in equal parts.

Jia et al., "Exploring Hidden Dimensions", section 4 and Table 1: sample, channel, height, width (length,
depth), with any degrees whose product is at most the number of devices; other devices are idle. Pruned
sets are for large clusters.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import product

from calib.foundation.errors import InputError
from calib.foundation.layers import LayerShape
from calib.oracle.layout.partitions import (
    SPATIAL_NAMES,
    Configuration,
    channel_axis,
    why_impossible,
)
from calib.search.request import Devices, Look, SearchRequest, never

DIMENSIONS = ("sample", "channel", *SPATIAL_NAMES, "input")
DEFAULT_DIMENSIONS = DIMENSIONS[:-1]
DEGREES = ("auto", "any", "powers", "machine")
PRUNED = {
    "powers": "degrees are powers of 2",
    "machine": "a layer is on 1 device, a node or all devices, cut along two dimensions at most",
}
# auto: these degrees up to so many devices
MOST_FOR_ANY, MOST_FOR_POWERS = 16, 64


@dataclass(frozen=True)
class ConfigurationChoices:
    """Which configurations are looked at: over `dimensions`, pruned as `degrees` says.

    any: all; powers: every degree is a power of 2; machine: on 1 device, a node or all devices, with two
    dimensions cut at most.
    """

    devices: Devices
    batch: int
    dimensions: tuple[str, ...] = DEFAULT_DIMENSIONS
    degrees: str = "any"

    @classmethod
    def of(cls, request: SearchRequest) -> ConfigurationChoices:
        """Those of the options `dimensions` and `degrees`. Raises InputError."""
        text = request.options.get("dimensions", "")
        named = tuple(text.split(",")) if text else DEFAULT_DIMENSIONS
        for name in named:
            if name not in DIMENSIONS:
                raise InputError(f"unknown dimension {name!r}; known: {', '.join(DIMENSIONS)}")
        degrees = request.word("degrees", DEGREES)
        if degrees == "auto":
            p = request.devices.p
            few = "any" if p <= MOST_FOR_ANY else "powers"
            degrees = few if p <= MOST_FOR_POWERS else "machine"
        return cls(request.devices, request.samples, named, degrees)

    def allowed(self, parts: int) -> bool:
        """Whether a layer may be on so many devices."""
        if self.degrees == "machine":
            return parts in (1, self.devices.per_node, self.devices.p)
        return parts <= self.devices.p

    def along(self, length: int) -> list[int]:
        """The degrees that divide a dimension of this length."""
        most = min(length, self.devices.p)
        found = [n for n in range(1, most + 1) if length % n == 0]
        return [n for n in found if n & (n - 1) == 0] if self.degrees == "powers" else found

    @property
    def pruned(self) -> str:
        """Which part of OptCNN's space this is; "": all of it."""
        words = [PRUNED[self.degrees]] if self.degrees in PRUNED else []
        left_out = [name for name in DEFAULT_DIMENSIONS if name not in self.dimensions]
        if left_out:
            words.append(f"no layer is cut along {', '.join(left_out)}")
        return "; ".join(words)

    def few(self) -> ConfigurationChoices:
        """At most three for a layer: cut by samples, on a device, a node or all."""
        return replace(self, dimensions=("sample",), degrees="machine")

    def configurations(self, shape: LayerShape, look: Look = never) -> tuple[Configuration, ...]:
        """All configurations of a layer, that of a single device first. Raises BudgetOver."""
        lengths = self._lengths(shape)
        axes = []
        for name, length in lengths.items():
            degrees = self.along(length)
            # a degree that is impossible alone is impossible with any others
            axes.append([n for n in degrees if n == 1 or self._possible(shape, {name: n})])
        found = []
        for degrees_of in product(*axes):
            look()
            cut = sum(n > 1 for n in degrees_of)
            if self.allowed(math.prod(degrees_of)) and (cut <= 2 or self.degrees != "machine"):
                of = Configuration.of(dict(zip(lengths, degrees_of, strict=True)))
                if not why_impossible(shape, of, self.batch):
                    found.append(of)
        return tuple(found)

    def _possible(self, shape: LayerShape, degrees: dict[str, int]) -> bool:
        return not why_impossible(shape, Configuration.of(degrees), self.batch)

    def _lengths(self, shape: LayerShape) -> dict[str, int]:
        """The lengths of the layer's dimensions that were chosen."""
        output = shape.output_shape
        lengths = {"sample": self.batch}
        if output:
            whole = shape.input_shapes[0][0] if shape.kind == "flatten" else 0
            lengths["channel"] = whole or output[channel_axis(shape)]
            lengths |= dict(zip(SPATIAL_NAMES, output[1:], strict=False))
        if shape.kind in ("conv", "linear"):
            lengths["input"] = shape.parameter_shapes[0][1]
        return {name: n for name, n in lengths.items() if name in self.dimensions}
