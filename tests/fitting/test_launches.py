"""How launches differ: closed forms, and how often intervals hold in seeded simulations."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from scipy.special import polygamma
from scipy.stats import norm
from scipy.stats import t as student
from tests.helpers.rows import as_samples, sample

from calib.fitting.estimate import estimated, slowest_rank, together
from calib.fitting.launches import (
    ALONE,
    FEWEST,
    NO_OTHERS,
    Kind,
    Launch,
    Launches,
    Spread,
    centers,
    factor_of,
    factors_of_one,
    inverse_trigamma,
    launch_factors,
    log_median,
)
from calib.foundation.arrays import Floats
from calib.microbench.records.samples import Sample

Case = Mapping[int, Launch]


def cases_of(y: Floats, variance: float = math.nan) -> list[Case]:
    """Log medians y [n, l], NaN where a launch is missing, each with this variance."""
    return [
        {launch: Launch(at, variance) for launch, at in enumerate(row) if not math.isnan(at)}
        for row in y.tolist()
    ]


def drawn(
    dice: np.random.Generator, launches: int, own: float, common: float, cases: int = 40
) -> Floats:
    """Log medians [n, l] of cases whose truth is 0."""
    together = common * dice.standard_normal(launches)
    found: Floats = together + own * dice.standard_normal((cases, launches))
    return found


def shares(of: Sequence[tuple[Spread, list[Case]]]) -> tuple[float, float]:
    """(share of the intervals that hold 0, mean half-width)."""
    centered = [spread.center(case) for spread, cases in of for case in cases]
    held = [abs(center.log_median) <= center.margin for center in centered]
    return float(np.mean(held)), float(np.mean([center.margin for center in centered]))


def test_two_launches_alone_have_student_t() -> None:
    """t of one degree of freedom, 12.706, times half of what they are apart: Lord's 6.353 ranges."""
    two = {0: Launch(0.0, math.nan), 5: Launch(0.02, math.nan)}
    found = ALONE.center(two)
    assert found.log_median == pytest.approx(0.01)
    assert (found.own, found.common) == (pytest.approx(6.353 * 0.02, rel=1e-4), 0.0)


def test_launches_alone_are_never_surer_than_their_repetitions() -> None:
    alike = {launch: Launch(0.0, 0.03**2) for launch in range(4)}
    expected = student.ppf(0.975, 3) * 0.03 / 2
    assert ALONE.center(alike).own == pytest.approx(expected)


def test_one_launch_alone_says_nothing_of_how_launches_differ() -> None:
    assert ALONE.center({3: Launch(1.5, 0.1)}) == (1.5, 0.0, 0.0)


def test_log_median_has_the_variance_of_the_order_statistics() -> None:
    """Six values: the median lies between the first and the last but for 2 of 64 cases, 2.15 sigma."""
    values = [math.exp(v) for v in (0.3, 0.0, 0.5, 0.1, 0.2, 0.4)]
    found = log_median(values)
    assert found.log_median == pytest.approx(math.log(0.5 * (math.exp(0.2) + math.exp(0.3))))
    assert found.variance == pytest.approx((0.25 / norm.ppf(1 - 1 / 64)) ** 2)
    assert math.isnan(log_median([2.0]).variance)
    slow = [1.0] * 5 + [2.0] * 5  # one drift: as good as one value
    assert log_median(slow).variance > 3 * log_median(slow[::5] * 5).variance


@pytest.mark.parametrize("x", [0.02, 0.7, 3.0, 400.0])
def test_inverse_trigamma(x: float) -> None:
    assert inverse_trigamma(float(polygamma(1, x))) == pytest.approx(x, rel=1e-6)
    assert inverse_trigamma(0.0) == inverse_trigamma(-1.0) == math.inf


def test_centers_are_means_but_for_wild_launches() -> None:
    """A launch 50 deviations off pulls as one that is 2.5 off would: Huber's equation holds."""
    y = np.array([[0.0, 0.01, -0.01, 0.02, 0.03], [0.0, 0.01, -0.01, 0.02, 0.5]])
    center, variance = centers(y, np.full(2, 0.01**2))
    assert center[0] == pytest.approx(0.01)
    assert variance[0] == pytest.approx(np.var(y[0], ddof=1))
    pulled = np.clip(y[1] - center[1], -0.025, 0.025)
    assert pulled.sum() == pytest.approx(0.0, abs=1e-6)
    expected = np.sum(pulled**2) / 4 / (4 / 5) ** 2
    assert variance[1] == pytest.approx(expected, rel=1e-3)


def test_the_spread_is_found_again() -> None:
    """Own deviations of 8% with d0 = 8, launches 5% apart: of 400 cases in 8 launches."""
    dice = np.random.default_rng(3)
    own = 0.08 * np.sqrt(8 / dice.chisquare(8, 400))
    effects = 0.05 * dice.standard_normal(8)
    y = effects + own[:, None] * dice.standard_normal((400, 8))
    found = Spread.fitted(cases_of(y))
    assert math.sqrt(found.own) == pytest.approx(0.08, rel=0.05)
    assert 5 < found.freedom < 13
    assert math.sqrt(found.common) == pytest.approx(effects.std(ddof=1), rel=0.05)
    np.testing.assert_allclose(list(found.effects.values()), effects - effects.mean(), atol=0.015)


def test_own_variances_rise_with_those_of_repetitions() -> None:
    """Launches that do not differ: all there is comes of the repetitions, 0.2% to 20% of a case."""
    dice = np.random.default_rng(4)
    error = np.exp(dice.uniform(math.log(0.002), math.log(0.2), 300))
    y = error[:, None] * dice.standard_normal((300, 3))
    cases = [
        {launch: Launch(at, e**2) for launch, at in enumerate(row)}
        for row, e in zip(y.tolist(), error.tolist(), strict=True)
    ]
    spread = Spread.fitted(cases)
    plain = Spread.fitted(cases_of(y))
    assert spread.freedom > 10 * plain.freedom
    half = [spread.center(case).margin / e for case, e in zip(cases, error.tolist(), strict=True)]
    assert np.median(half) == pytest.approx(1.96 / math.sqrt(3), rel=0.25)


def test_few_cases_say_what_each_says_alone() -> None:
    y = np.random.default_rng(0).normal(0.0, 0.1, (FEWEST - 1, 4))
    assert Spread.fitted(cases_of(y)) == ALONE
    assert Spread.fitted([{0: Launch(0.0, 0.1)}] * 50) == ALONE, "one launch each"


def test_a_case_of_one_launch_has_the_interval_of_its_kind() -> None:
    dice = np.random.default_rng(6)
    spread = Spread.fitted(cases_of(drawn(dice, 4, 0.1, 0.05)))
    center = spread.center({2: Launch(0.0, math.nan)})
    assert center.log_median == pytest.approx(0.0)
    assert center.own == pytest.approx(1.98 * 0.1, rel=0.15)
    assert center.common == pytest.approx(student.ppf(0.975, 3) * math.sqrt(spread.common))


@pytest.mark.parametrize("launches", [2, 3, 6])
@pytest.mark.parametrize(("own", "common"), [(0.1, 0.0), (0.1, 0.1), (0.02, 0.1)])
def test_intervals_hold(launches: int, own: float, common: float) -> None:
    """60 seeded runs of 40 cases: 93 to 99%, and the cases of a run have one launch effect in common."""
    dice = np.random.default_rng([launches, int(1000 * own), int(1000 * common)])
    runs = []
    for _ in range(60):
        cases = cases_of(drawn(dice, launches, own, common))
        runs.append((Spread.fitted(cases), cases))
    held, _ = shares(runs)
    assert (0.9 if common else 0.93) <= held <= 0.995


def test_the_other_cases_make_intervals_narrower() -> None:
    """Two launches that differ by 10% in each case by itself: a fifth of the width, and they hold."""
    dice = np.random.default_rng(8)
    runs = []
    for _ in range(30):
        cases = cases_of(drawn(dice, 2, 0.1, 0.0))
        runs.append((Spread.fitted(cases), cases))
    held, width = shares(runs)
    _, alone = shares([(ALONE, cases) for _, cases in runs])
    assert held >= 0.95 and width < alone / 3


def test_skewed_launches_and_wild_ones_are_held() -> None:
    """Lognormal medians of 40%, of which one in fifty took five times as long: 93% or more."""
    dice = np.random.default_rng(9)
    runs = []
    for _ in range(30):
        y = drawn(dice, 6, 0.1, 0.03)
        y[dice.random(y.shape) < 0.02] += math.log(5.0)
        cases = cases_of(y)
        runs.append((Spread.fitted(cases), cases))
    held, width = shares(runs)
    assert held >= 0.93 and width < 0.15


def test_missing_launches_are_no_bias() -> None:
    """A case that lacks the slowest launch has its own mean, and the variance of the others."""
    dice = np.random.default_rng(10)
    y = drawn(dice, 6, 0.02, 0.1)
    y[dice.random(y.shape) < 0.2] = np.nan
    cases = [case for case in cases_of(y) if case]
    spread = Spread.fitted(cases)
    assert math.sqrt(spread.own) == pytest.approx(0.02, rel=0.15)
    for case in cases:
        mean = np.mean([launch.log_median for launch in case.values()])
        assert spread.center(case).log_median == pytest.approx(mean, abs=0.02)


def factor_of_models(*models: Sequence[tuple[float, float]], ranks: int = 1) -> dict[int, float]:
    """Of models whose forward and backward pass take so long in each launch, in s."""
    rows = []
    for number, passes in enumerate(models):
        for operation, at in zip(("forward", "backward"), zip(*passes, strict=True), strict=True):
            about = {"kind": "in_place", "library": "torch", "ranks": ranks, "key": operation}
            rows += launched(number, at, operation=operation, **about)
    samples = as_samples(rows)
    return launch_factors(samples, Launches.of(samples))


def test_launches_of_one_model_differ_as_its_passes_do_together() -> None:
    """Student's t of the logarithms of 3, 4 and 5 s: a pass more and another less cancel out."""
    of = np.std(np.log([3.0, 4.0, 5.0]), ddof=1) * student.ppf(0.975, 2)
    found = factor_of_models([(1.0, 2.0), (3.0, 1.0), (1.0, 4.0)])
    assert found == {1: pytest.approx(factor_of(of))}
    assert factor_of_models([(1.0, 2.0), (2.0, 1.0), (1.5, 1.5)], ranks=4) == {}
    assert factor_of_models([(1.0, 2.0)]) == {}, "one launch does not differ"


@pytest.mark.parametrize(("own", "common"), [(0.05, 0.0), (0.02, 0.04)])
def test_another_launch_is_within_the_factor(own: float, common: float) -> None:
    """Three models in three launches, and a fourth launch of each, about what they all take."""
    dice = np.random.default_rng(3)
    held = list[float]()
    for _ in range(60):
        y = drawn(dice, 4, own, common, 3)
        passes = [[(x, 2.0 * x) for x in np.exp(of[:3])] for of in y]
        held += (np.abs(y[:, 3]) < math.log(factor_of_models(*passes)[1])).tolist()
    assert 0.9 < np.mean(held) <= 1.0


def test_few_launches_borrow_from_those_of_others() -> None:
    """Two launches of a kind beside six of another: within twice the noise, and a third is covered."""
    dice = np.random.default_rng(5)
    held, factors = list[bool](), list[float]()
    for _ in range(100):
        many, few = (cases_of(drawn(dice, n, 0.01, 0.1, 5), 1e-6) for n in (6, 3))
        seen = [{number: case[number] for number in (0, 1)} for case in few]
        found = factors_of_one({"many": many, "few": seen})
        factors.append(found["few"])
        for case, two in zip(few, seen, strict=True):
            center = sum(launch.log_median for launch in two.values()) / 2
            held.append(abs(case[2].log_median - center) < math.log(found["few"]))
    # about the mean of two launches a third differs by sqrt(1.5) of what one does
    assert np.mean(held) >= 0.85
    assert np.median(factors) < math.exp(4 * 0.1)
    alone = factors_of_one({"few": seen})
    assert alone["few"] != found["few"], "the others are heard"


def test_without_models_in_place_launches_differ_as_those_of_layers_do() -> None:
    dice = np.random.default_rng(4)
    y = np.exp(drawn(dice, 3, 0.01, 0.1, 9))
    rows = [
        row for k, at in enumerate(y) for row in launched(k, at.tolist(), kind="layer", ranks=1)
    ]
    among = Launches.of(as_samples(rows))
    (spread,) = among.kinds.values()
    expected = factor_of(student.ppf(0.975, 2) * math.sqrt(spread.common))
    assert expected > 1.05
    assert launch_factors(as_samples(rows), among) == {1: pytest.approx(expected)}
    assert launch_factors(as_samples(launched(0, [1.0, 2.0])), NO_OTHERS) == {}, "a collective"


def launched(case: int, at: Sequence[float], **fields: object) -> list[Sample]:
    """Six repetitions in each launch, of 1% around `at` seconds."""
    return [
        sample(
            case_id=str(case),
            launch=launch,
            repetition=k,
            seconds=seconds * (0.99 + 0.004 * k),
            rank_seconds=[seconds * (0.99 + 0.004 * k)] * 2,
            **fields,
        )
        for launch, seconds in enumerate(at)
        for k in range(6)
    ]


def test_kinds_are_told_apart_and_estimates_use_their_own() -> None:
    dice = np.random.default_rng(12)
    network = np.exp(drawn(dice, 3, 0.2, 0.0, 12))
    layers = np.exp(drawn(dice, 3, 0.01, 0.0, 12))
    rows = [row for k, at in enumerate(network) for row in launched(k, at.tolist())]
    for k, at in enumerate(layers):
        rows += launched(100 + k, at.tolist(), kind="layer", library="torch", operation="forward")
    samples = as_samples(rows)
    among = Launches.of(samples)
    assert [key[0] for key in among.kinds] == ["collective", "layer"]
    one, layer = samples.where(case_id="0"), samples.where(case_id="100")
    spread = among.like(one)
    center = spread.center({n: log_median([r.seconds for r in of]) for n, of in by_launch(rows)})
    found = together(one, among)
    assert found.high / found.value == pytest.approx(factor_of(center.margin))
    assert found != together(one) == together(one, NO_OTHERS)
    assert slowest_rank(layer, among).half_width < 0.1 * found.half_width
    assert estimated(one, one["seconds"], among) == found


def test_launches_of_other_numbers_of_ranks_tell_nothing() -> None:
    """One rank with two threads comes in two kinds of minutes, two ranks with one do not."""
    one, two = (Spread(common=common**2, cases=5) for common in (0.2, 0.1))
    samples = as_samples(launched(0, [1.0], kind="in_place", library="torch", ranks=2))
    mine = Kind.of(*(getattr(samples.first, name) for name in Kind._fields))
    among = Launches({mine: two, mine._replace(ranks=1, active_ranks=1): one})
    assert among.like(samples) == two
    assert Launches({mine._replace(ranks=1): one}).like(samples) == ALONE


def by_launch(rows: Sequence[Sample]) -> list[tuple[int, list[Sample]]]:
    """The rows of case 0."""
    return [(n, [r for r in rows if r.case_id == "0" and r.launch == n]) for n in range(3)]


def test_repetitions_of_0_s_are_below_the_clock() -> None:
    """They say how far the median may be off by the other side alone."""
    values = [0.0, 0.0, 0.0, 2e-6, 2e-6, 3e-6, 3e-6, 4e-6, 4e-6, 4e-6]
    found = log_median(values)
    assert found.log_median == pytest.approx(math.log(2.5e-6))
    assert 0 < found.variance < math.inf
    doubled = log_median([2 * value for value in values])
    assert doubled.variance == pytest.approx(found.variance)
