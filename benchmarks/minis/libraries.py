"""The libraries that have networks: torchvision, timm, transformers (the extra "models")."""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from importlib import import_module
from typing import Any

import torch

BOXES = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
ABSENT = {"torchvision::nms": BOXES, "torchvision::qnms": BOXES}


def library(name: str) -> Any:
    """Import a library, or a module of one. Raises ImportError where it is not installed."""
    with suppress(ModuleNotFoundError):  # timm and transformers import it, too
        _torchvision()
    return import_module(name)


@cache
def _torchvision() -> None:
    """Import torchvision, also a wheel for CUDA beside a PyTorch for CPUs.

    Its own operators do not load there, and its import ends where it describes two of them, which no
    network needs: so they are declared.
    """
    try:
        import_module("torchvision")
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
        for operator, schema in ABSENT.items():
            torch.library.define(operator, schema)
        import_module("torchvision")
