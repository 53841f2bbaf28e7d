"""Models as ranks build them, and registered ones with their traces."""

from __future__ import annotations

from functools import cache

import torch
from torch import nn

from calib.oracle.model.spec import ModelSpec
from calib.training.models import built, entry
from calib.training.models.specs import spec


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
    """A registered model on the meta device, and its trace, from the cache of traces."""
    with torch.device("meta"):
        module = entry(name).build()
    return spec(name), module
