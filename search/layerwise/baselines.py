"""Plans without a search: data, model, and one-weird-trick parallelism.

Jia et al., section 6, "Baselines"; each is made for all devices, or it says why it cannot be.
"""

from __future__ import annotations

from calib.foundation.layers import LayerShape
from calib.oracle.layout.partitions import Configuration, why_impossible
from calib.oracle.model.spec import ModelSpec

LayerPlan = dict[str, Configuration]
DENSE = ("linear", "embedding")
BASELINES = ("data", "model", "one-weird-trick")


def baseline(model: ModelSpec, name: str, batch: int, p: int) -> tuple[LayerPlan, str]:
    """The plan, or why there is none; else what is to be told of it."""
    if name == "data":
        return _data(model, batch, p)
    if name == "model":
        return _by_channels(model, batch, p, 0)
    first = next(
        (i for i, layer in enumerate(model.layers) if layer.shape.kind in DENSE), len(model.layers)
    )
    data, why = _data(model, batch, p)
    if not data:
        return data, why
    channels, told = _by_channels(model, batch, p, first)
    return {**data, **channels}, told


def _data(model: ModelSpec, batch: int, p: int) -> tuple[LayerPlan, str]:
    if batch % p:
        return {}, f"{p} devices do not divide the batch of {batch} samples"
    return {layer.name: Configuration(sample=p) for layer in model.layers}, ""


def _by_channels(model: ModelSpec, batch: int, p: int, first: int) -> tuple[LayerPlan, str]:
    """Channels of every layer from `first` on over as many devices as can be.

    Layers that are cut by samples only are so, by all devices where the batch allows.
    """
    plan, fewer, samples = {}, 0, 0
    for layer in model.layers[first:]:
        of = _most(layer.shape, batch, p)
        plan[layer.name] = of
        fewer += 1 < of.channel < p
        samples += of.channel == 1
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
