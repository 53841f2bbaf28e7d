"""Gradients in one flat buffer: packed, exchanged, unpacked."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from calib.microbench.communicator import TorchGroup
from calib.microbench.tensors import flat_buffer, pack, unpack


class FlatAllreduce:
    """Gradients in one flat buffer, summed by the communicator's allreduce and divided.

    `divisor` is by what the sums are divided: by default the ranks of the communicator.
    """

    def __init__(
        self, parameters: Sequence[Tensor], communicator: TorchGroup, divisor: int = 0
    ) -> None:
        self._communicator = communicator
        self._divisor = divisor or communicator.size
        first = parameters[0]
        self._flat = flat_buffer([tuple(p.shape) for p in parameters], first.dtype, first.device)

    def pack(self, gradients: Sequence[Tensor]) -> None:
        """Copy the gradients into the flat buffer."""
        pack(gradients, self._flat)

    def exchange(self) -> None:
        """Sum the flat buffer over the ranks."""
        self._communicator.allreduce(self._flat)

    def unpack(self, gradients: Sequence[Tensor]) -> None:
        """Average and copy back."""
        unpack(self._flat, gradients, self._divisor)
