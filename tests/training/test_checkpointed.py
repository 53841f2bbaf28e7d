"""Models with checkpointed regions, trained: gradients and messages. Bytes: test_live_bytes.py."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.helpers.tensor_ranks import Noted, on_ranks
from tests.oracle.checkpointed_models import entry_of, traced
from torch import Tensor

from calib.foundation.division import Division
from calib.oracle.layout.traffic import messages
from calib.training.checks.gradients import gradient_difference
from calib.training.step import TrainingStep
from calib.training.teams import Teams
from calib.training.worker import WorkerOptions

SEED, EACH = 7, 2
OF_RANKS = [
    Division("data", 2, 2 * EACH),
    Division("data", 2, 2 * EACH, sharded_optimizer=True),
    Division("fully_sharded", 2, 2 * EACH),
    Division("fully_sharded", 3, 3 * EACH),
]


@pytest.mark.parametrize("name", ["blocks", "in-segments", "language", "images"])
@pytest.mark.parametrize("division", OF_RANKS, ids=lambda of: f"{of.strategy} {of.p}")
def test_gradients_are_the_serial_ones(name: str, division: Division) -> None:
    about = entry_of(name)

    def program(teams: Teams) -> float:
        return gradient_difference(about, division, SEED, teams, WorkerOptions())

    assert max(on_ranks(division, program)) < 1e-10


@pytest.mark.parametrize("name", ["mlp", "of-two", "in-segments", "language"])
@pytest.mark.parametrize("p", [2, 3])
def test_messages_are_those_of_the_oracle(name: str, p: int) -> None:
    """Regions within a unit and over several: what runs again may gather once more."""
    about, division = entry_of(name), Division("fully_sharded", p, p * EACH)

    def program(teams: Teams) -> list[tuple[str, int]]:
        sent: list[tuple[str, int]] = []

        def note(operation: str, whole: Tensor, buffers: list[Tensor]) -> None:
            sent.append((operation, whole.nbytes))

        world: Any = Noted(teams.world, note)
        step = TrainingStep(about, division, SEED, replace(teams, world=world))
        sent.clear()
        step.iterate()
        return sent

    expected = sorted((m.operation, m.nbytes) for m in messages(traced(name), division))
    for sent in on_ranks(division, program):
        assert sorted(sent) == expected
