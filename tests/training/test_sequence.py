"""Sequence parallelism on ranks that are threads: gradients of serial training, messages of the oracle."""

from __future__ import annotations

import pytest
from tests.helpers.attention import KINDS, TOKENS, WIDTH, block
from tests.helpers.tensor_ranks import on_ranks
from tests.training.serial_runs import model_entry

from calib.foundation.division import Division
from calib.training.checks.gradients import gradient_difference
from calib.training.models import ModelEntry
from calib.training.worker import WorkerOptions

BATCH = 4
# of gradients that are zero but for rounding (biases of keys) against a billionth of the largest
EXACT = 1e-7
ATTENDING = [name for name in KINDS if name not in ("Mlp", "Gated")]


def sequence(p: int) -> Division:
    return Division("sequence", p, BATCH)


def difference(about: ModelEntry, p: int, execution: str = "float32") -> float:
    division, options = sequence(p), WorkerOptions(execution=execution)
    return max(
        on_ranks(division, lambda teams: gradient_difference(about, division, 3, teams, options))
    )


@pytest.mark.parametrize("name", ATTENDING)
def test_gradients_are_those_of_serial_training(name: str) -> None:
    """Of every weight, value by value, in float64; and a loss of the same value."""
    assert difference(model_entry(block(name), (TOKENS, WIDTH), 5), 2) < EXACT
