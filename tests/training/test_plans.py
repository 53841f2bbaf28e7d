"""Training under a plan per layer: equal to serial training, whatever the configurations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.training.launching import needs_mpiexec, said
from tests.training.plan_models import DIMENSIONS

PROGRAM = Path(__file__).with_name("plan_ranks.py")
EXACT = 1e-10
SIZES = (2, 3, 4)


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where one launch left what was found on each number of ranks."""
    directory = tmp_path_factory.mktemp("plans")
    said(max(SIZES), PROGRAM, str(directory), *map(str, SIZES))
    return directory


@pytest.mark.mpi
@pytest.mark.waits
@needs_mpiexec
@pytest.mark.parametrize("p", SIZES)
def test_loss_and_gradients_are_the_serial_ones(p: int, left: Path) -> None:
    """Every dimension alone, mixes of all at random, idle ranks, and data parallelism as such a plan."""
    found: dict[str, dict[str, Any]] = json.loads((left / f"{p}.json").read_text())
    more = {"mix 5", "idle", "data", "norms", "table, mix"}
    assert {f"single {name}" for name in DIMENSIONS} | more <= set(found)
    for name, case in found.items():
        assert case["missing"] == [], name
        assert max(case["loss"], case["gradients"]) < EXACT, (name, case)
