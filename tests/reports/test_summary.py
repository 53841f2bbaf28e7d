"""reports.summary: means, the worst point, coverage and the noise ceiling, by hand."""

from __future__ import annotations

import json

import pytest

from reports.summary import noise_ceiling, summary
from tests.reports.records import point


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
    assert of.coverage == pytest.approx(1 / 4)
    assert of.noise_ceiling is None
    json.dumps(of.model_dump())


def test_nothing_to_summarize() -> None:
    for points in ([], [point(1.0, 1.0, oversubscribed=True)], [point(1.0, 0.0)]):
        of = summary(points)
        assert of.points == 0
        means = (of.mean_of_strategy_means, of.mean_over_points, of.coverage)
        assert (*means, of.worst, of.noise_ceiling) == (None,) * 5


def test_data_on_one_pe_is_the_serial_work() -> None:
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
        {"batch_per_pe": 16},
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
