"""Models as ranks build them, and registered ones traced once for many tests."""

from __future__ import annotations

from functools import cache

import torch
from torch import nn

from calib.oracle.model.spec import ModelSpec
from calib.oracle.trace.tracing import trace
from calib.training.models import built, entry


def build(name: str, seed: int) -> nn.Module:
    """A registered model as ranks build it."""
    return built(entry(name), seed)


def quiet(module: nn.Module) -> nn.Module:
    """Without dropout, whose masks differ between ranks, stages and serial runs by definition."""
    for part in module.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
    return module


@cache
def registered(name: str) -> tuple[ModelSpec, nn.Module]:
    """A registered model on the meta device, and its trace; made once for all tests."""
    found = entry(name)
    with torch.device("meta"):
        module = found.build()
    return trace(module, found.input_shape, name, found.loss, found.auxiliary_weight), module
