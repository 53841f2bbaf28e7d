"""A linear map for autograd, given with its transpose, which is its backward.

What moves between ranks is such a pair: parts joined and the own part cut, a halo taken and given back.
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


# (x, there, back) -> there(x), whose gradient g becomes back(g); by its type, autograd's own have none
mapped: Callable[[Tensor, Map, Map], Tensor] = _LinearMap.apply
