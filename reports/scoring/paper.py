"""Accuracy per strategy beside ParaDL's, where the two can be compared.

The paper: A. N. Kahira, T. T. Nguyen, L. Bautista Gomez, R. Takano, R. M. Badia, M. Wahib, "An Oracle
for Guiding Large-Scale Model/Hybrid Parallel Training of Convolutional Neural Networks", HPDC 2021,
section 5.2 ("ParaDL's Projection and Accuracy") and its figures 3 and 4.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean

from pydantic import Field

from calib.foundation.names import StrategyLabel
from calib.foundation.records import Record
from calib.foundation.text import plain
from calib.foundation.words import percent
from calib.reports.scoring.accuracy import Accuracy
from calib.reports.scoring.summary import Summary

SOURCE = "Kahira et al., HPDC 2021, section 5.2 and figure 3"
# "The accuracy of ParaDL predictions for the different parallel strategies are ...", section 5.2
PAPER_MEANS = {
    "data": 0.9610,
    "filter": 0.8556,
    "channel": 0.7367,
    "data+filter": 0.9143,
    "data+spatial": 0.8346,
    "pipeline": 0.9022,
}
# their unweighted mean, which the paper gives as the overall accuracy
PAPER_MEAN = 0.8674
# data+spatial of CosmoFlow (figure 4), which is not in that mean
PAPER_COSMOFLOW = 0.7414


class PaperRow(Record):
    """A strategy: mean accuracy in the paper and here. None where one of them has no points."""

    strategy: StrategyLabel
    paper: float | None = Field(description="mean accuracy there; null: none")
    ours: float | None = Field(description="mean accuracy here; null: no points")
    points: int = Field(ge=0, description="of ours that count")


class PaperMeans(Record):
    """Both means over the strategies that both have."""

    strategies: list[str] = Field(min_length=1, description="those that both have")
    paper: float = Field(description="mean there")
    ours: float = Field(description="mean here")


def paper_rows(summary: Summary) -> list[PaperRow]:
    """The paper's six strategies in its order, then those that only we have."""
    ours = summary.strategy_means
    names = [*PAPER_MEANS, *(name for name in ours if name not in PAPER_MEANS)]
    return [
        PaperRow(
            strategy=name,
            paper=PAPER_MEANS.get(name),
            ours=ours.get(name),
            points=summary.strategy_points.get(name, 0),
        )
        for name in names
    ]


def paper_means(rows: Sequence[PaperRow]) -> PaperMeans | None:
    """Both means of strategy means, over the strategies that both have; None without any."""
    both = [(x.strategy, x.paper, x.ours) for x in rows if x.paper is not None]
    found = [(name, paper, ours) for name, paper, ours in both if ours is not None]
    if not found:
        return None
    return PaperMeans(
        strategies=[name for name, _, _ in found],
        paper=fmean(paper for _, paper, _ in found),
        ours=fmean(ours for _, _, ours in found),
    )


def comparable(rows: Sequence[PaperRow], accuracies: Iterable[Accuracy] = ()) -> list[str]:
    """What the two columns have in common and what not, in sentences; of `accuracies`, those that
    count.
    """
    means = paper_means(rows)
    lines = [
        f"The paper ({SOURCE}): {100 * PAPER_MEAN:.2f}%, the mean of six strategy means, without "
        f"CosmoFlow's {100 * PAPER_COSMOFLOW:.2f}%.",
        "Comparable with it: the formula of accuracy and means. Not: what was measured (theirs are "
        "averages of 100 iterations with the best communication times of several runs, ours medians "
        "of each run), and of what (theirs: ResNet-50, ResNet-152, VGG16 on up to 1024 V100 GPUs"
        f"{_here(accuracies)}).",
    ]
    if means is None:
        return [*lines, "No strategy has points in both."]
    without = [x.strategy for x in rows if x.paper is not None and x.ours is None]
    missing = f" No points here: {', '.join(without)}." if without else ""
    return [
        *lines,
        f"Mean over the strategies of both ({', '.join(map(plain, means.strategies))}): "
        f"{percent(means.ours)} here, {percent(means.paper)} there.{missing}",
    ]


def _here(accuracies: Iterable[Accuracy]) -> str:
    """Our models and p, as the end of the sentence on theirs."""
    points = [point for point in accuracies if point.counts]
    if not points:
        return ""
    models = ", ".join(sorted({plain(point.model) for point in points}))
    sizes = sorted({point.p for point in points})
    ranks = f"{sizes[0]}" if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
    return f"; ours: {models} on {ranks} rank{'s' * (sizes[-1] > 1)}"
