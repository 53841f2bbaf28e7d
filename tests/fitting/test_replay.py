"""Replays of published logs: NCCL allreduce on A100 from VIA-Research/vTrain (../shared/data)."""

from __future__ import annotations

import csv

import numpy as np
import pytest
from tests.helpers.published import DATA, needs_data

from calib.fitting.parameters.algorithms import steps_and_volume
from calib.fitting.regression import hockney_line

pytestmark = needs_data
VTRAIN = DATA / "vtrain"


def published(ranks: int) -> tuple[list[int], list[float], list[float]]:
    """Bytes, seconds and bus bandwidth (1e9 B/s) of the out-of-place columns; times are in ns."""
    with (VTRAIN / f"a100_allreduce_{ranks}gpu.csv").open() as stream:
        header, *rows = csv.reader(stream)
    assert header[0] == "size(B)" and header[3:5] == ["time(ns)", "busbw(GB/s)"]
    return (
        [int(row[0]) for row in rows],
        [1e-9 * float(row[3]) for row in rows],
        [float(row[4]) for row in rows],
    )


@pytest.mark.parametrize("ranks", [2, 4])
def test_volume_is_that_of_the_bus_bandwidth(ranks: int) -> None:
    """nccl-tests: busbw = 2 (n-1)/n m / t, the volume of formulas.md; so the units are read right."""
    sizes, seconds, bandwidth = published(ranks)
    _, volume = steps_and_volume("allreduce", ranks)
    found = volume * np.array(sizes) / np.array(seconds) / 1e9
    assert found == pytest.approx(bandwidth, rel=1e-3)


@pytest.mark.parametrize(
    ("ranks", "alpha_s", "beta_s_per_byte", "error"),
    [(2, 23e-6, 5.18e-12, 0.016), (4, 9e-6, 4.58e-12, 0.017)],
)
def test_alpha_and_beta(ranks: int, alpha_s: float, beta_s_per_byte: float, error: float) -> None:
    """Golden: shared/data/DATA.md, "What to expect", a plain relative-weighted least squares.

    Its alpha and beta are of ONE message: intercept / steps and slope / volume. (For p = 2 the
    volume is 1, so its beta is the slope too; the intercept is 46 us, twice its alpha.)
    """
    sizes, seconds, _ = published(ranks)
    assert len(sizes) == 1024 and sizes[0] == 2**20 and sizes[-1] == 2**30
    intercept, slope = hockney_line(sizes, seconds)
    steps, volume = steps_and_volume("allreduce", ranks)
    assert intercept / steps == pytest.approx(alpha_s, rel=0.05)
    assert slope / volume == pytest.approx(beta_s_per_byte, rel=0.05)
    relative = np.mean(np.abs((intercept + slope * np.array(sizes)) / np.array(seconds) - 1))
    assert relative == pytest.approx(error, abs=0.0005)
