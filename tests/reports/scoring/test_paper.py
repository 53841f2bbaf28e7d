"""reports.paper: the paper's figures, and ours beside them."""

from __future__ import annotations

import pytest
from tests.helpers.published import DATA
from tests.reports.records import point

from calib.reports.scoring.paper import (
    PAPER_COSMOFLOW,
    PAPER_MEAN,
    PAPER_MEANS,
    comparable,
    paper_means,
    paper_rows,
)
from calib.reports.scoring.summary import summary

TEXT = DATA.parent / "papers" / "paradl.txt"


def test_the_papers_mean_is_that_of_its_strategies() -> None:
    """Kahira et al., section 5.2: 86.74%, which leaves CosmoFlow out."""
    assert sum(PAPER_MEANS.values()) / 6 == pytest.approx(PAPER_MEAN, abs=5e-5)


@pytest.mark.skipif(not TEXT.exists(), reason="the paper's text is not at hand")
def test_the_figures_stand_in_the_paper() -> None:
    said = next(
        line
        for line in TEXT.read_text().splitlines()
        if line.startswith("The accuracy of ParaDL predictions")
    )
    words = {
        "data": "data parallelism",
        "filter": "Filter",
        "channel": "Channel",
        "data+filter": "Data+Filter",
        "data+spatial": "Data+Spatial",
        "pipeline": "pipeline",
    }
    for name, value in PAPER_MEANS.items():
        assert f"{100 * value:.2f}% for {words[name]}" in said
    assert f"overall accuracy of {100 * PAPER_MEAN:.2f}%" in said
    assert f"CosmoFlow shows an accuracy of {100 * PAPER_COSMOFLOW:.2f}%" in said


def test_rows_by_hand() -> None:
    points = [
        point(0.9, 1.0),
        point(0.8, 1.0, p=4),
        point(0.5, 1.0, strategy="filter"),
        point(1.0, 1.0, strategy="spatial"),
        point(3.0, 1.0, strategy="channel", oversubscribed=True),
    ]
    rows = paper_rows(summary(points))
    assert [row.strategy for row in rows] == [*PAPER_MEANS, "spatial"]
    of = {row.strategy: row for row in rows}
    assert (of["data"].paper, of["data"].points) == (0.9610, 2)
    assert of["data"].ours == pytest.approx(0.85)
    assert (of["channel"].ours, of["channel"].points) == (None, 0)
    assert (of["spatial"].paper, of["spatial"].ours) == (None, 1.0)
    means = paper_means(rows)
    assert means is not None
    assert means.strategies == ["data", "filter"]  # not spatial, which the paper has no mean of
    assert means.ours == pytest.approx((0.85 + 0.5) / 2)
    assert means.paper == pytest.approx((0.9610 + 0.8556) / 2)


def test_what_is_comparable() -> None:
    points = [point(0.9, 1.0, model="\x1b[31mred"), point(0.5, 1.0, strategy="filter", p=8)]
    rows = paper_rows(summary(points))
    text = " ".join(comparable(rows, points))
    assert "86.74%" in text and "74.14%" in text and "section 5.2" in text
    assert "ours: vgg16_mini, \N{REPLACEMENT CHARACTER}[31mred on 2 to 8 ranks" in text
    assert "(data, filter): 70.0% here, 90.8% there" in text
    assert "No points here: channel, data+filter, data+spatial, pipeline." in text
    assert "\x1b" not in text


def test_nothing_in_common() -> None:
    rows = paper_rows(summary([point(1.0, 1.0, strategy="serial", p=1)]))
    assert paper_means(rows) is None
    assert comparable(rows)[-1] == "No strategy has points in both."
    assert paper_means(paper_rows(summary([]))) is None
