"""Models with checkpointed regions, trained: gradients, messages, and the oracle's count of bytes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.helpers.tensor_ranks import Noted, on_ranks
from tests.oracle.checkpointed_models import CHECKPOINTED, MODELS, built, traced
from torch import Tensor

from calib.foundation.division import Division
from calib.oracle.layout.traffic import messages
from calib.oracle.memory.live_bytes import live_bytes
from calib.training.checks.gradients import gradient_difference
from calib.training.models import ModelEntry
from calib.training.step import TrainingStep
from calib.training.teams import Teams
from calib.training.worker import WorkerOptions

SEED, EACH = 7, 2
OF_RANKS = [
    Division("data", 2, 2 * EACH),
    Division("data", 2, 2 * EACH, overlap=False, sharded_optimizer=True),
    Division("fully_sharded", 2, 2 * EACH),
    Division("fully_sharded", 3, 3 * EACH),
]


def entry_of(name: str) -> ModelEntry:
    spec = traced(name)
    own, loss = spec.layers[-1].shape, spec.rows
    return ModelEntry(
        name,
        lambda: MODELS[name][0](CHECKPOINTED),
        spec.input_shape,
        "cross_entropy",
        own.classes,
        EACH,
        places=own.places,
        rows=loss,
    )


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("division", OF_RANKS, ids=lambda of: f"{of.strategy} {of.p}")
def test_gradients_are_the_serial_ones(name: str, division: Division) -> None:
    about = entry_of(name)

    def program(teams: Teams) -> float:
        return gradient_difference(about, division, SEED, teams, WorkerOptions())

    assert max(on_ranks(division, program)) < 1e-10


@pytest.mark.parametrize("name", MODELS)
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
