"""Training under a plan per layer: equal to serial training, whatever the configurations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.training.launching import needs_mpiexec, run_script
from tests.training.plan_models import DIMENSIONS

PROGRAM = Path(__file__).with_name("plan_ranks.py")
EXACT = 1e-10


@pytest.mark.mpi
@needs_mpiexec
@pytest.mark.parametrize("p", [2, 3, 4])
def test_loss_and_gradients_are_the_serial_ones(p: int, tmp_path: Path) -> None:
    """Every dimension alone, mixes of all at random, idle PEs, and data parallelism as such a plan."""
    done = run_script(p, PROGRAM, str(tmp_path / "found.json"))
    assert done.returncode == 0, done.stderr
    found: dict[str, dict[str, Any]] = json.loads((tmp_path / "found.json").read_text())
    assert {f"single {name}" for name in DIMENSIONS} | {"mix 5", "idle", "data", "norms"} <= set(
        found
    )
    for name, case in found.items():
        assert case["missing"] == [], name
        assert max(case["loss"], case["gradients"]) < EXACT, (name, case)
