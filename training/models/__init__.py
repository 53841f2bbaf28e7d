"""The registered models: full ones as published and minis that a small machine can train.

A mini has the layers of its full model in the same order, narrower and on a smaller input, so that
every code path of the full model runs in seconds. Importing this package does not import torch: a
family's file is imported when one of its models is built.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from foundation.errors import InputError

if TYPE_CHECKING:
    from torch import nn

Loss = Literal["cross_entropy", "mse"]


@dataclass(frozen=True)
class ModelEntry:
    """A registered model. `build` makes it on torch's default device with torch's default generator.

    `input_shape` is one sample's (channels, then spatial sizes); `outputs` is the length of the
    output vector (the classes of cross_entropy); `batch_per_pe` is the default number of samples
    per processing element and iteration.
    """

    name: str
    build: Callable[[], nn.Module]
    input_shape: tuple[int, ...]
    loss: Loss
    outputs: int
    batch_per_pe: int


def _lazily(family: str, function: str) -> Callable[[], nn.Module]:
    """A builder that imports training/models/<family>.py (and so torch) when it is called."""

    def build_model() -> nn.Module:
        module: nn.Module = getattr(importlib.import_module(f"{__name__}.{family}"), function)()
        return module

    return build_model


_ENTRIES = (
    ModelEntry("vgg16", _lazily("vgg", "vgg16"), (3, 224, 224), "cross_entropy", 1000, 32),
    ModelEntry("resnet50", _lazily("resnet", "resnet50"), (3, 224, 224), "cross_entropy", 1000, 32),
    ModelEntry("cosmoflow", _lazily("cosmoflow", "cosmoflow"), (4, 512, 512, 512), "mse", 4, 1),
    ModelEntry(
        "cosmoflow-256", _lazily("cosmoflow", "cosmoflow_256"), (4, 256, 256, 256), "mse", 4, 1
    ),
    ModelEntry(
        "cosmoflow-128", _lazily("cosmoflow", "cosmoflow_128"), (4, 128, 128, 128), "mse", 4, 1
    ),
    ModelEntry("vgg16-mini", _lazily("vgg", "vgg16_mini"), (3, 64, 64), "cross_entropy", 100, 8),
    ModelEntry(
        "resnet50-mini", _lazily("resnet", "resnet50_mini"), (3, 64, 64), "cross_entropy", 100, 8
    ),
    ModelEntry(
        "cosmoflow-mini", _lazily("cosmoflow", "cosmoflow_mini"), (4, 32, 32, 32), "mse", 4, 4
    ),
)
_BY_NAME = {item.name: item for item in _ENTRIES}


def model_names() -> tuple[str, ...]:
    """Names of the registered models, full ones first."""
    return tuple(_BY_NAME)


def entry(name: str) -> ModelEntry:
    """The registered model `name`. Raises InputError with the known names and the nearest one."""
    if name in _BY_NAME:
        return _BY_NAME[name]
    near = difflib.get_close_matches(name.lower(), _BY_NAME, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]}?" if near else ";"
    raise InputError(f"unknown model {name!r}{hint} known models: {', '.join(_BY_NAME)}")


def build(name: str, seed: int) -> nn.Module:
    """The model `name` on the CPU, in train mode, with weights that `seed` alone determines.

    Every rank that passes the same seed has the same weights. The state of torch's global
    generators is left as it was. Raises InputError for an unknown name.
    """
    found = entry(name)
    import torch

    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(seed)  # not torch.manual_seed: it reseeds GPUs too
        return found.build()
