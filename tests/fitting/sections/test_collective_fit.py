"""Collectives from rows: alpha and beta come back, their intervals cover, marks are heeded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from tests.helpers.rows import as_samples, rows_of

from calib.fitting.parameters.collectives import CollectiveFit
from calib.fitting.sections.collectives import collective_fits, left_out_errors
from calib.microbench.cases import CollectiveCase
from calib.microbench.records.samples import Sample

SIZES = [8 * 8**k for k in range(8)]
INTERCEPT, SLOPE = 20e-6, 1e-9
Noise = Callable[[np.random.Generator, int], np.ndarray]


def collective(nbytes: int, ranks: int = 2, operation: str = "allreduce") -> CollectiveCase:
    size = 2 if operation == "p2p" else ranks
    return CollectiveCase.model_validate(
        {"ranks": ranks, "operation": operation, "nbytes": nbytes, "group_size": size}
    )


def measured(
    noise: Noise | None = None,
    seed: int = 0,
    launches: int = 2,
    repetitions: int = 20,
    ranks: int = 2,
    operation: str = "allreduce",
) -> list[Sample]:
    """Rows of INTERCEPT + SLOPE m, times noise."""
    generator = np.random.default_rng(seed)
    rows = []
    for launch in range(launches):
        for nbytes in SIZES:
            factors = np.ones(repetitions) if noise is None else noise(generator, repetitions)
            times = (INTERCEPT + SLOPE * nbytes) * factors
            case = collective(nbytes, ranks, operation)
            rows += rows_of(case, operation, [[0.5 * t, t] for t in times], launch=launch)
    return rows


def only(rows: list[Sample], seed: int = 0) -> CollectiveFit:
    (fit,), notes = collective_fits(as_samples(rows), seed)
    assert notes == []
    return fit


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_noiseless_rows_give_the_truth(ranks: int) -> None:
    """formulas.md, structural: alpha = a / (2 (p-1)), beta = b / (2 (p-1) / p)."""
    fit = only(measured(ranks=ranks))
    assert (fit.operation, fit.library, fit.level, fit.ranks) == ("allreduce", "mpi", "node", ranks)
    for record, truth in (
        (fit.intercept_s, INTERCEPT),
        (fit.slope_s_per_byte, SLOPE),
        (fit.alpha_s, INTERCEPT / (2 * (ranks - 1))),
        (fit.beta_s_per_byte, SLOPE / (2 * (ranks - 1) / ranks)),
    ):
        assert record.value == pytest.approx(truth, rel=1e-9)
        # digits and caches leave 0.25% of any law
        assert (record.low, record.high) == pytest.approx((truth,) * 2, rel=0.01)
    assert fit.mean_relative_error == pytest.approx(0.0, abs=1e-9)
    assert fit.line_error_factor == pytest.approx(1.0, abs=1e-9)
    assert [point.nbytes for point in fit.points] == SIZES
    assert [point.n for point in fit.points] == [40] * len(SIZES)
    seconds = [INTERCEPT + SLOPE * m for m in SIZES]
    assert [point.seconds.value for point in fit.points] == pytest.approx(seconds)
    # a power law between neighbours, through what is a line; sizes grow eightfold
    t = np.log(seconds)
    off = np.abs((t[:-2] + t[2:]) / 2 - t[1:-1]).max()
    assert fit.interpolation_error_factor == pytest.approx(np.exp(off))
    assert fit.range_nbytes == (SIZES[0], SIZES[-1])


def test_p2p_in_a_larger_launch_is_a_message_between_two() -> None:
    fit = only(measured(ranks=4, operation="p2p"))
    assert fit.alpha_s.value == pytest.approx(INTERCEPT)
    assert fit.beta_s_per_byte.value == pytest.approx(SLOPE)


def test_errors_of_alpha_and_beta_by_hand() -> None:
    """Flat times but for one of nine sizes, twice as long: their line is off where it says it is."""
    rows = []
    sizes = [2**k for k in range(3, 12)]
    times = [1.0] * 4 + [2.0] + [1.0] * 4
    for nbytes, seconds in zip(sizes, times, strict=True):
        rows += rows_of(collective(nbytes), "allreduce", [[seconds] * 2] * 8)
    fit = only(rows)
    line = fit.intercept_s.value + fit.slope_s_per_byte.value * np.array(sizes)
    assert fit.mean_relative_error == pytest.approx(np.mean(np.abs(line / times - 1)))
    worst = np.exp(np.max(np.abs(np.log(line / times))))
    assert fit.line_error_factor == pytest.approx(worst) and worst > 1.5
    # neighbours of 1 s, interpolated through the 2 s: sqrt(2) off; the size itself: 2
    assert fit.interpolation_error_factor == pytest.approx(2.0)


def some_late(generator: np.random.Generator, n: int) -> np.ndarray:
    """2% multiplicative noise, and one repetition in twenty that is late (by 50% on average)."""
    late = np.where(generator.random(n) < 0.05, 1 + generator.exponential(0.5, n), 1.0)
    return np.asarray((1 + 0.02 * generator.standard_normal(n)) * late)


def all_late(generator: np.random.Generator, n: int) -> np.ndarray:
    """2% multiplicative noise, and every repetition late by 0 to 5%."""
    return np.asarray(
        (1 + 0.02 * generator.standard_normal(n)) * (1 + generator.uniform(0, 0.05, n))
    )


@pytest.mark.parametrize("noise", [some_late, all_late])
def test_intervals_cover_the_truth(noise: Noise) -> None:
    """50 seeds, at least 43 of them for alpha and for beta each (seen: see the printed line).

    The truth is that of the MEDIAN time, so it holds the median of the noise (1.00 and 1.025, from
    a million draws): no interval of medians can cover what every repetition is later than.
    """
    shift = float(np.median(noise(np.random.default_rng(12345), 1_000_000)))
    hits = np.zeros(2)
    for seed in range(50):
        fit = only(measured(noise, seed, repetitions=15), seed)
        for index, (record, truth) in enumerate(
            ((fit.alpha_s, shift * INTERCEPT / 2), (fit.beta_s_per_byte, shift * SLOPE))
        ):
            hits[index] += record.low <= truth <= record.high
    print(f"{noise.__name__}: alpha {2 * hits[0]:.0f}%, beta {2 * hits[1]:.0f}% covered")
    assert hits.min() >= 43
    assert only(measured(noise), 0).alpha_s.high / only(measured(noise), 0).alpha_s.low < 1.1


def test_units() -> None:
    """Times in ms give alpha and beta in ms."""
    rows = measured(some_late, 7)
    thousand = [replace(row, seconds=1e3 * row.seconds) for row in rows]
    one, other = only(rows), only(thousand)
    assert other.alpha_s.value == pytest.approx(1e3 * one.alpha_s.value)
    assert other.beta_s_per_byte.high == pytest.approx(1e3 * one.beta_s_per_byte.high)
    assert other.line_error_factor == pytest.approx(one.line_error_factor)


def test_operations_levels_and_sizes_of_launch_are_kept_apart() -> None:
    rows = measured() + measured(operation="p2p") + measured(ranks=4)
    rows += [replace(row, level="system") for row in measured(ranks=4)]
    fits, _ = collective_fits(as_samples(rows), 0)
    assert [(f.operation, f.level, f.ranks) for f in fits] == [
        ("allreduce", "node", 2),
        ("allreduce", "node", 4),
        ("allreduce", "system", 4),
        ("p2p", "node", 2),
    ]
    assert [f.points[0].n for f in fits] == [40] * 4


def test_one_size_is_no_line() -> None:
    rows = rows_of(collective(8), "allreduce", [[1.0, 1.0]] * 8)
    fits, notes = collective_fits(as_samples(rows), 0)
    assert fits == []
    assert notes == ["allreduce on 2 ranks has 1 size; a line needs two"]


def test_an_interrupted_launch_does_not_take_beta_to_zero() -> None:
    """The second launch was stopped after its first size: a quarter of the draws have no slope."""
    whole = measured(some_late, 1, launches=1)
    broken = [r for r in measured(some_late, 2) if r.launch == 1 and r.nbytes == SIZES[3]]
    fit = only(whole + broken)
    assert fit.beta_s_per_byte.low > 0.5 * fit.beta_s_per_byte.value


@pytest.mark.parametrize(
    "other",
    [
        {"groups": 2},
        {"cold": True},
        {"start": "window"},
        {"mode": "in_place"},
        {"mode": "graph_in_place"},
    ],
)
def test_other_questions_do_not_feed_alpha_and_beta(other: dict[str, Any]) -> None:
    """Rows of several groups, cold buffers, windows, in place: three times as slow, and left out."""
    plain = measured(some_late, 1)
    slow = [replace(row, seconds=3 * row.seconds, **other) for row in measured(some_late, 2)]
    assert only(plain + slow) == only(plain)
    assert collective_fits(as_samples(slow), 0) == ([], [])


def test_each_device_has_laws_of_its_own() -> None:
    """MPI on GPU buffers is another thing than on host buffers, and only one of them is at home."""
    host = measured(some_late, 1)
    card = [replace(row, seconds=3 * row.seconds, device="cuda") for row in host]
    fits, _ = collective_fits(as_samples(host + card), 0)
    assert [(fit.device, fit.at_home) for fit in fits] == [("cpu", True), ("cuda", False)]
    assert fits[0] == only(host) and fits[1] == only(card)
    assert fits[1].beta_s_per_byte.value == pytest.approx(3 * fits[0].beta_s_per_byte.value)


def test_data_types_are_no_repetitions_of_one_another() -> None:
    """float16 at two sizes, twice as slow: the type with the most sizes is fitted, and that is said."""
    half = [
        replace(row, dtype="float16", seconds=2 * row.seconds)
        for row in measured()
        if row.nbytes in SIZES[:2]
    ]
    fits, notes = collective_fits(as_samples(measured() + half), 0)
    assert fits[0] == only(measured())
    assert notes == ["allreduce on 2 ranks: of float16, float32 only float32 is fitted"]


def test_alpha_and_beta_are_of_the_ends_whatever_lies_between() -> None:
    """All sizes but the two first and the two last twice as slow."""
    between = SIZES[2:-2]
    rows = [replace(r, seconds=r.seconds * (2 if r.nbytes in between else 1)) for r in measured()]
    fit = only(rows)
    assert fit.alpha_s.value == pytest.approx(INTERCEPT / 2)
    assert fit.beta_s_per_byte.value == pytest.approx(SLOPE)
    assert fit.mean_relative_error == pytest.approx(0.5 * len(between) / len(SIZES))


def test_times_in_other_units_are_a_note() -> None:
    hours = [replace(row, seconds=row.seconds * 1e7) for row in measured()]
    fits, notes = collective_fits(as_samples(hours), 0)
    assert fits == []
    assert notes == [
        "allreduce on 2 ranks: its law is outside plausible bounds: alpha of 100 s is over "
        "10 s: other units?"
    ]


def test_two_sizes_with_one_number_each_are_sure_of_nothing() -> None:
    """Two points lie on a line whatever they are; 10% of noise on each is what is taken."""
    rows = [row for row in measured(launches=1, repetitions=1) if row.nbytes in SIZES[-2:]]
    fit = only(rows)
    assert fit.slope_s_per_byte.low < 0.95 * SLOPE and fit.slope_s_per_byte.high > 1.05 * SLOPE


def test_a_launch_without_some_sizes_still_says_how_launches_differ() -> None:
    """Three launches 0, 10 and 20% slow; the last lacks the largest size, which is no fact of speed."""
    rows = []
    for launch in range(3):
        for row in measured(some_late, launch, launches=1):
            if launch < 2 or row.nbytes != SIZES[-1]:
                slow = row.seconds * (1 + 0.1 * launch)
                rows.append(replace(row, launch=launch, seconds=slow))
    fit = only(rows)
    slope = fit.pieces[-1].slope_s_per_byte
    assert slope.low < SLOPE and slope.high > 1.2 * SLOPE


def test_every_layout_of_one_p_has_its_own_law() -> None:
    """p = 4 on two nodes of two, and on four nodes one each."""
    near = [replace(row, level="system", nodes=2, active_ranks=2) for row in measured(ranks=4)]
    far = [
        replace(row, level="system", nodes=4, active_ranks=1, stride=2, seconds=2 * row.seconds)
        for row in measured(ranks=4)
    ]
    fits, notes = collective_fits(as_samples(far + near), 0)
    assert fits == [only(near), only(far)] and notes == []
    assert [(fit.nodes, fit.ranks_per_node) for fit in fits] == [(2, 2), (4, 1)]
    assert [fit.placed for fit in fits] == ["p=4 on 2 nodes", "p=4 on 4 nodes"]
    assert fits[1].slope_s_per_byte.value == pytest.approx(2 * SLOPE)


def test_a_layout_is_fitted_from_the_ranks_that_are_nearest() -> None:
    """Four ranks of a node side by side, and every second one: of other sockets perhaps."""
    near = measured(ranks=4)
    far = [replace(row, stride=2, seconds=2 * row.seconds) for row in near]
    assert only(near + far) == only(near)
    assert only(far).slope_s_per_byte.value == pytest.approx(2 * SLOPE)


@pytest.mark.parametrize(
    ("ranks", "nodes", "active", "each", "words"),
    [
        (10, 2, 8, 8, "p=10 on 2 nodes of up to 8"),
        (10, 2, 5, 5, "p=10 on 2 nodes"),
        (10, 2, 40, 9, "p=10 on 2 nodes of up to 9"),
        (10, 10, 1, 1, "p=10 on 10 nodes"),
        (10, 3, 1, 4, "p=10 on 3 nodes"),
        (8, 1, 2, 8, "p=8"),
    ],
)
def test_ranks_on_a_node(ranks: int, nodes: int, active: int, each: int, words: str) -> None:
    """As many as worked there, within what so many ranks on so many nodes can be."""
    rows = [
        replace(row, level="system", nodes=nodes, active_ranks=active)
        for row in measured(ranks=ranks)
    ]
    assert (only(rows).ranks_per_node, only(rows).placed) == (each, words)


def test_graphs_grids_and_hierarchies_are_operations_of_their_own() -> None:
    changes: list[dict[str, Any]] = [
        {"operation": "halo", "key": "4"},
        {"operation": "halo", "key": "2x2"},
        {"operation": "hierarchical_allreduce", "key": "inner=2"},
        {"operation": "halo", "mode": "graph"},
    ]
    rows = [replace(row, **change) for change in changes for row in measured(ranks=4)]
    graph = {row.nbytes: row.seconds / 2 for row in measured(ranks=4)}
    rows = [replace(r, seconds=graph[r.nbytes]) if r.mode == "graph" else r for r in rows]
    fits, notes = collective_fits(as_samples(rows), 0)
    names = ["halo", "halo 2x2", "halo graph", "hierarchical_allreduce inner=2"]
    assert [fit.operation for fit in fits] == names and notes == []
    slopes = [fit.slope_s_per_byte.value for fit in fits]
    assert slopes == pytest.approx([SLOPE, SLOPE, SLOPE / 2, SLOPE])
    # AR(2, W) twice: 2 + 2 steps, 2/2 + 2/2 of the buffer
    assert fits[3].alpha_s.value == pytest.approx(INTERCEPT / 4)
    assert fits[3].beta_s_per_byte.value == pytest.approx(SLOPE / 2)


def test_only_a_proven_fall_is_a_fall() -> None:
    """A time that is 10% less at the next size: noise where the intervals meet, a protocol where not."""

    def with_drop(spread: float) -> list[Sample]:
        rows = []
        for row in measured(launches=2, repetitions=12):
            level = 20e-6 if row.nbytes <= SIZES[3] else 18e-6
            wobble = 1 + spread * ((row.repetition % 5) - 2)
            rows.append(replace(row, seconds=(level + SLOPE * row.nbytes * 1e-3) * wobble))
        return rows

    def falls(fit: CollectiveFit) -> bool:
        times = [fit.seconds(nbytes) for nbytes in SIZES[:6]]
        return any(b < 0.97 * a for a, b in pairwise(times))

    assert falls(only(with_drop(0.001)))
    assert not falls(only(with_drop(0.1)))


def test_measured_sizes_and_those_between_them() -> None:
    """Straight in log-log through the medians; beyond the largest by the slope there."""
    fit = only(measured())
    seconds = [INTERCEPT + SLOPE * m for m in SIZES]
    assert [fit.seconds(m) for m in SIZES] == pytest.approx(seconds)
    between = (SIZES[3] * SIZES[4]) ** 0.5
    assert fit.seconds(between) == pytest.approx((seconds[3] * seconds[4]) ** 0.5)
    assert fit.seconds(4 * SIZES[-1]) == pytest.approx(4 * seconds[-1])


def test_an_outlier_spoils_no_size_between() -> None:
    """It is named, and what lies around it goes from one neighbour to the other."""
    rows = [replace(r, seconds=r.seconds * (20 if r.nbytes == SIZES[4] else 1)) for r in measured()]
    fit, clean = only(rows), only(measured())
    assert fit.outliers_nbytes == [SIZES[4]]
    assert fit.points[4].seconds.value == pytest.approx(20 * clean.points[4].seconds.value)
    around = clean.points[3].seconds.value * clean.points[5].seconds.value
    assert fit.seconds(SIZES[4]) == pytest.approx(around**0.5)


def test_left_out_errors_are_those_of_the_inner_sizes() -> None:
    """Between 1 and 100 lies 10: sqrt(1 * 4) = 2 against 3; of fewer than six sizes no mean."""
    three = np.array([1.0, 10.0, 100.0]), np.array([1.0, 3.0, 4.0])
    assert left_out_errors(*three) == (None, pytest.approx(1.5))
    assert left_out_errors(three[0][:2], three[1][:2]) == (None, 2.0)
    sizes = 2.0 ** np.arange(6)
    mean, factor = left_out_errors(sizes, sizes * [1, 1, 1, 2, 1, 1])
    assert mean == pytest.approx((2**0.5 - 1 + 0.5 + 2**0.5 - 1) / 4)
    assert factor == pytest.approx(2.0)
