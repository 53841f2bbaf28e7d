"""Sparse exchanges by real ranks: equal to the serial sum, and of the bytes of formulas.md's table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from tests.training.launching import needs_mpiexec, run_script

from calib.commands.sparse import cases_of, crossings, found_of
from calib.foundation.errors import InputError
from calib.microbench.sparse.cases import SparseCase, SparseTime, plan
from calib.microbench.sparse.exchange import expected, touched

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
    for row in content["found"]:
        case, nbytes = SparseCase.model_validate(row["case"]), row["bytes"]
        assert row["error"] < 2e-4, row
        table = case.rows * case.width * 4
        w, n = case.touched / case.rows * table, ranks
        if case.method == "allgatherv":
            assert nbytes == [round(2 * w * (n - 1))] * n
        elif case.method == "allreduce":
            assert nbytes == [round(4 * table * (n - 1) / n)] * n
        else:  # every touched row of another owner: there and back, and of both ends
            if case.partitions == 1:
                assert nbytes[0] == round(2 * w * (n - 1))  # the one owner
                assert nbytes[1:] == [round(2 * w)] * (n - 1)
            if case.rows == 1000 and case.partitions == 64:  # balanced: 4 a w (N-1)/N
                assert sum(nbytes) / n == pytest.approx(4 * w * (n - 1) / n, rel=0.05)
    time = SparseTime.model_validate(content["time"])
    assert len(time.timed) >= 6 and min(time.seconds) > 0 and time.ranks == ranks
    assert content["owned"] == [500] * ranks


def test_rows_and_gradients_are_of_the_seed() -> None:
    case = SparseCase(rows=100, width=3, share=0.25, method="server")
    rows, gradients = touched(case, 1)
    again, same = touched(case, 1)
    assert (rows == again).all() and (gradients == same).all()
    assert len(set(rows.tolist())) == 25 and (rows == sorted(rows)).all()
    assert not (touched(case, 2)[0] == rows).all()
    one = expected(case, 1, rows)
    mine = touched(case, 0)
    both = set(mine[0].tolist()) & set(rows.tolist())
    other = [k for k, row in enumerate(rows.tolist()) if row not in both]
    assert (one[other] == rows[other, None] % 97).all()  # untouched by rank 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"share": 0.0},
        {"share": 1.5},
        {"partitions": 11},
        {"partitions": 0},
        {"rows": 0},
        {"method": "allreduce", "partitions": 2},
    ],
)
def test_impossible_cases_are_refused(wrong: dict[str, Any]) -> None:
    given: dict[str, Any] = {"rows": 10, "width": 2, "share": 0.5, "method": "server", **wrong}
    with pytest.raises(ValidationError):
        SparseCase(**given)


@pytest.mark.parametrize(
    ("shares", "partitions", "words"),
    [
        ("0.1,x", "1", "not a list of numbers"),
        ("0", "1", "--shares"),
        ("0.5", "0", "--partitions"),
        ("0.5", "9999", "more than 100 rows"),
    ],
)
def test_options_are_checked(shares: str, partitions: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        cases_of(100, 2, shares, partitions, 0)


def test_the_plan_has_every_method() -> None:
    cases = plan(100, 2, [0.1, 0.5], [1, 2, 4])
    assert len(cases) == 2 * (3 + 2)
    assert {c.partitions for c in cases if c.method == "server"} == {1, 2, 4}


def times(share: float, server: dict[int, float], gathered: float) -> list[SparseTime]:
    common: dict[str, Any] = {"rows": 100, "width": 2, "share": share}
    cases = [(SparseCase(method="server", partitions=p, **common), s) for p, s in server.items()]
    cases += [
        (SparseCase(method="allgatherv", **common), gathered),
        (SparseCase(method="allreduce", **common), 9.0),
    ]
    return [
        SparseTime(
            case=case,
            ranks=2,
            seconds=[s * k for k in (5, 0.99, 1, 1.01, 0.995, 1.005, 1)],
            warmup=1,
            stopped_by="interval",
            half_width=0.01,
            remote_bytes=8,
            oversubscribed=False,
        )
        for case, s in cases
    ]


def test_what_is_found_has_closed_forms() -> None:
    """theta = (1, 8, 0.5): the best P is 4; times meet where their logs do."""
    law = {p: 1 + 8 / p + 0.5 * p for p in (1, 2, 4, 8, 16)}
    found = found_of([*times(0.1, law, 2.5), *times(0.4, law, 10.0)])
    low, high = found["shares"]
    assert low["fastest"] == "allgatherv" and high["fastest"] == "server"
    assert low["best_partitions_measured"] == 4
    assert low["server_s"]["value"] == pytest.approx(5.0)
    assert low["best_partitions"] == pytest.approx(4.0, rel=0.02)
    assert low["best_low"] <= 4.05 and low["best_high"] >= 3.95
    # log(2.5 / 5) = -log(10 / 5): half way between the logs of 0.1 and 0.4
    assert found["crossings"] == pytest.approx([0.2])
    assert crossings([low]) == []
