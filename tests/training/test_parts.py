"""Strategies that give each rank a part of the tokens or features, on real ranks: part_ranks.py."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest
from tests.training.launching import needs_mpiexec, said
from tests.training.part_ranks import CASES, RANKS

PROGRAM = Path(__file__).with_name("part_ranks.py")
# of gradients that are zero but for rounding (biases of keys) against a billionth of the largest
EXACT = 1e-7
NUMBERS = 1024  # bytes of single numbers, which the count leaves out


@cache
def found() -> dict[int, tuple[float, int, int]]:
    """By the number of a case: the difference, the peak, the count."""
    lines = map(json.loads, said(RANKS, PROGRAM).splitlines())
    return {number: (off, measured, counted) for number, off, measured, counted in lines}


@pytest.mark.mpi
@pytest.mark.waits
@needs_mpiexec
@pytest.mark.parametrize(
    "number",
    range(len(CASES)),
    ids=lambda n: f"{CASES[n].about.name}-{CASES[n].division.slug}-p{CASES[n].division.p}-{n}",
)
def test_gradients_are_the_serial_ones_and_bytes_the_oracles(number: int) -> None:
    off, measured, counted = found()[number]
    assert off < EXACT
    assert abs(measured - counted) <= NUMBERS
