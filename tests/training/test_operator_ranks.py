"""Models of operators under every strategy that divides layers: on threads, and under mpiexec."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.helpers.tensor_ranks import on_ranks
from tests.training.launching import needs_mpiexec, said
from tests.training.operator_ranks import CASES, ON_THREADS, RANKS, Case

from calib.training.checks.gradients import gradient_difference
from calib.training.worker import WorkerOptions

PROGRAM = Path(__file__).with_name("operator_ranks.py")
EXACT = 1e-10


@pytest.mark.parametrize("case", ON_THREADS, ids=str)
def test_gradients_are_those_of_the_module(case: Case) -> None:
    about = case.about  # traced before there are threads, of which torch.export knows nothing
    found = on_ranks(
        case.division,
        lambda teams: gradient_difference(about, case.division, 3, teams, WorkerOptions()),
    )
    assert max(found) <= EXACT


@pytest.mark.mpi
@pytest.mark.waits
@needs_mpiexec
def test_on_real_ranks() -> None:
    """What MPI and gloo send, and all pipelines, which are torch's."""
    differences = json.loads(said(RANKS, PROGRAM).splitlines()[-1])
    assert len(differences) == len(CASES)
    for case, found in zip(CASES, differences, strict=True):
        assert len(found) == case.division.p
        assert max(found) <= EXACT, f"{case}: {found}"
