"""Data parallelism as the paper's framework did it: one flat allreduce after the backward.

Each PE has all weights and B/p of the batch; gradients are packed into one buffer, summed over the
PEs, divided by p and copied back (ParaDL section 3.2 "data"; formulas.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from microbench.tensors import flat_buffer, pack, unpack

if TYPE_CHECKING:
    from microbench.communicators import Communicator


class FlatAllreduce:
    """Gradients in one flat buffer, summed by the communicator's allreduce."""

    def __init__(self, parameters: Sequence[torch.Tensor], communicator: Communicator) -> None:
        self._communicator = communicator
        self._flat = flat_buffer([tuple(p.shape) for p in parameters], parameters[0].dtype)
        self._buffer = self._flat.numpy()

    def pack(self, gradients: Sequence[torch.Tensor]) -> None:
        """Copy the gradients into the flat buffer."""
        pack(gradients, self._flat)

    def exchange(self) -> None:
        """Sum the flat buffer over the ranks."""
        self._communicator.allreduce(self._buffer)

    def unpack(self, gradients: Sequence[torch.Tensor]) -> None:
        """Average and copy back."""
        unpack(self._flat, gradients, self._communicator.size)


def make(parameters: Sequence[torch.Tensor], communicator: Communicator) -> FlatAllreduce | None:
    """The exchange of data parallelism; None on one rank, where it is serial training."""
    return FlatAllreduce(parameters, communicator) if communicator.size > 1 else None
