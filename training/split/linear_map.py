"""A linear map for autograd, given with its transpose, which is its backward.

Communication comes in such pairs: join parts and cut one's own, take a halo and give it back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.autograd.function import Function, once_differentiable

Map = Callable[[Tensor], Tensor]


class _LinearMap(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, there: Map, back: Map) -> Tensor:
        ctx.back = back
        return there(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return ctx.back(gradient), None, None


# (x, there, back) -> there(x), whose gradient g becomes back(g); torch has no types for it
mapped: Callable[[Tensor, Map, Map], Tensor] = _LinearMap.apply
