"""Models of operators under every strategy that divides layers: operator_ranks.py under mpiexec."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.training.launching import needs_mpiexec, said
from tests.training.operator_ranks import CASES, RANKS

PROGRAM = Path(__file__).with_name("operator_ranks.py")


@pytest.mark.mpi
@pytest.mark.waits
@needs_mpiexec
def test_gradients_are_those_of_the_module() -> None:
    differences = json.loads(said(RANKS, PROGRAM).splitlines()[-1])
    assert len(differences) == len(CASES)
    for case, found in zip(CASES, differences, strict=True):
        assert len(found) == case.division.p
        assert max(found) <= 1e-10, f"{case}: {found}"
