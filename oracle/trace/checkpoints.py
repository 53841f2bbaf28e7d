"""Which calls of a model are in a checkpointed region (torch.utils.checkpoint), while it is traced.

torch.export cannot follow what PyTorch does around a region. So that is replaced: the function of a
region runs as it is, and the nodes that it makes are marked with the region's number. Of regions within
one another the outermost counts.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.utils.checkpoint
from torch import fx
from torch.fx.traceback import annotate

from calib.foundation.errors import InputError

REGION = "calib_region"  # key of what torch.export keeps of a node
_numbers = itertools.count(1)
_inside: list[int] = []


class _Reentrant:
    """In place of CheckpointFunction."""

    @staticmethod
    def apply(*_: Any) -> Any:
        raise InputError("it is checkpointed with use_reentrant=True: pass use_reentrant=False")


def _generator(
    function: Any,
    preserve_rng_state: bool,
    context_fn: Any,
    determinism_check: str,
    debug: bool,
    early_stop: bool,
    *args: Any,
    **kwargs: Any,
) -> Iterator[None]:
    """As PyTorch's, between whose two steps checkpoint() calls the function of the region."""
    if context_fn is not torch.utils.checkpoint.noop_context_fn:
        raise InputError("its checkpoints choose what they keep (context_fn)")
    if not early_stop:
        raise InputError("it is checkpointed with early_stop=False: leave that out")
    if _inside or not torch.is_grad_enabled():
        yield
        return
    number = next(_numbers)
    _inside.append(number)
    try:
        with annotate({REGION: number}):
            yield
    finally:
        _inside.pop()


@contextmanager
def checkpoints_marked() -> Iterator[None]:
    """While a model is traced: nodes know their region (`region_of`).

    Checkpoints of a kind that calib does not predict raise InputError.
    """
    of: Any = torch.utils.checkpoint
    before = of._checkpoint_without_reentrant_generator, of.CheckpointFunction
    of._checkpoint_without_reentrant_generator, of.CheckpointFunction = _generator, _Reentrant
    try:
        yield
    finally:
        of._checkpoint_without_reentrant_generator, of.CheckpointFunction = before


def region_of(node: fx.Node) -> int:
    """The number of the region that a node is in; 0 for none."""
    found: int = (node.meta.get("custom") or {}).get(REGION, 0)
    return found
