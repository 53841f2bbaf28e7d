"""How gradients travel under each strategy: one file each, the oracle's names, one line here."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Protocol

from foundation.errors import InputError

if TYPE_CHECKING:
    import torch

    from microbench.communicators import Communicator

STRATEGIES = {"serial": "training.strategies.serial", "data": "training.strategies.data"}


class Exchange(Protocol):
    """What happens to the gradients between the backward and the update."""

    def pack(self, gradients: Sequence[torch.Tensor]) -> None:
        """Make the gradients ready to travel."""

    def exchange(self) -> None:
        """Let them travel."""

    def unpack(self, gradients: Sequence[torch.Tensor]) -> None:
        """Put what arrived where the optimizer looks."""


def make_exchange(
    strategy: str, parameters: Sequence[torch.Tensor], communicator: Communicator
) -> Exchange | None:
    """The exchange of a strategy; None where nothing is exchanged (serial, or p = 1)."""
    if strategy not in STRATEGIES:
        raise InputError(f"unknown strategy {strategy!r}; known: {', '.join(STRATEGIES)}")
    exchange: Exchange | None = import_module(STRATEGIES[strategy]).make(parameters, communicator)
    return exchange
