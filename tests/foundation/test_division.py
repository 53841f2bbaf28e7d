"""Divisions that cannot be: each reason once."""

from __future__ import annotations

import pytest

from calib.foundation.division import Division


@pytest.mark.parametrize(
    ("division", "reasons"),
    [
        (Division("data", 3, 8), ["p = 3 does not divide the batch of 8 samples"]),
        (Division("data+filter", 6, 8, inner=2), ["p1 = 3 does not divide the batch of 8 samples"]),
        (
            Division("data", 2, 12, accumulation=4),
            ["4 micro-batches do not divide the 6 samples of a rank"],
        ),
        (
            Division("serial", 1, 2, accumulation=4),
            ["4 micro-batches do not divide the 2 samples of a rank"],
        ),
        (
            Division("filter", 2, 8, accumulation=2),
            ["filter parallelism has no accumulation of gradients"],
        ),
        (Division("data", 2, 12, accumulation=3), []),
    ],
)
def test_faults(division: Division, reasons: list[str]) -> None:
    assert division.faults == reasons


def test_a_rank_runs_one_accumulated_micro_batch_at_once() -> None:
    division = Division("data", 2, 24, accumulation=3)
    assert (division.local_batch, division.batch_per_rank) == (4, 12)
    assert division.words == "data, 3 accumulated"
