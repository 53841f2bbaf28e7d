"""Every strategy computes what serial training does, value by value, under real mpiexec.

Of the first iteration: outputs, gradients of the outputs (those of the inputs of the layers behind) and
of the weights, and running statistics of batch norms; then the weights after a few updates and, of some
cases, the losses of 12 iterations. float64: to 1e-10 of the largest value of each tensor; float32: as
near as rounding leaves it (rounding.py). The parts of the ranks must tile every tensor: no gap, and no
overlap except of ranks that have the same part.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.training.equality_cases import CASES
from tests.training.equality_compare import (
    Found,
    Part,
    changes,
    expected_of,
    first_iteration,
    losses_of,
    read_parts,
    running_of,
)
from tests.training.equality_program import Case
from tests.training.equality_reference import Training
from tests.training.launching import needs_mpiexec, run_script
from torch import Tensor

pytestmark = [
    pytest.mark.mpi,
    pytest.mark.waits,
    needs_mpiexec,
    pytest.mark.usefixtures("one_thread"),
]

PROGRAM = Path(__file__).with_name("equality_program.py")
LIMIT = 1e-10  # of float64, relative to the largest value of a tensor
# the tests of one case come one after the other, so that its files are read once
EACH = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name, scope="module")


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where one launch of all cases left what the ranks have."""
    directory = tmp_path_factory.mktemp("ranks")
    ranks = max(case.division.p for case in CASES)
    done = run_script(ranks, PROGRAM, str(directory))
    (directory / "stderr").write_text(done.stdout + done.stderr)
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="module")
def parts(case: Case, left: Path) -> list[Part]:
    """What the ranks of a case left."""
    return read_parts(left / case.name, case.division.p, (left / "stderr").read_text())


def judge(found: list[Found], bounds: Training | None) -> None:
    """Every tensor as near as its item type allows; the worst are named."""
    if bounds is None:
        wrong = [f for f in found if not f.share <= LIMIT]
    else:
        wrong = [f for f in found if not f.off <= float(bounds.tensors[f.name])]
    wrong.sort(key=lambda f: -f.share if f.share == f.share else -np.inf)
    lines = [f"{f.name}: {f.share:.1e} of its largest" for f in wrong[:6]]
    said = "; ".join(lines)
    assert not wrong, f"{len(wrong)} of {len(found)} tensors are not the serial ones: {said}"


@EACH
def test_the_first_iteration_is_the_serial_one(case: Case, parts: list[Part]) -> None:
    """Outputs, gradients, and of every batch norm that a rank has the running statistics.

    Those are of the rank's samples and part, or of all if synchronised. The check before a run finds
    rounding alone, in float64 whatever the run's item type, and the same number on every rank.
    """
    exact, bounds = expected_of(case)
    judge(first_iteration(case, parts, exact), bounds)
    found = running_of(case, parts, exact)
    layers = {name.split("|")[1] for name in exact.tensors if name.startswith("running")}
    assert {f.name.split("|")[1] for f in found} == layers
    assert bool(layers) == case.model.startswith("resnet")
    judge(found, bounds)
    checked = {part.about["checked"] for part in parts}
    assert len(checked) == 1
    if case.checked:
        assert 0 <= checked.pop() < LIMIT


@EACH
def test_updates_and_losses_are_the_serial_ones(case: Case, parts: list[Part]) -> None:
    """How the weights change, with equal bits on ranks with the same part; losses of 4 or 12 iterations.

    Losses fall, or a model that does not learn would pass.
    """
    exact, bounds = expected_of(case)
    losses = losses_of(parts)
    assert len(losses) == case.iterations
    judge(changes(case, parts, exact), bounds)
    assert exact.losses[len(losses) - 1] < exact.losses[0]
    limits = bounds.losses if bounds else [LIMIT * abs(loss) for loss in exact.losses]
    for iteration, (mine, whole, limit) in enumerate(
        zip(losses, exact.losses, limits, strict=False)
    ):
        assert abs(mine - whole) <= limit, f"iteration {iteration}: {mine} instead of {whole}"
    held: dict[tuple[str, str], Tensor] = {}
    for part in parts:
        for name, mine_after in part.tensors.items():
            if name.startswith("after|"):
                key = name, str(part.about["held"][name.partition("|")[2]][0])
                kept = held.setdefault(key, mine_after)
                assert torch.equal(kept, mine_after), f"ranks differ in {name}"
