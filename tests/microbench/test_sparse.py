"""Sparse exchanges by real ranks: equal to the serial sum, and a wrong one has no time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from tests.training.launching import needs_mpiexec, run_script

from calib.microbench.cases import SparseCase
from calib.microbench.sparse import expected, touched

PROGRAM = Path(__file__).with_name("sparse_ranks.py")


@needs_mpiexec
@pytest.mark.mpi
@pytest.mark.waits
@pytest.mark.parametrize("ranks", [2, 3])
def test_all_methods_give_the_serial_sum(ranks: int, tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    done = run_script(ranks, PROGRAM, str(result))
    assert done.returncode == 0, done.stdout + done.stderr
    content: dict[str, Any] = json.loads(result.read_text())
    assert len(content["errors"]) == 5 + 5 + 5 + 6
    assert max(content["errors"].values()) < 2e-4
    # the last rank expects the rows of another seed: no rank has a time
    assert len({*content["refused"]}) == 1
    assert "rows differ from the serial sum" in content["refused"][0]
    assert set(content["ranks"]) == {"server"}
    times = content["ranks"]["server"]
    assert len(times) >= 7 and all(len(row) == ranks and min(row) > 0 for row in times)


def case_of(**changes: Any) -> SparseCase:
    given: dict[str, Any] = {"ranks": 2, "rows": 100, "width": 3, "share": 0.25, "method": "server"}
    return SparseCase(**(given | changes))


def test_rows_and_gradients_are_of_the_seed() -> None:
    case = case_of()
    rows, gradients = touched(case, 0, 1)
    again, same = touched(case_of(partitions=4), 0, 1)
    assert (rows == again).all() and (gradients == same).all()
    assert len(set(rows.tolist())) == 25 and (rows == sorted(rows)).all()
    for seed, rank in ((0, 2), (1, 1)):
        assert not (touched(case, seed, rank)[0] == rows).all()
    one = expected(case, 0, 1, rows)
    both = set(touched(case, 0, 0)[0].tolist()) & set(rows.tolist())
    other = [k for k, row in enumerate(rows.tolist()) if row not in both]
    assert (one[other] == rows[other, None] % 97).all()  # untouched by rank 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"share": 0.0},
        {"share": 1.5},
        {"partitions": 101},
        {"partitions": 0},
        {"rows": 0},
        {"method": "allreduce", "partitions": 2},
    ],
)
def test_impossible_cases_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        case_of(**wrong)
