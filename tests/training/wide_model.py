"""A model whose gradients fill several buckets."""

from __future__ import annotations

from torch import nn

from calib.training.models import ModelEntry

SEED, EACH, STEPS = 11, 2, 3


def wide() -> nn.Module:
    """Three layers of 301 x 300 float64 weights, 0.69 MiB each, between two small ones."""
    layers: list[nn.Module] = [nn.Linear(20, 300)]
    for _ in range(3):
        layers += [nn.BatchNorm1d(300), nn.ReLU(), nn.Linear(300, 300)]
    return nn.Sequential(*layers, nn.Linear(300, 5))


WIDE = ModelEntry("wide", wide, (20,), "cross_entropy", 5, EACH)
