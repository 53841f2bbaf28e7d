"""Adaptive pooling that skips the identity, for which torch would copy the tensor."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import Tensor, nn

POOLS = {nn.AdaptiveAvgPool1d: 1, nn.AdaptiveAvgPool2d: 2, nn.AdaptiveAvgPool3d: 3}


def skip_identities(module: nn.Module) -> nn.Module:
    """Let every adaptive average pooling of `module` hand on what has its size already; `module`.

    The modules stay what they are, for their names.
    """
    for pool in _pools(module):
        pool.__dict__["forward"] = partial(_pooled, pool)
    return module


@contextmanager
def identities_run(module: nn.Module) -> Iterator[None]:
    """While it is traced: every adaptive average pooling is a layer, as the ModelSpec has it."""
    skipping = [(pool, pool.__dict__.pop("forward", None)) for pool in _pools(module)]
    try:
        yield
    finally:
        for pool, forward in skipping:
            if forward is not None:
                pool.__dict__["forward"] = forward


def _pools(module: nn.Module) -> list[nn.Module]:
    return [part for part in module.modules() if type(part) in POOLS]


def _pooled(pool: Any, x: Tensor) -> Tensor:
    dimensions, size = POOLS[type(pool)], pool.output_size
    wanted = size if isinstance(size, tuple | list) else (size,) * dimensions
    if all(n in (None, length) for n, length in zip(wanted, x.shape[-dimensions:], strict=True)):
        return x
    made: Tensor = type(pool).forward(pool, x)
    return made
