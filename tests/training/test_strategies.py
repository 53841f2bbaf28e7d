"""What strategies there are, and the flat allreduce between backward and update."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest
import torch
from tests.helpers.tensor_ranks import on_ranks
from torch import Tensor

from calib.foundation.division import STRATEGIES, Division
from calib.foundation.errors import InputError
from calib.oracle.strategies import strategy_named
from calib.training.gradients.flat import FlatAllreduce
from calib.training.models import entry
from calib.training.step import TrainingStep
from calib.training.teams import Teams


class Others:
    """Rank 0 of `size`, whose other ranks all hold `theirs`."""

    def __init__(self, size: int, theirs: Tensor) -> None:
        self.size, self.theirs = size, theirs
        self.calls = 0

    def allreduce(self, buffer: Tensor) -> None:
        assert buffer.is_contiguous()
        self.calls += 1
        buffer += (self.size - 1) * self.theirs

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"the exchange has no reason to call {name}")


def flat_allreduce(parameters: list[Tensor], team: Any, divisor: int = 0) -> FlatAllreduce:
    return FlatAllreduce(parameters, team, divisor)


def exchanged(exchange: FlatAllreduce, gradients: list[Tensor]) -> list[Tensor]:
    exchange.pack(gradients)
    exchange.exchange()
    exchange.unpack(gradients)
    return gradients


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy_has_a_file_in_both_rooms(strategy: str) -> None:
    """Of its name: terms in the oracle, what a rank runs in training."""
    module = STRATEGIES[strategy].module
    assert module == strategy.replace("+", "_")
    assert callable(import_module(f"calib.training.strategies.{module}").make)
    terms = strategy_named(strategy)
    assert terms is import_module(f"calib.oracle.strategies.{module}")
    assert all(callable(getattr(terms, name)) for name in ("measured", "paper", "memory", "limit"))


REFUSED = {
    "serial on 2": (Division("serial", 2, 2), 2, "serial runs on 1 rank, not on 2"),
    "a batch of 3 for 2": (Division("data", 2, 3), 2, "p = 2 does not divide the batch of 3"),
    "2 ranks on 3 ranks": (Division("data", 2, 4), 3, "data on p = 2, but 3 ranks run"),
    "two ways at once": (
        Division("data", 2, 4, overlap=True, sharded_optimizer=True),
        2,
        "train it without overlap",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_is_refused(case: str) -> None:
    """On every rank, before anything is sent."""
    division, ranks, why = REFUSED[case]

    def program(teams: Teams) -> str:
        with pytest.raises(InputError) as error:
            TrainingStep(entry("cosmoflow-mini"), division, 0, teams)
        return str(error.value)

    messages = on_ranks(Division("data", ranks, ranks), program)
    assert all(why in message for message in messages)


@pytest.mark.parametrize("strategy", ["serial", "data"])
def test_nothing_is_exchanged_on_one_rank(strategy: str) -> None:
    def program(teams: Teams) -> bool:
        step = TrainingStep(entry("cosmoflow-mini"), Division(strategy, 1, 2), 0, teams)
        return step.worker.exchange is None

    assert on_ranks(Division(strategy, 1, 2), program) == [True]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_data_averages_over_the_ranks_in_one_allreduce(dtype: torch.dtype) -> None:
    """Three ranks: mine 1..6, theirs 10 each: (mine + 20) / 3, in the tensors' own shapes."""
    team = Others(3, torch.full((6,), 10.0, dtype=dtype))
    gradients = [
        torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=dtype).t(),
        torch.tensor([5.0, 6.0], dtype=dtype),
    ]
    assert not gradients[0].is_contiguous()
    mine = [gradient.clone() for gradient in gradients]
    exchange = flat_allreduce([torch.zeros_like(gradient) for gradient in gradients], team)
    exchanged(exchange, gradients)
    assert team.calls == 1
    for found, before in zip(gradients, mine, strict=True):
        assert torch.equal(found, (before + 20.0) / 3.0)


def test_a_divisor_of_its_own() -> None:
    """Parts of an image are summed and only groups averaged: 1 + 3 x 2 = 7 of four ranks, by 2."""
    team = Others(4, torch.full((3,), 2.0))
    (found,) = exchanged(flat_allreduce([torch.zeros(3)], team, 2), [torch.ones(3)])
    assert found.tolist() == [3.5] * 3


def test_a_second_iteration_does_not_see_the_first() -> None:
    """The flat buffer is used again: nothing of the last sum may stay in it."""
    exchange = flat_allreduce([torch.zeros(3)], Others(2, torch.zeros(3)))
    for value in (8.0, 2.0):
        (found,) = exchanged(exchange, [torch.full((3,), value)])
        assert found.tolist() == [value / 2] * 3
