"""On a slow link a short budget still holds every operation, at sizes that its rate allows."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cluster.conftest import Launch
from tests.cluster.namespaces import true_beta
from tests.helpers.rows import rows_in

from calib.microbench.budget import FEWEST_CALLS, FILLED, fewest_s, is_first
from calib.microbench.cases import CollectiveCase, read_plan
from calib.microbench.collectives.expected import MARGIN
from calib.microbench.records.manifest import Manifest
from calib.microbench.session import NOT_HELD

pytestmark = pytest.mark.cluster

MEGABITS, BUDGET_S = 300, 15.0
SIZES = [8 << 3 * k for k in range(8)]  # 8 B to 16 MiB
LARGE = 2 << 20  # 56 ms on the link, of which the bucket lets the first 20 ms pass at once
# of m, what a link takes one after another: a ping-pong is there and back
VOLUMES = {"p2p": 2.0, "allreduce": 1.0, "allgather": 0.5, "broadcast": 1.0}
CASES = [
    CollectiveCase.model_validate(
        {"ranks": 2, "group_size": 2, "operation": name, "nbytes": nbytes, "tier": 1}
    )
    for name in VOLUMES
    for nbytes in SIZES
]


@pytest.fixture(scope="module")
def run(launch: Launch) -> Path:
    """The fewest repetitions of all take about 21 s: 9 calls of 2.6 s by all operations and sizes."""
    return launch(MEGABITS, ["h0", "h1"], CASES, budget_s=BUDGET_S)


def test_what_cases_take_is_known_from_the_link(run: Path) -> None:
    """Within what the bucket lets pass at once of a single call, and what a busy machine adds."""
    for case in read_plan(run).cases:
        assert isinstance(case, CollectiveCase)
        if case.nbytes == SIZES[-1]:
            of_link = true_beta(MEGABITS) * VOLUMES[case.operation] * case.nbytes
            assert fewest_s(case) == pytest.approx(MARGIN * FEWEST_CALLS * of_link, rel=0.4)


def test_every_operation_is_measured_at_three_sizes(run: Path) -> None:
    plan, rows = read_plan(run), rows_in(run)
    for name in VOLUMES:
        sizes = sorted({row.nbytes for row in rows if row.operation == name})
        assert sizes[0] == SIZES[0] and len(sizes) >= 3
        assert sizes[-1] >= LARGE // 8, "the smallest alone tell no bandwidth"
    assert sum(map(is_first, plan.cases)) == 3 * len(VOLUMES)
    held = plan.cases_for(2)
    assert sum(map(fewest_s, held)) <= FILLED * BUDGET_S
    ends = {end.case_id: end.stopped_by for end in Manifest.read(run).cases}
    out = {case.id for case in plan.cases} - {case.id for case in held}
    assert out and {ends[case_id] for case_id in out} == {NOT_HELD}
    assert {row.case_id for row in rows} <= {case.id for case in held}
