"""Does the oracle pick the right strategy? Predicted order against measured.

A group is the same training on the same machine with the same software: model, p, global mini-batch,
optimizer, item type, library and threads. Its strategies, with their layouts, are what a user chooses
from. On one rank all of them are the serial one, so that there is nothing to choose.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import sqrt
from statistics import fmean

from pydantic import Field

from calib.foundation.names import LayoutWords, ModelName, StrategyLabel
from calib.foundation.records import Estimate, Record, TimeEstimate
from calib.foundation.statistics import median, median_interval
from calib.reports.scoring.accuracy import Accuracy

NEAR = 0.03  # a pick that costs no more than this is nearly as good
FEWEST_TO_RANK = 3
FEWEST_RUNS = 6  # of which a median has a 95% interval (calib.foundation.statistics.median_ranks)


class Option(Record):
    """A strategy of a group, over its runs: the medians of what they took and were to take."""

    strategy: StrategyLabel
    layout: LayoutWords
    runs: int = Field(ge=1, description="how many runs")
    predicted_s: float = Field(description="median over its runs, s")
    measured: TimeEstimate = Field(
        description="median over its runs, s; the interval is that of the run, or from 6 runs on of "
        "the runs' medians"
    )


class StrategyChoice(Record):
    """One group: which strategy the oracle picks, and what that costs."""

    model: ModelName
    p: int = Field(ge=2, description="number of ranks")
    batch: int = Field(ge=1, description="global mini-batch B")
    options: list[Option] = Field(min_length=2, description="the fastest by measurement first")
    picked: int = Field(ge=0, description="index of the predicted fastest in `options`")
    right: bool = Field(description="whether the picked strategy is the fastest")
    regret: float = Field(ge=0, description="measured time of the picked / of the fastest, - 1")
    tied: bool = Field(
        description="whether the measured intervals of the picked and the fastest overlap"
    )
    tau: float | None = Field(description="Kendall's tau-b; null under 3 strategies, or all alike")


class StrategyChoices(Record):
    """All groups; shares are of the number of groups."""

    choices: list[StrategyChoice] = Field(
        min_length=1, description="the groups of strategies to choose from"
    )
    right: int = Field(description="groups whose fastest strategy was picked")
    tied: int = Field(description="other groups, where noise does not tell the two apart")
    near: int = Field(description="groups where the pick costs at most 3% more than the fastest")
    mean_tau: float | None = Field(description="over the groups that have one")
    worst_regret: float = Field(
        description="measured time of the picked / of the fastest, - 1, at worst"
    )


def choices(accuracies: Iterable[Accuracy]) -> StrategyChoices | None:
    """How well the predictions choose between strategies; None where there is nothing to choose.

    Points that do not count are left out. Groups are in the order in which they first appear.
    """
    groups: dict[tuple[object, ...], dict[tuple[str, str], list[Accuracy]]] = {}
    for point in accuracies:
        if point.p > 1 and point.counts:
            options = groups.setdefault(_group(point), {})
            options.setdefault((point.strategy, point.layout), []).append(point)
    found = [_choice(list(options.values())) for options in groups.values() if len(options) > 1]
    if not found:
        return None
    taus = [choice.tau for choice in found if choice.tau is not None]
    return StrategyChoices(
        choices=found,
        right=sum(choice.right for choice in found),
        tied=sum(choice.tied and not choice.right for choice in found),
        near=sum(choice.regret <= NEAR for choice in found),
        mean_tau=fmean(taus) if taus else None,
        worst_regret=max(choice.regret for choice in found),
    )


def _group(point: Accuracy) -> tuple[object, ...]:
    return (
        point.model,
        point.p,
        point.division.batch,
        point.optimizer,
        point.execution,
        point.library,
        point.threads_per_rank,
        point.cluster_fingerprint,
    )


def _choice(runs_of: Sequence[Sequence[Accuracy]]) -> StrategyChoice:
    options = sorted(map(_option, runs_of), key=lambda option: option.measured.value)
    # of strategies with the same prediction, the slowest: the oracle could have picked any of them
    picked = min(options, key=lambda option: (option.predicted_s, -option.measured.value))
    fastest = options[0]
    point = runs_of[0][0]
    measured = [option.measured.value for option in options]
    predicted = [option.predicted_s for option in options]
    regret = picked.measured.value / fastest.measured.value - 1.0
    return StrategyChoice(
        model=point.model,
        p=point.p,
        batch=point.division.batch,
        options=options,
        picked=options.index(picked),
        right=regret == 0,
        regret=regret,
        tied=picked.measured.low <= fastest.measured.high,
        tau=kendall_tau(predicted, measured) if len(options) >= FEWEST_TO_RANK else None,
    )


def _option(runs: Sequence[Accuracy]) -> Option:
    measured = [run.total.measured.value for run in runs]
    if len(runs) >= FEWEST_RUNS:
        low, high = median_interval(measured)
    else:  # too few for an interval of their own: what any of them says
        low = min(run.total.measured.low for run in runs)
        high = max(run.total.measured.high for run in runs)
    return Option(
        strategy=runs[0].strategy,
        layout=runs[0].layout,
        runs=len(runs),
        predicted_s=median([run.total.predicted.value for run in runs]),
        measured=Estimate.around(median(measured), low, high),
    )


def kendall_tau(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Kendall's tau-b (Kendall, Biometrika 33, 1945): 1 the same order, -1 the opposite one.

    None where all values of a list are equal. Of a handful of strategies, all pairs are counted;
    scipy.stats would take over a second to import.
    """
    pairs = [(i, j) for j in range(len(first)) for i in range(j)]
    signs = [(_sign(first[i] - first[j]), _sign(second[i] - second[j])) for i, j in pairs]
    untied = [sum(a != 0 for a, _ in signs), sum(b != 0 for _, b in signs)]
    if not all(untied):
        return None
    return sum(a * b for a, b in signs) / sqrt(untied[0] * untied[1])


def _sign(value: float) -> int:
    return (value > 0) - (value < 0)
