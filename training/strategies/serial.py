"""Serial training: one PE, no exchange."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from foundation.errors import InputError

if TYPE_CHECKING:
    import torch

    from microbench.communicators import Communicator


def make(parameters: Sequence[torch.Tensor], communicator: Communicator) -> None:
    """No exchange. Raises InputError on more than one rank: that would be several serial runs."""
    if communicator.size != 1:
        raise InputError(f"serial training runs on 1 rank, not on {communicator.size}")
