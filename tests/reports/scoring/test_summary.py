"""reports.summary: means, the worst point, coverage and the noise ceiling, by hand."""

from __future__ import annotations

import json

import pytest
from tests.reports.records import at_speed, peak, point, projection, run

from calib.reports.scoring.accuracy import Accuracy
from calib.reports.scoring.pairing import pair
from calib.reports.scoring.summary import noise_ceiling, summary


def test_means_by_hand() -> None:
    points = [
        point(0.9, 1.0, strategy="serial", p=1),  # 0.90, interval [0.81, 0.99]: not covered
        point(0.7, 1.0, model="resnet50_mini"),  # 0.70
        point(0.95, 1.0),  # 0.95, [0.855, 1.045]: covered
        point(1.6, 1.0, model="cosmoflow_mini"),  # 0.40
        point(5.0, 1.0, model="resnet50_mini", oversubscribed=True),  # counts in nothing
    ]
    of = summary(points)
    assert of.points == 4 and of.oversubscribed == 1
    data = (0.70 + 0.95 + 0.40) / 3
    assert of.strategy_means == pytest.approx({"serial": 0.90, "data": data})
    assert of.mean_of_strategy_means == pytest.approx((0.90 + data) / 2)
    assert of.mean_over_points == pytest.approx((0.90 + 0.70 + 0.95 + 0.40) / 4)
    assert of.worst is not None
    assert of.worst.model == "cosmoflow_mini"
    assert of.worst.accuracy == pytest.approx(0.40)
    assert of.coverage == of.coverage_90 == pytest.approx(1 / 4)
    # [0.81, 0.99], [0.63, 0.77], [1.44, 1.76] do not have the measured 1 in them
    assert of.overlap == pytest.approx(1 / 4)
    assert of.strategy_points == {"serial": 1, "data": 3}
    assert of.noise_ceiling is None
    json.dumps(of.model_dump())


@pytest.mark.parametrize(
    ("off", "in_95", "in_90"),
    [(0.0, 1, 1), (0.083, 1, 1), (0.085, 1, 0), (0.099, 1, 0), (0.11, 0, 0)],
)
def test_the_narrower_interval(off: float, in_95: int, in_90: int) -> None:
    """A 95% interval of +-10%: of normal errors the 90% one is +-10% x 1.6449 / 1.9600 = 8.39%."""
    below, above = summary([point(1.0, 1.0 + off)]), summary([point(1.0, 1.0 - off)])
    assert (below.coverage, above.coverage) == (in_95, in_95)
    assert (below.coverage_90, above.coverage_90) == (in_90, in_90)


def test_nothing_to_summarize() -> None:
    for points in ([], [point(1.0, 1.0, oversubscribed=True)], [point(1.0, 0.0)]):
        of = summary(points)
        assert of.points == 0
        means = (of.mean_of_strategy_means, of.mean_over_points, of.coverage)
        assert (*means, of.worst, of.noise_ceiling) == (None,) * 5


def test_data_on_one_rank_is_the_serial_work() -> None:
    serial = point(1.0, 1.0, strategy="serial", p=1)
    data = point(1.0, 1.25, strategy="data", p=1)
    of = noise_ceiling([serial, data, point(1.0, 9.0)])
    assert of is not None
    # 1.0 for 1.25: 0.8; 1.25 for 1.0: 0.75
    assert of.pairs == 1
    assert of.mean == pytest.approx((0.8 + 0.75) / 2)
    assert of.worst == pytest.approx(0.75)


@pytest.mark.parametrize(
    "other",
    [
        {"model": "resnet50_mini"},
        {"batch_per_rank": 16},
        {"p": 4},
        {"strategy": "filter"},
        {"optimizer": "adam"},
        {"library": "torch"},
        {"cluster_fingerprint": "another"},
        {"oversubscribed": True},
    ],
)
def test_other_work_says_nothing_about_noise(other: dict[str, object]) -> None:
    assert noise_ceiling([point(1.0, 1.0), point(1.0, 1.1, **other)]) is None
    assert noise_ceiling([point(1.0, 1.0), point(1.0, 1.1)]) is not None


def test_a_pair_is_a_run_and_the_next_one() -> None:
    """1.0, 1.1, 1.2 night after night, given in another order: never 1.0 against 1.2."""
    nights = {1: 1.0, 2: 1.1, 3: 1.2}
    runs = [point(1.0, nights[k], started=f"2026-11-0{k}T03:00:00Z") for k in (2, 3, 1)]
    of = noise_ceiling([*runs, point(1.0, 9.0, p=4)])
    assert of is not None
    scores = [1 - 0.1 / 1.0, 1 - 0.1 / 1.1, 1 - 0.1 / 1.1, 1 - 0.1 / 1.2]
    assert of.pairs == 2
    assert of.mean == pytest.approx(sum(scores) / 4)
    assert of.worst == pytest.approx(0.9)


def test_launches_of_one_training_are_pairs() -> None:
    one = point(1.0, 1.0)
    of = noise_ceiling([one.model_copy(update={"launch_s": [1.0, 1.25, 1.0]})])
    assert of is not None and of.pairs == 2
    assert of.mean == pytest.approx((0.75 + 0.8) / 2) and of.worst == pytest.approx(0.75)


def test_phases_by_hand() -> None:
    """Measured: 0.6 forward, 0.4 exchange (tests/reports/records.py); of two points."""
    first = pair(projection(1.0, shares={"forward": 0.9, "exchange": 0.3}), run([1.0] * 8))
    second = pair(projection(1.0, shares={"forward": 0.6, "pack": 0.1}), run([1.0] * 8))
    left_out = point(5.0, 1.0, oversubscribed=True)
    # pack was predicted and not measured: it has no accuracy
    assert summary([first, second, left_out]).phase_means == pytest.approx(
        {"forward": (0.5 + 1.0) / 2, "exchange": (0.75 + 0.0) / 2}
    )


def with_memory(predicted: float, measured: int, **case: object) -> Accuracy:
    return point(1.0, 1.0, **case).model_copy(update={"memory": peak(predicted, measured)})


def test_memory_by_hand() -> None:
    points = [
        with_memory(95.0, 100),
        with_memory(50.0, 100, strategy="filter", p=4, oversubscribed=True),
        with_memory(92.0, 100),
        point(1.0, 1.0),
    ]
    of = summary(points).memory
    assert of is not None
    assert of.points == 3  # the peak of a rank does not depend on how many cores there are
    assert of.mean == pytest.approx((0.95 + 0.5 + 0.92) / 3)
    assert (of.worst.strategy, of.worst.p, of.worst.accuracy) == ("filter", 4, 0.5)
    assert of.coverage == pytest.approx(2 / 3)
    assert summary(points[3:]).memory is None


def test_at_speed_by_hand() -> None:
    """Two points of data are fine at speed, one of filter is not known there and counts as it is."""
    points = [
        at_speed(1.0, 2.0, 1.0, ["cores"]),
        at_speed(1.0, 1.25, 1.25, p=4),
        point(1.0, 2.0, strategy="filter"),
    ]
    of = summary(points)
    assert of.mean_of_strategy_means == pytest.approx(((0.5 + 0.8) / 2 + 0.5) / 2)
    assert of.at_speed is not None
    assert of.at_speed.points == 2 and of.disturbances == {"cores": 1}
    assert of.at_speed.strategy_means == pytest.approx({"data": 0.9, "filter": 0.5})
    assert of.at_speed.mean_of_strategy_means == pytest.approx(0.7)
    assert of.at_speed.worst.strategy == "filter"
    assert of.at_speed.intervals.coverage == pytest.approx(1 / 3)
    assert of.at_speed.slowdown == pytest.approx(1.5)  # of 2 and 1
    assert summary(points[2:]).at_speed is None


def test_intervals_of_each_strategy() -> None:
    of = summary([point(1.0, 1.0), point(1.0, 2.0, p=4), point(1.0, 1.0, strategy="filter")])
    assert of.intervals is not None and of.coverage == pytest.approx(2 / 3)
    shares = {name: each.coverage for name, each in of.strategy_intervals.items()}
    assert shares == {"data": 0.5, "filter": 1.0}
