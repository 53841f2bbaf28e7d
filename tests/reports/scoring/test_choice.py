"""reports.choice: whether the right strategy is picked, by hand; Kendall's tau against SciPy's."""

from __future__ import annotations

from math import isnan
from random import Random

import pytest
from scipy.stats import kendalltau
from tests.reports.records import point, projection, run

from calib.reports.scoring.accuracy import Accuracy
from calib.reports.scoring.choice import StrategyChoice, choices, kendall_tau
from calib.reports.scoring.pairing import pair


def only(points: list[Accuracy]) -> StrategyChoice:
    of = choices(points)
    assert of is not None and len(of.choices) == 1
    return of.choices[0]


def names(choice: StrategyChoice) -> list[str]:
    return [option.strategy for option in choice.options]


def test_a_group_by_hand() -> None:
    """Measured: data 1.0, filter 1.25, channel 2.0. Predicted: filter 0.9, data 1.0, channel 3.0."""
    of = only(
        [
            point(3.0, 2.0, strategy="channel", p=4),
            point(1.0, 1.0, strategy="data", p=4),
            point(0.9, 1.25, strategy="filter", p=4),
        ]
    )
    assert (of.model, of.p, of.batch) == ("vgg16_mini", 4, 32)
    assert names(of) == ["data", "filter", "channel"]
    assert of.options[of.picked].strategy == "filter"
    assert not of.right and not of.tied
    assert of.regret == pytest.approx(0.25)
    # of three pairs two are in order: (2 - 1) / 3
    assert of.tau == pytest.approx(1 / 3)


def test_over_groups() -> None:
    """One right, one 2% off, one 50% off."""
    points = []
    for p, (data, filtered) in {2: (1.0, 2.0), 4: (1.02, 1.0), 8: (1.5, 1.0)}.items():
        points += [point(0.5, data, p=p), point(0.6, filtered, strategy="filter", p=p)]
    of = choices(points)
    assert of is not None
    assert [choice.right for choice in of.choices] == [True, False, False]
    assert (len(of.choices), of.right, of.tied, of.near) == (3, 1, 0, 2)
    assert of.worst_regret == pytest.approx(0.5)
    assert of.mean_tau is None  # of two strategies there is no rank correlation


def test_noise_may_not_tell_the_two_apart() -> None:
    """Medians 1.05 and 1.00; of eight values the 95% interval is [1st, 8th]."""
    slow = [1.05, 0.99, 1.06, 1.07, 1.04, 1.05, 1.08, 1.05]
    fast = [1.00, 1.02, 0.98, 1.01, 1.00, 1.00, 0.99, 1.00]
    points = [
        pair(projection(0.8, p=4), run(slow, p=4)),
        pair(projection(0.9, p=4, strategy="filter"), run(fast, p=4, strategy="filter")),
    ]
    of = choices(points)
    assert of is not None
    assert of.choices[0].tied and not of.choices[0].right
    assert (of.right, of.tied, of.near) == (0, 1, 0)
    far = pair(projection(0.9, p=4, strategy="filter"), run([0.9] * 8, p=4, strategy="filter"))
    assert not only([points[0], far]).tied


def test_the_pick_of_two_that_are_predicted_alike_is_the_slower_one() -> None:
    for order in (1, -1):
        points = [point(1.0, 1.0, strategy="filter", p=2), point(1.0, 1.5, strategy="channel", p=2)]
        of = only(points[::order])
        assert of.options[of.picked].strategy == "channel"
        assert of.regret == pytest.approx(0.5)


@pytest.mark.parametrize(
    "other",
    [
        {"model": "resnet50_mini"},
        {"p": 2},
        {"batch_per_rank": 16},
        {"optimizer": "adam"},
        {"library": "torch"},
        {"environment": {"ranks": 2, "threads": 2, "cores": 2}},
        {"cluster_fingerprint": "another"},
        {"oversubscribed": True},
    ],
)
def test_only_the_same_training_is_a_choice(other: dict[str, object]) -> None:
    first, case = point(1.0, 1.0, p=4), {"strategy": "filter", "p": 4}
    assert choices([first, point(1.0, 1.1, **(case | other))]) is None
    assert choices([first, point(1.0, 1.1, **case)]) is not None


def test_the_same_global_batch_is_the_same_training() -> None:
    """Filter runs whole samples on its group: B / p may be less than one."""
    points = [
        point(1.0, 1.0, p=4, batch_per_rank=0.25, strategy="filter"),
        point(1.2, 1.1, p=4, batch_per_rank=0.25, strategy="channel"),
    ]
    assert only(points).batch == 1


def test_one_rank_and_one_strategy_are_no_choice() -> None:
    assert choices([]) is None
    assert choices([point(1.0, 1.0, strategy=s, p=1) for s in ("serial", "data")]) is None
    assert choices([point(1.0, 1.0), point(1.0, 1.1)]) is None


def test_layouts_are_different_options() -> None:
    points = [
        pair(
            projection(predicted, p=4, strategy="data+filter", inner=inner),
            run([measured] * 8, p=4, strategy="data+filter", inner=inner),
        )
        for inner, predicted, measured in ((2, 1.0, 1.0), (4, 1.1, 0.8))
    ]
    of = only(points)
    assert [option.layout for option in of.options] == ["", "2 groups of 2"]
    assert of.regret == pytest.approx(0.25)


def test_runs_of_many_nights_are_one_option() -> None:
    """Of ten, the 95% interval of the median is [2nd, 9th]; of five, it is what any of them says."""
    times = [1.00, 1.04, 0.96, 1.02, 0.98, 1.01, 0.99, 3.0, 0.5, 1.03]
    nights = [point(1.0, t, p=4, started=f"2026-11-{k:02d}") for k, t in enumerate(times, 1)]
    other = [point(2.0, 2.0, p=4, strategy="filter")] * 2
    data, filtered = only([*nights, *other]).options
    assert (data.runs, filtered.runs) == (10, 2)
    assert data.measured.value == pytest.approx(1.005)
    assert (data.measured.low, data.measured.high) == pytest.approx((0.96, 1.04))
    few = only([*nights[:5], *other]).options[0]
    assert few.measured.value == pytest.approx(1.00)
    assert (few.measured.low, few.measured.high) == pytest.approx((0.96, 1.04))


def test_tau_is_scipys() -> None:
    random = Random(7)
    for _ in range(60):
        n = random.randint(2, 7)
        first, second = ([float(random.randint(0, 4)) for _ in range(n)] for _ in range(2))
        ours, theirs = kendall_tau(first, second), kendalltau(first, second).statistic
        if isnan(theirs):
            assert ours is None
        else:
            assert ours == pytest.approx(theirs)
