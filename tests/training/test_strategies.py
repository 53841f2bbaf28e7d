"""What happens to gradients between backward and update, on a communicator made of numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import oracle.strategies
import training.strategies
from foundation.errors import InputError
from oracle.division import STRATEGIES
from training.strategies import make_exchange


class Others:
    """Rank 0 of `size`, whose other ranks all hold `theirs`."""

    library = "none"
    rank = 0

    def __init__(self, size: int, theirs: np.ndarray | None = None) -> None:
        self.size = size
        self.theirs = theirs
        self.calls = 0

    def allreduce(self, buffer: np.ndarray) -> None:
        self.calls += 1
        buffer += (self.size - 1) * self.theirs

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"the exchange has no reason to call {name}")


def test_the_rooms_know_the_same_strategies() -> None:
    assert set(training.strategies.STRATEGIES) <= set(oracle.strategies.STRATEGIES)
    assert tuple(oracle.strategies.STRATEGIES) == STRATEGIES


@pytest.mark.parametrize("size", [2, 3, 64])
def test_serial_on_several_ranks_is_refused(size: int) -> None:
    with pytest.raises(InputError, match=f"serial training runs on 1 rank, not on {size}"):
        make_exchange("serial", [torch.zeros(2)], Others(size))


def test_unknown_strategy() -> None:
    with pytest.raises(InputError, match=r"unknown strategy 'model'; known: serial, data"):
        make_exchange("model", [torch.zeros(2)], Others(2))


@pytest.mark.parametrize("strategy", ["serial", "data"])
def test_nothing_is_exchanged_on_one_rank(strategy: str) -> None:
    assert make_exchange(strategy, [torch.zeros(2)], Others(1)) is None


def test_data_averages_over_the_ranks_in_one_allreduce() -> None:
    """Three ranks: mine 1..6, theirs 10 each: (mine + 20) / 3, in the tensors' own shapes."""
    communicator = Others(3, np.full(6, 10.0, dtype=np.float32))
    gradients = [torch.tensor([[1.0, 2.0], [3.0, 4.0]]).t(), torch.tensor([5.0, 6.0])]
    mine = [gradient.clone() for gradient in gradients]
    exchange = make_exchange("data", [torch.zeros(2, 2), torch.zeros(2)], communicator)
    assert exchange is not None
    exchange.pack(gradients)
    exchange.exchange()
    exchange.unpack(gradients)
    assert communicator.calls == 1
    for found, before in zip(gradients, mine, strict=True):
        torch.testing.assert_close(found, (before + 20.0) / 3.0, rtol=1e-6, atol=0)


def test_a_second_iteration_does_not_see_the_first() -> None:
    """The flat buffer is used again: nothing of the last sum may stay in it."""
    communicator = Others(2, np.zeros(3, dtype=np.float32))
    exchange = make_exchange("data", [torch.zeros(3)], communicator)
    assert exchange is not None
    for value in (8.0, 2.0):
        gradients = [torch.full((3,), value)]
        exchange.pack(gradients)
        exchange.exchange()
        exchange.unpack(gradients)
        assert gradients[0].tolist() == [value / 2] * 3
