"""Chains of matrix products under SBP strategies give what one rank gives, on real ranks."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path

import pytest
from tests.training.launching import needs_mpiexec, said

pytestmark = [pytest.mark.mpi, pytest.mark.waits, needs_mpiexec]

PROGRAM = Path(__file__).with_name("sbp_ranks.py")


def triples(p: int) -> list[tuple[int, int, int]]:
    """Every p1 p2 p3 = p."""
    return [d for d in itertools.product(range(1, p + 1), repeat=3) if d[0] * d[1] * d[2] == p]


def chains(p: int) -> list[list[tuple[int, int, int]]]:
    """Every pair of two layers on 2 and 4 ranks; 60 of 8; and 40 of four layers."""
    pairs = [list(pair) for pair in itertools.product(triples(p), repeat=2)]
    draw = random.Random(p)
    if len(pairs) > 60:
        pairs = draw.sample(pairs, 60)
    return pairs + [draw.choices(triples(p), k=4) for _ in range(40)]


SIZES = (1, 2, 4, 8)


@pytest.fixture(scope="module")
def errors() -> dict[str, list[float]]:
    """Of one launch: by the number of ranks, the largest error of each chain."""
    jobs = {p: chains(p) for p in SIZES}
    found: dict[str, list[float]] = json.loads(said(max(SIZES), PROGRAM, json.dumps(jobs)))
    return found


@pytest.mark.parametrize("p", SIZES)
def test_every_result_is_the_serial_one(p: int, errors: dict[str, list[float]]) -> None:
    """Output, dX and all dW in float64; the ranks share two cores, which changes no result."""
    assert len(errors[str(p)]) == len(chains(p))
    assert max(errors[str(p)]) < 1e-10
