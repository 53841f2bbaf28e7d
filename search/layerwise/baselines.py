"""Plans without a search: data, model, and one-weird-trick parallelism.

Jia et al., section 6, "Baselines"; each is made for all devices, or says why it cannot be.
"""

from __future__ import annotations

from calib.foundation.layers import LayerShape
from calib.oracle.layout.partitions import Configuration, why_impossible
from calib.oracle.model.spec import ModelSpec

LayerPlan = list[Configuration]  # by layer
DENSE = ("linear", "embedding")
BASELINES = ("data", "model", "one-weird-trick")


def baseline(model: ModelSpec, name: str, batch: int, p: int) -> tuple[LayerPlan, str]:
    """The plan and what to know of it; no plan, and why there is none."""
    layers = model.layers
    if name == "model":
        return _by_channels(model, batch, p, 0)
    if batch % p:
        return [], f"{p} devices do not divide the batch of {batch} samples"
    data = [Configuration(sample=p)] * len(layers)
    if name == "data":
        return data, ""
    dense = (i for i, layer in enumerate(layers) if layer.shape.kind in DENSE)
    first = next(dense, len(layers))
    channels, told = _by_channels(model, batch, p, first)
    return [*data[:first], *channels], told


def _by_channels(model: ModelSpec, batch: int, p: int, first: int) -> tuple[LayerPlan, str]:
    """Cut the channels of every layer from `first` on over as many devices as can be.

    Layers that can only be cut by samples are, over all devices where the batch allows.
    """
    plan = [_most(layer.shape, batch, p) for layer in model.layers[first:]]
    fewer = sum(1 < of.channel < p for of in plan)
    samples = sum(of.channel == 1 for of in plan)
    told = []
    if fewer:
        told.append(f"layers with channels for fewer than {p} devices: {fewer}")
    if samples:
        told.append(f"layers cut by samples, as channels cannot cut them: {samples}")
    return plan, "; ".join(told)


def _most(shape: LayerShape, batch: int, p: int) -> Configuration:
    for n in range(p, 1, -1):
        of = Configuration(channel=n)
        if not why_impossible(shape, of, batch):
            return of
    return Configuration(sample=next(n for n in range(p, 0, -1) if batch % n == 0))
