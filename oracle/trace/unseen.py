"""What a graph of a forward's calls does not show, found while the forward is traced."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calib.foundation.operators import PRIME


class Unseen(RuntimeError):
    """What a forward does that the graph of its calls would not show, or not in a reasonable time."""


@contextmanager
def unseen_refused() -> Iterator[None]:
    """While a model is exported: what its graph would not show raises Unseen.

    A backward of the user's, a loop over samples, a compiled function, an inference_mode.
    """
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

    compiler: Any = torch.compiler
    is_exporting = compiler.is_exporting

    def asked() -> bool:
        # what torch.compile puts around a function asks, and then calls it
        frame = sys._getframe(1)
        called = frame.f_locals.get("fn") if frame.f_code.co_name == "compile_wrapper" else None
        if called is not None and not called.__module__.startswith("torch."):
            name = called.__qualname__
            raise Unseen(f"{name} is compiled (torch.compile), and runs no operators one by one")
        return bool(is_exporting())

    inference: Any = torch.inference_mode
    enter = inference.__enter__

    def entered(mode: Any) -> None:
        if mode.mode:
            raise Unseen("it has an inference_mode, which no graph shows: take no_grad")
        enter(mode)

    function.apply, Tensor.__iter__ = classmethod(apply), each  # type: ignore[method-assign]
    compiler.is_exporting, inference.__enter__ = asked, entered
    try:
        yield
    finally:
        function.apply, Tensor.__iter__ = before, iterate  # type: ignore[method-assign]
        compiler.is_exporting, inference.__enter__ = is_exporting, enter


def generators() -> tuple[object, list[str]]:
    """The states of Python's and NumPy's generators: a graph would have what they drew for good."""
    return random.getstate(), [
        str(np.asarray(of).tolist()) for of in np.random.get_state(legacy=True)
    ]
