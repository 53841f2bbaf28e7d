"""Strategies on four real ranks, in one launch: to start them takes longer than what most programs do.

Parts of tokens or features (part_ranks.py), models of operators (operator_ranks.py), plans per layer
(plan_ranks.py).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.training import operator_ranks, part_ranks
from tests.training.launching import needs_mpiexec, said
from tests.training.plan_models import DIMENSIONS

pytestmark = [pytest.mark.mpi, pytest.mark.waits, needs_mpiexec]

HERE = Path(__file__).parent
RANKS = 4
SIZES = (2, 3, 4)
EXACT = 1e-10
# of gradients that are zero but for rounding (biases of keys) against a billionth of the largest
EXACT_PARTS = 1e-7
NUMBERS = 1024  # bytes of single numbers, which the count leaves out
# parts first: they count all tensors of a process
ONE_AFTER_THE_OTHER = """
import runpy, sys
from pathlib import Path
for line in sys.argv[1:]:
    name, *sys.argv[1:] = line.split()
    sys.argv[0] = name
    runpy.run_path(name, run_name="__main__")
"""


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where plan_ranks.py left its files, and the lines that the others have printed."""
    directory = tmp_path_factory.mktemp("ranks")
    script = directory / "all.py"
    script.write_text(ONE_AFTER_THE_OTHER)
    plans = f"{HERE / 'plan_ranks.py'} {directory} {' '.join(map(str, SIZES))}"
    printed = said(
        RANKS, script, *(str(HERE / f"{x}_ranks.py") for x in ("part", "operator")), plans
    )
    (directory / "printed").write_text(printed)
    return directory


@pytest.fixture(scope="module")
def printed(left: Path) -> list[Any]:
    """A line for each case of parts, and one for all of operators."""
    return [json.loads(line) for line in (left / "printed").read_text().splitlines()]


@pytest.mark.parametrize(
    "number",
    range(len(part_ranks.CASES)),
    ids=lambda n: (
        f"{part_ranks.CASES[n].about.name}-{part_ranks.CASES[n].division.slug}-"
        f"p{part_ranks.CASES[n].division.p}-{n}"
    ),
)
def test_gradients_of_parts_are_the_serial_ones_and_bytes_the_oracles(
    number: int, printed: list[Any]
) -> None:
    [(off, measured, counted)] = [of for case, *of in printed[:-1] if case == number]
    assert off < EXACT_PARTS
    assert abs(measured - counted) <= NUMBERS


def test_operators(printed: list[Any]) -> None:
    """What MPI and gloo send, and all pipelines, which are torch's."""
    differences = printed[-1]
    assert len(differences) == len(operator_ranks.CASES)
    for case, found in zip(operator_ranks.CASES, differences, strict=True):
        assert len(found) == case.division.p
        assert max(found) <= EXACT, f"{case}: {found}"


@pytest.mark.parametrize("p", SIZES)
def test_loss_and_gradients_of_plans_are_the_serial_ones(p: int, left: Path) -> None:
    """Every dimension alone, mixes of all at random, idle ranks, and data parallelism as such a plan."""
    found: dict[str, dict[str, Any]] = json.loads((left / f"{p}.json").read_text())
    more = {"mix 5", "idle", "data", "norms", "table, mix"}
    assert {f"single {name}" for name in DIMENSIONS} | more <= set(found)
    for name, case in found.items():
        assert case["missing"] == [], name
        assert max(case["loss"], case["gradients"]) < EXACT, (name, case)
