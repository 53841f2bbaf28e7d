"""Parallax: the published table (../shared/data), the best number of partitions, the next to sample."""

from __future__ import annotations

import csv
import math

import numpy as np
import pytest
from scipy.optimize import lsq_linear
from scipy.stats import t as student
from tests.helpers.published import DATA, needs_data

from calib.fitting.estimators.partitions import PartitionsLaw, best, next_partitions
from calib.foundation.errors import InputError

TABLE = DATA / "papers_tables/parallax_table2_partitions.csv"


def table(model: str) -> tuple[np.ndarray, np.ndarray]:
    """Partitions and seconds of 100,000 words."""
    with TABLE.open() as stream:
        rows = [row for row in csv.DictReader(stream) if row["model"] == model]
    return (
        np.array([float(row["partitions_P"]) for row in rows]),
        np.array([1e5 / float(row["throughput_words_per_s"]) for row in rows]),
    )


@needs_data
@pytest.mark.parametrize("model", ["LM", "NMT"])
def test_the_published_table(model: str) -> None:
    """Independent: SciPy's bounded least squares. The condition number is that of formulas.md."""
    partitions, seconds = table(model)
    plain = np.column_stack([np.ones(len(partitions)), 1 / partitions, partitions])
    assert np.linalg.cond(plain) == pytest.approx(3.8e3, rel=0.02)
    design = plain / seconds[:, None]
    scale = design.max(axis=0)
    theta = lsq_linear(design / scale, np.ones(len(seconds)), (0, np.inf), "bvls", 1e-14).x / scale
    law = PartitionsLaw().fit(partitions, seconds)
    assert law.coefficients_ == pytest.approx(theta, rel=1e-9)
    assert law.best_partitions_ == pytest.approx(math.sqrt(theta[1] / theta[2]), rel=1e-9)
    assert law.best_low_ < law.best_partitions_ < law.best_high_
    error = np.mean(np.abs(plain @ theta / seconds - 1))
    assert law.error_ == pytest.approx(error) and error < 0.05
    # the fastest that the paper measured is not excluded: 128 and 64 partitions
    assert law.best_low_ <= partitions[seconds.argmin()] <= law.best_high_


@needs_data
@pytest.mark.parametrize("model", ["LM", "NMT"])
def test_a_flat_table_cannot_exclude_that_more_is_faster(model: str) -> None:
    """Independent: theta2 by plain least squares is within Student's t of 0, so the best P may be
    infinite (NMT varies by 3% from 16 partitions on; LM has p = 0.08 of 6 times and 3 numbers)."""
    partitions, seconds = table(model)
    design = np.column_stack([np.ones(len(partitions)), 1 / partitions, partitions])
    design /= seconds[:, None]
    theta, (squares,), _, _ = np.linalg.lstsq(design, np.ones(len(seconds)))
    error = np.sqrt(squares / 3 * np.linalg.inv(design.T @ design)[2, 2])
    assert theta[2] < student.ppf(0.975, 3) * error
    assert PartitionsLaw().fit(partitions, seconds).best_high_ == math.inf


def test_the_interval_of_the_best_covers() -> None:
    """Seeded, one time each of 8 numbers of partitions: 95% is said, within a third of the truth."""
    x, held, high = 2.0 ** np.arange(8), [], []
    for seed in range(100):
        noise = 0.02 * np.random.default_rng(seed).standard_normal(8)
        law = PartitionsLaw(seed=seed).fit(x, (0.2 + 1.0 / x + 0.001 * x) * (1 + noise))
        held.append(law.best_low_ <= math.sqrt(1000) <= law.best_high_)
        high.append(law.best_high_)
    assert 0.90 <= np.mean(held) <= 0.99
    assert np.median(high) < 4 / 3 * math.sqrt(1000)


def test_no_cost_of_a_partition_is_an_infinite_best() -> None:
    partitions = 2.0 ** np.arange(8)
    law = PartitionsLaw().fit(partitions, 1.0 + 4.0 / partitions)
    assert law.per_partition_s_ == pytest.approx(0.0, abs=1e-12)
    assert law.best_high_ == math.inf
    assert best(np.array([1.0, 4.0, 0.0])) == math.inf
    assert best(np.array([1.0, 0.0, 0.0])) == best(np.array([1.0, 0.0, 2.0])) == 1.0
    assert best(np.array([1.0, 1.0, 4.0])) == 1.0  # half a partition is one
    assert best(np.array([1.0, 36.0, 4.0])) == 3.0


def sampled(time: dict[int, float], start: int) -> list[int]:
    """What is timed, in order, when `time` gives the seconds."""
    seen: dict[int, float] = {}
    while (number := next_partitions(seen, start)) is not None:
        assert number not in seen
        seen[number] = time[number]
    return list(seen)


def convex(theta1: float, theta2: float) -> dict[int, float]:
    return {p: 1.0 + theta1 / p + theta2 * p for p in (2**i for i in range(12))}


def test_partitions_are_doubled_then_halved() -> None:
    """Section 3.2: best P = 32 from 8 machines: 16, 32, then 64 rises; back to 4, which rises."""
    assert sampled(convex(1024.0, 1.0), 8) == [8, 16, 32, 64, 4]
    assert sampled(convex(16.0, 1.0), 16) == [16, 32, 8, 4, 2]
    assert sampled(convex(1e-6, 1.0), 8) == [8, 16, 4, 2, 1], "one partition is the fewest"
    assert sampled(convex(1.0, 0.1), 1) == [1, 2, 4, 8]
    assert sampled(dict.fromkeys((2**i for i in range(12)), 1.0), 8) == [8, 16, 4], "flat: no rise"


def test_the_samples_hold_the_best_between_them() -> None:
    for theta1, theta2 in ((500.0, 0.3), (3.0, 3.0), (2000.0, 0.1)):
        time = convex(theta1, theta2)
        seen = sampled(time, 16)
        law = PartitionsLaw().fit([float(p) for p in seen], [time[p] for p in seen])
        truth = max(1.0, math.sqrt(theta1 / theta2))
        assert min(seen) <= truth <= max(seen)
        assert law.best_partitions_ == pytest.approx(truth, rel=1e-6)


@pytest.mark.parametrize("bad", [0.0, 0.5])
def test_partitions_below_one_are_refused(bad: float) -> None:
    with pytest.raises(InputError, match="1 or more"):
        PartitionsLaw().fit([bad, 2.0, 4.0], [1.0, 1.0, 1.0])
    with pytest.raises(InputError, match="1 is the fewest"):
        next_partitions({}, int(bad))
