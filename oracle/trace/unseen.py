"""What a graph of a forward's calls does not show, found while the forward is traced."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from calib.foundation.operators import PRIME


class Unseen(RuntimeError):
    """What a forward does that the graph of its calls would not show, or not in a reasonable time."""


@contextmanager
def unseen_refused() -> Iterator[None]:
    """While a model is exported: a backward of the user's, or a loop over samples, raises Unseen."""
    function: Any = torch.autograd.Function
    before = function.__dict__["apply"]
    iterate: Any = Tensor.__iter__

    def apply(own: Any, *given: Any, **named: Any) -> Any:
        if not own.__module__.startswith("torch."):
            raise Unseen(f"{own.__name__} is an autograd.Function with a backward of its own")
        return before.__func__(own, *given, **named)

    def each(tensor: Tensor) -> Any:
        if tensor.dim() and len(tensor) and len(tensor) % PRIME == 0:
            raise Unseen("it loops over the samples of a batch")
        return iterate(tensor)

    function.apply, Tensor.__iter__ = classmethod(apply), each  # type: ignore[method-assign]
    try:
        yield
    finally:
        function.apply, Tensor.__iter__ = before, iterate  # type: ignore[method-assign]
