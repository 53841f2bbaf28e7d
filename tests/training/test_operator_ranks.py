"""Models of operators under every strategy that divides layers, on threads (ranks: test_four_ranks)."""

from __future__ import annotations

import pytest
from tests.helpers.tensor_ranks import on_ranks
from tests.training.operator_ranks import ON_THREADS, Case

from calib.training.checks.gradients import gradient_difference
from calib.training.worker import WorkerOptions

EXACT = 1e-10


@pytest.mark.parametrize("case", ON_THREADS, ids=str)
def test_gradients_are_those_of_the_module(case: Case) -> None:
    about = case.about  # traced before there are threads, of which torch.export knows nothing
    found = on_ranks(
        case.division,
        lambda teams: gradient_difference(about, case.division, 3, teams, WorkerOptions()),
    )
    assert max(found) <= EXACT
