"""Weights that get no gradient: under every strategy they are as PyTorch leaves them.

A pooler runs and nothing reads what it makes; a head and a parameter are never used. Pipelines and
filters of the same module, on real ranks: operator_ranks.py.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.helpers.sharded import weights_of
from tests.helpers.tensor_ranks import on_ranks
from tests.training.operator_models import POOLED, UNUSED
from torch import Tensor

from calib.foundation.division import Division
from calib.microbench.tensors import make_optimizer
from calib.training.checks.gradients import gradient_difference
from calib.training.models import built
from calib.training.step import TrainingStep, loss_function, synthetic_batch
from calib.training.teams import Teams
from calib.training.worker import WorkerOptions

SEED, BATCH, STEPS = 3, 4, 3
EXACT = WorkerOptions(execution="float64")
DIVISIONS = {
    "serial": Division("serial", 1, BATCH),
    "data": Division("data", 2, BATCH),
    "accumulated": Division("data", 2, BATCH, accumulation=2),
    "sharded": Division("data", 3, 6, sharded_optimizer=True),
    "fully sharded": Division("fully_sharded", 3, 6),
    "tensor": Division("tensor", 2, BATCH),
    "tokens": Division("tensor", 2, BATCH, sequence_parallel=True),
    "sequence": Division("sequence", 2, BATCH),
    "channel": Division("channel", 2, BATCH),
}


def serial(division: Division) -> dict[str, Tensor]:
    """Plain torch's weights after some steps on the joint batch."""
    module, loss_of = built(POOLED, SEED).double().train(), loss_function(POOLED)
    each = division.batch // division.replicas
    batches = [synthetic_batch(POOLED, each, SEED + 1 + r) for r in range(division.replicas)]
    inputs, targets = (torch.cat(parts) for parts in zip(*batches, strict=True))
    optimizer = make_optimizer([*module.parameters()], EXACT.optimizer)
    for _ in range(STEPS):
        loss_of(module(inputs.double()), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
    weights = dict(module.named_parameters())
    assert not {weights[name] for name in UNUSED} & optimizer.state.keys()
    return {name: weight.detach() for name, weight in weights.items()}


@pytest.mark.parametrize("name", DIVISIONS)
def test_training_is_the_serial_one(name: str) -> None:
    """Weights after some steps of momentum; nothing is kept or sent for those without a gradient."""
    division, whole = DIVISIONS[name], serial(DIVISIONS[name])

    def program(teams: Teams) -> Any:
        step = TrainingStep(POOLED, division, SEED, teams, EXACT)
        for _ in range(STEPS):
            step.iterate()
        held = {of.name: of for of in step.worker.held}
        assert held.keys() == whole.keys() - {*UNUSED}
        assert step.optimizer.state
        for key, found in weights_of(step.worker).items():
            wanted = held[key].cut(whole[key])
            torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-12, msg=key)
        kept = dict(step.worker.module.named_parameters())
        for key in UNUSED if division.traits.whole else ():
            assert kept[key].grad is None and torch.equal(kept[key], whole[key])
        return True

    assert all(on_ranks(division, program))


@pytest.mark.parametrize("name", DIVISIONS)
def test_gradients_are_compared(name: str) -> None:
    division = DIVISIONS[name]

    def program(teams: Teams) -> float:
        return gradient_difference(POOLED, division, SEED, teams, WorkerOptions())

    assert max(on_ranks(division, program)) < 1e-7
