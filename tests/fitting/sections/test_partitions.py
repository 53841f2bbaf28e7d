"""Rows of sparse exchanges -> the law of the server's partitions, and the other methods beside it."""

from __future__ import annotations

import pytest
from tests.helpers.rows import as_samples, constant

from calib.fitting.parameters.memory import Partitions
from calib.fitting.sections.partitions import partitions
from calib.microbench.cases import SparseCase, SparseMethod
from calib.microbench.records.samples import Sample

THETA = (1.0, 8.0, 0.02)  # best at sqrt(8 / 0.02) = 20


def fitted(
    share: float = 0.1,
    theta: tuple[float, float, float] = THETA,
    numbers: tuple[int, ...] = (4, 8, 16, 32, 64),
    others: tuple[tuple[SparseMethod, float], ...] = (("allgatherv", 2.0), ("allreduce", 9.0)),
    ranks: int = 2,
    **fields: object,
) -> tuple[list[Sample], dict[str, SparseCase]]:
    """Rows of one variable, and their cases."""
    law: list[tuple[SparseMethod, int, float]] = [
        ("server", p, theta[0] + theta[1] / p + theta[2] * p) for p in numbers
    ]
    rows: list[Sample] = []
    cases = {}
    for method, parts, seconds in [*law, *((name, 1, s) for name, s in others)]:
        case = SparseCase(
            ranks=ranks, rows=100, width=2, share=share, method=method, partitions=parts
        )
        cases[case.id] = case
        rows += constant(case, method, seconds, 4, **fields)
    return rows, cases


def one(*given: tuple[list[Sample], dict[str, SparseCase]]) -> Partitions:
    (found,), notes = several(*given)
    assert notes == []
    return found


def several(
    *given: tuple[list[Sample], dict[str, SparseCase]],
) -> tuple[list[Partitions], list[str]]:
    cases = {name: case for _, cases in given for name, case in cases.items()}
    return partitions(as_samples(row for rows, _ in given for row in rows), cases)


def test_a_known_variable() -> None:
    found = one(fitted())
    assert [e.value for e in (found.constant_s, found.parallel_s, found.per_partition_s)] == (
        pytest.approx(THETA)
    )
    assert found.best_partitions == found.best_low == found.best_high == pytest.approx(20.0)
    assert (found.min_partitions, found.max_partitions, found.n) == (4, 64, 20)
    assert (found.rows, found.width, found.share, found.ranks, found.nodes) == (100, 2, 0.1, 2, 1)
    # 1.82 s at 16 parts: of 2 s by allgatherv and 9 s by allreduce the fastest
    assert {name: time.value for name, time in found.methods.items()} == pytest.approx(
        {"server": 1.82, "allgatherv": 2.0, "allreduce": 9.0}
    )
    assert (found.server_partitions, found.fastest) == (16, "server")
    assert found.name == "100x2@0.1 (p=2, mpi)"


def test_launches_that_differ_are_in_the_interval() -> None:
    twice = (2.0, 16.0, 0.04)
    found = one(fitted(launch=0), fitted(theta=twice, launch=1))
    assert found.constant_s.low <= 1.0 and found.constant_s.high >= 2.0
    assert found.server_s.low <= 1.82 and found.server_s.high >= 3.64
    assert found.best_partitions == pytest.approx(20.0)


def test_shares_ranks_and_layouts_are_apart() -> None:
    found, notes = several(fitted(), fitted(0.5), fitted(ranks=4), fitted(nodes=2), fitted())
    assert notes == []
    assert [(law.share, law.ranks, law.nodes) for law in found] == [
        (0.1, 2, 1),
        (0.1, 2, 2),
        (0.1, 4, 1),
        (0.5, 2, 1),
    ]
    assert found[1].name == "100x2@0.1 (p=2, 2 nodes, mpi)"


def test_what_was_not_measured() -> None:
    """Without gathering there is a law; where more is always faster, no best; of three numbers none."""
    found = one(fitted(theta=(1.0, 8.0, -1e-4), others=()))
    assert found.best_partitions is found.best_low is found.best_high is None
    assert list(found.methods) == ["server"] and found.server_partitions == 64
    assert found.model_dump_json()
    none, notes = several(fitted(numbers=(4, 8, 16)))
    assert none == []
    assert notes == [
        "sparse exchange of 100 x 2, a = 0.1, on 2 ranks: 3 numbers of partitions were measured, 4 are "
        "needed"
    ]
    assert several() == ([], [])
