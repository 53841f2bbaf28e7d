"""Two runs beside each other: handmade rows whose medians and intervals are known."""

from __future__ import annotations

import math
import random
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from tests.helpers.rows import as_samples, rows_of
from tests.helpers.runs import LAYER, MESSAGES, around, cluster, directories, run, write_run

from calib.fitting.estimate import slowest_rank, together
from calib.fitting.merging.repeatability import Agreement, Pair, compare, compare_runs, untold_note
from calib.foundation.errors import FileError, InputError
from calib.foundation.records import Estimate
from calib.microbench.cases import Case
from calib.microbench.records.samples import Sample


def estimate(value: float, low: float, high: float) -> Estimate:
    return Estimate(value=value, low=low, high=high)


def pair(first: Estimate, second: Estimate, kind: str = "layer") -> Pair:
    return Pair("0" * 16, "forward", kind, "", first, second)


@pytest.mark.parametrize(
    ("first", "second", "agreements"),
    [
        (estimate(1.0, 0.9, 1.1), estimate(1.05, 0.95, 1.15), 2),
        (estimate(1.0, 0.9, 1.1), estimate(1.05, 1.04, 1.06), 1),
        (estimate(1.05, 1.04, 1.06), estimate(1.0, 0.9, 1.1), 1),
        (estimate(1.0, 0.9, 1.1), estimate(1.2, 1.05, 1.3), 0),  # the intervals meet: not enough
        (estimate(1.0, 0.9, 1.1), estimate(1.1, 1.0, 1.2), 2),  # the ends belong to them
    ],
)
def test_who_lies_in_whose_interval(first: Estimate, second: Estimate, agreements: int) -> None:
    assert pair(first, second).agreements == agreements


def test_single_times_neither_agree_nor_differ() -> None:
    """As two logs of one run each: nobody knows how far either would be off another time."""
    once, again = estimate(1.0, 1.0, 1.0), estimate(1.1, 1.1, 1.1)
    for one, two in ((once, again), (once, once)):
        assert pair(one, two).agreements is None
    assert pair(once, estimate(1.0, 0.9, 1.2)).agreements == 2
    assert pair(once, estimate(1.1, 1.05, 1.2)).agreements == 0
    nothing = estimate(0.0, 0.0, 0.0)
    assert pair(nothing, nothing).agreements == 2
    of = Agreement.of([pair(once, again)] * 3)
    assert (of.pairs, of.both, of.one, of.half_width) == (3, None, None, None)
    assert of.median_log_ratio == pytest.approx(math.log(1.1))
    known = pair(estimate(1.0, 0.9, 1.1), estimate(1.05, 0.95, 1.15))
    of = Agreement.of([pair(once, again), known])
    assert (of.both, of.one) == (1.0, 0.0) and of.half_width == pytest.approx(0.0976, abs=1e-3)
    assert untold_note([known]) == []
    [note] = untold_note([known, pair(once, again)])
    assert note.startswith("1 of 2 are single times on both sides")


def test_log_ratio() -> None:
    one, two, none = estimate(1.0, 1.0, 1.0), estimate(2.0, 2.0, 2.0), estimate(0.0, 0.0, 0.0)
    assert pair(one, two).log_ratio == pytest.approx(math.log(2))
    assert pair(two, one).log_ratio == pytest.approx(-math.log(2))
    assert pair(none, none).log_ratio == 0.0
    assert pair(none, one).log_ratio == pair(one, none).log_ratio == math.inf


def test_what_pairs_say_together() -> None:
    """Ratios e^0, e^0.1, ..., e^1 by hand; intervals of +-10% and +-20%."""
    firsts = [estimate(1.0, 0.9, 1.1)] * 11
    seconds = [math.exp(k / 10) for k in range(11)]
    pairs = [
        pair(one, estimate(v, 0.8 * v, 1.2 * v)) for one, v in zip(firsts, seconds, strict=True)
    ]
    found = Agreement.of(pairs)
    assert found.pairs == 11
    # 1 and 1.105 against 1 +- 0.1: only the first; 1 in v +- 20%: v up to 1.25
    assert (found.both, found.one) == (1 / 11, 2 / 11)
    assert found.median_log_ratio == pytest.approx(0.5)
    assert found.p90_log_ratio == pytest.approx(0.9)
    assert found.half_width == pytest.approx(0.15)
    backwards = Agreement.of([replace(p, first=p.second, second=p.first) for p in pairs])
    assert asdict(backwards) == pytest.approx(asdict(found)), "which is first does not matter"


def test_a_comparison_pairs_cases_and_sorts_the_worst_first() -> None:
    """Allreduces 1% apart agree, one of them is 50% slower; a layer agrees one way only."""
    one = [row for case in MESSAGES[:4] for row in around(case, "allreduce", 1.0)]
    two = [row for case in MESSAGES[1:5] for row in around(case, "allreduce", 1.01)]
    two = [row for row in two if row.case_id != MESSAGES[2].id]
    two += around(MESSAGES[2], "allreduce", 1.5)
    one += around(LAYER, "forward", 2.0) + around(LAYER, "backward", 3.0)
    two += rows_of(LAYER, "forward", [[2.06] * 2] * 8)
    found = compare(run(one), run(two), ["said before"])
    assert (found.only_first, found.only_second) == (2, 1)  # an allreduce and backward; one
    assert [(p.case_id, p.operation, p.agreements) for p in found.pairs] == [
        (MESSAGES[2].id, "allreduce", 0),
        (LAYER.id, "forward", 1),
        *sorted((MESSAGES[k].id, "allreduce", 2) for k in (1, 3)),
    ]
    assert found.pairs[0].log_ratio == pytest.approx(math.log(1.5))
    assert found.pairs[0].label == MESSAGES[2].label and found.pairs[1].label == LAYER.label
    assert list(found.kinds) == ["collective", "layer"]
    assert (found.kinds["collective"].both, found.kinds["collective"].pairs) == (2 / 3, 3)
    assert (found.kinds["layer"].both, found.kinds["layer"].one) == (0.0, 1.0)
    assert found.whole.both == 0.5 and found.whole.one == 0.25
    assert found.notes == ["said before"]


def test_the_estimates_are_those_of_the_parameters() -> None:
    """A collective by its slowest rank in each repetition, a layer by its slowest rank."""
    noise = np.random.default_rng(0)

    def noisy(case: Case, operation: str) -> list[Sample]:
        return [
            row
            for launch in range(3)
            for row in rows_of(
                case, operation, noise.lognormal(0, 0.1, (12, 2)).tolist(), launch=launch
            )
        ]

    sides = [noisy(MESSAGES[0], "allreduce") + noisy(LAYER, "forward") for _ in range(2)]
    found = {p.kind: p for p in compare(run(sides[0]), run(sides[1])).pairs}
    for kind, estimator in (("collective", together), ("layer", slowest_rank)):
        expected = [estimator(as_samples(side).where(kind=kind)) for side in sides]
        assert [found[kind].first, found[kind].second] == expected


def test_rows_that_feed_no_parameter_are_left_out() -> None:
    good = around(MESSAGES[0], "allreduce", 1.0)
    spoilt = [
        replace(good[0], warmup=True, seconds=100.0),
        replace(good[0], oversubscribed=True, seconds=100.0),
        replace(good[0], marks="throttled", seconds=100.0),
    ]
    found = compare(run(good), run(good + spoilt))
    assert found.pairs[0].first == found.pairs[0].second
    assert found.notes == ["2 rows of the second run were left out: oversubscribed or marked"]
    with pytest.raises(InputError, match=r"no case in common \(8 rows of the first run were left"):
        compare(run([replace(row, oversubscribed=True) for row in good]), run(good))


def test_order_of_rows_does_not_matter() -> None:
    one = [row for case in MESSAGES[:6] for row in around(case, "allreduce", 1.0)]
    two = [
        row for k, case in enumerate(MESSAGES[:6]) for row in around(case, "allreduce", 1 + k / 50)
    ]
    shuffled = random.Random(0).sample(two, len(two))
    assert compare(run(one), run(shuffled)) == compare(run(one), run(two))


@pytest.mark.parametrize(("launch_spread", "least"), [(0.0, 0.9), (0.03, 0.75)])
def test_runs_of_one_truth_agree(launch_spread: float, least: float) -> None:
    """30 seeded cases, 2 launches of 40 repetitions each, lognormal noise of 5% and launches that
    differ by 0% or 3%. Of two means with the same error one lies in the other's 95% interval in 83%:
    they are apart by sqrt(2) of it. Where launches are alike, intervals are wider than that error."""
    noise = np.random.default_rng(11)

    def measure() -> list[Sample]:
        found: list[Sample] = []
        for case in MESSAGES:
            for launch in range(2):
                level = math.exp(launch_spread * noise.standard_normal())
                times = [[level * float(t)] * 2 for t in noise.lognormal(0.0, 0.05, 40)]
                found += rows_of(case, "allreduce", times, launch=launch)
        return found

    assert compare(run(measure()), run(measure())).whole.both >= least


def test_run_directories(tmp_path: Path) -> None:
    one, two = around(MESSAGES[0], "allreduce", 1.0), around(MESSAGES[0], "allreduce", 1.02)
    first, second = directories(tmp_path, one, two)
    assert compare_runs(first, second) == compare(run(one), run(two))


def test_runs_of_different_clusters_are_compared_only_across(tmp_path: Path) -> None:
    one, two = around(MESSAGES[0], "allreduce", 1.0), around(MESSAGES[0], "allreduce", 1.02)
    first = write_run(tmp_path / "a", one)
    other = cluster("Linux 6.2")
    second = write_run(tmp_path / "b", two, other)
    with pytest.raises(InputError, match="different clusters"):
        compare_runs(first, second)
    found = compare_runs(first, second, across=True)
    assert found.whole.pairs == 1
    assert found.notes == [
        f"the runs are of different clusters: {cluster().fingerprint} and {other.fingerprint}"
    ]


def test_mistakes(tmp_path: Path) -> None:
    one, other = around(MESSAGES[0], "allreduce", 1.0), around(MESSAGES[1], "allreduce", 1.0)
    first, strange, copy = directories(tmp_path, one, other, one)
    with pytest.raises(InputError, match="the same samples"):
        compare_runs(first, copy)
    with pytest.raises(InputError, match="no case in common"):
        compare_runs(first, strange)
    with pytest.raises(FileError, match="does not exist"):
        compare_runs(first, tmp_path / "nowhere")
