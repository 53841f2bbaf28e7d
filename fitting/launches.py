"""How launches of the ranks differ, told from all cases of a kind at once.

A case is timed in few launches, often two, and two medians say next to nothing of their own spread. But
a run has hundreds of cases of a kind. The log of the median of case c in launch l is

    y_cl = mu_c + b_l + e_cl,

where b_l is common to the kind in that launch (how fast the machine was meanwhile) and the variance of
e_cl is the case's own: how it differs from launch to launch, and how well few repetitions tell a
median. Each case's own variance is moderated by those of the others (empirical Bayes: Smyth, Statistical
Applications in Genetics and Molecular Biology 3, 2004; limma): its prior is s0^2 with d0 degrees of
freedom, by the method of moments on log variances, and s0^2 rises with the variance of the repetitions
as a trend (Sartor et al., BMC Bioinformatics 7, 2006). That of b_l is what the cases have in common.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from statistics import NormalDist
from types import MappingProxyType
from typing import Any, NamedTuple, Self, TypeVar

import numpy as np
from scipy.optimize import brentq
from scipy.special import digamma, polygamma, stdtrit

from calib.foundation.arrays import Floats, Integers
from calib.foundation.statistics import effective_number, median, median_ranks
from calib.microbench.records.samples import OF_EACH_RANK, Samples

# a launch farther off than this many of its own standard deviations is held to it (a Huber weight): the
# usual border of an outlier (Rousseeuw and Leroy, Robust Regression and Outlier Detection, 1987)
WILD = 2.5
FEWEST = 3  # cases of a kind
# degrees of freedom that launches of other kinds count for, however many there were: with them, two
# launches have the t of five (2.6 for 12.7), and six are still their own
BORROWED = 4.0
LAUNCHES_TO_JUDGE_ONE = 6  # that a case must have to show by itself that one of them was disturbed
PASSES = {"forward", "backward", "update"}  # of a model in place
ROUNDS = 10  # of fitting launches and cases in turn; after five nothing moves
TREND = (0.0, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95)  # quantiles at which a trend may begin
NORMAL_MAD = 1.4826  # standard deviation of normal errors over their median absolute deviation
NEXT_TO_NOTHING = 1e-9  # of a log of seconds
_K = TypeVar("_K")  # a kind of case
NOTHING_KNOWN: Mapping[Any, Any] = MappingProxyType({})
MEDIAN_EFFICIENCY = math.pi / 2  # variance of a normal sample's median over that of its mean


class Launch(NamedTuple):
    """The log median of one case in one launch, and its variance; NaN: too few repetitions."""

    log_median: float
    variance: float


class Center(NamedTuple):
    """The log of a median over launches, with margins at 95% for what is its own and what is common."""

    log_median: float
    own: float
    common: float

    @property
    def margin(self) -> float:
        """Half-width; the two parts are independent."""
        return math.hypot(self.own, self.common)


def log_median(values: Sequence[float]) -> Launch:
    """Of the repetitions of one launch, in order of time; their median is over 0.

    The variance is that of a normal error with the interval of the median for independent values
    (`median_ranks`), over the share of them that are effective (`effective_number`).
    """
    n = len(values)
    ordered = sorted(values)
    low, high = median_ranks(n, 0.95) or (0, n - 1)
    if low == high:
        return Launch(math.log(median(values)), math.nan)
    middle = median(values)
    if ordered[low] > 0:
        half = 0.5 * math.log(ordered[high] / ordered[low])
    else:  # repetitions that the clock saw as 0 s say nothing of that side
        half = math.log(ordered[high] / middle)
    half /= _deviates(n, low)
    return Launch(math.log(middle), half**2 * n / max(effective_number(values), 1))


@cache
def _deviates(n: int, low: int) -> float:
    """Standard deviations of a normal error with the confidence of the order statistics low, n-1-low."""
    tail = math.fsum(math.comb(n, k) for k in range(low + 1)) / 2.0**n if n < 1000 else 0.025
    return -NormalDist().inv_cdf(tail)


@dataclass(frozen=True)
class Spread:
    """How the launches of one kind differ, in squares of logs.

    The prior of a case's own variance is `own` (1 + w / `trend`), where w is the variance of its
    repetitions' medians (`trend` infinite: whatever w is), with `freedom` d0. `effects` are b_l by
    launch, `common` is their variance, with `common_freedom`.
    """

    own: float = 0.0
    trend: float = math.inf
    typical: float = 0.0  # w of a case that has none of its own
    freedom: float = 0.0
    effects: Mapping[int, float] = field(default_factory=dict)
    common: float = 0.0
    common_freedom: float = 1.0
    cases: int = 0  # that this was fitted to; 0: each case is alone

    @classmethod
    def fitted(cls, cases: Sequence[Mapping[int, Launch]]) -> Self:
        """The spread of a kind, from what each of its cases took in each of its launches.

        Cases of one launch say nothing. Fewer than FEWEST others do not tell what launches have in
        common from what is a case's own.
        """
        several = [case for case in cases if len(case) > 1]
        if len(several) < FEWEST:
            return cls()
        numbers = sorted({launch for case in several for launch in case})
        y = np.array(
            [[case[n].log_median if n in case else np.nan for n in numbers] for case in several]
        )
        repeated = np.array([variance_of(case.values()) for case in several])
        known = repeated[repeated > 0]
        typical = float(np.median(known)) if len(known) else 0.0
        w = np.where(repeated > 0, repeated, typical)
        count = (~np.isnan(y)).sum(axis=1)
        # what the effects of launches take of the cases' freedom
        d = (count - 1) * (1.0 - 1.0 / len(several))
        per_launch = (~np.isnan(y)).sum(axis=0)
        effects = np.zeros(len(numbers))
        prior = np.full(len(y), np.nanvar(y - np.nanmean(y, axis=1, keepdims=True)))
        own = trend = freedom = common = 0.0
        for _ in range(ROUNDS):
            center, variance = centers(y - effects, prior)
            own, trend, freedom = _prior(variance, w, d)
            prior = own * (1.0 + w / trend)
            off = np.nanmedian(y - center[:, None], axis=0)
            off -= off.mean()
            noise = MEDIAN_EFFICIENCY * np.median(variance) / per_launch
            common = max(0.0, float(np.sum(off**2) / (len(off) - 1) - noise.mean()))
            effects = off * common / (common + noise) if common else np.zeros_like(off)
        return cls(
            own=own,
            trend=trend,
            typical=typical,
            freedom=freedom,
            effects=dict(zip(numbers, effects.tolist(), strict=True)),
            common=common,
            common_freedom=float(len(off) - 1),
            cases=len(several),
        )

    def center(self, launches: Mapping[int, Launch]) -> Center:
        """The center of one case's launches. Margins of 0: a launch alone does not tell how they differ.

        The margins are those of Student's t, each with its own freedom, and add in quadrature. With the
        freedom of the sum (Satterthwaite) two launches cover 89% where they differ by what is common.
        """
        y = np.array([[launch.log_median for launch in launches.values()]])
        effects = np.array([self.effects.get(number, 0.0) for number in launches])
        w, n = variance_of(launches.values()), len(launches)
        d = (n - 1) * (1.0 - 1.0 / self.cases) if self.cases else n - 1.0
        if self.freedom + d <= 0:
            return Center(float(y[0, 0]), 0.0, 0.0)
        prior = self.own * (1.0 + (w or self.typical) / self.trend)
        at, variance = centers(y - effects, np.array([prior if self.cases else _robust(y[0])]))
        mine = float(variance[0])
        if self.cases:
            mine = (self.freedom * prior + d * mine) / (self.freedom + d)
        return Center(
            log_median=float(at[0] + effects.mean()),
            own=quantile_of_t(self.freedom + d)
            * math.sqrt(max(mine, 0.0 if self.cases else w) / n),
            common=quantile_of_t(self.common_freedom) * math.sqrt(self.common / n),
        )


ALONE = Spread()


def variance_of(launches: Iterable[Launch]) -> float:
    """How well the repetitions of a launch tell its median: the median over launches; 0: unknown."""
    known = [launch.variance for launch in launches if not math.isnan(launch.variance)]
    return median(known) if known else 0.0


def _robust(y: Floats) -> float:
    """The variance of y [l] by its median absolute deviation; of few launches they all count fully."""
    if len(y) < LAUNCHES_TO_JUDGE_ONE:
        return math.inf
    return float(NORMAL_MAD * np.median(np.abs(y - np.median(y)))) ** 2


def factor_of(margin: float) -> float:
    """The factor that a margin in logs is.

    Over e it grows as the margin does: of two launches t is 12.7, and what its logs would say is absurd.
    """
    return math.exp(margin) if margin < 1 else math.e * margin


@cache
def quantile_of_t(freedom: float) -> float:
    """Of Student's t at 97.5%; under one degree of freedom that of one."""
    return float(stdtrit(max(freedom, 1.0), 0.975))


def centers(y: Floats, prior: Floats) -> tuple[Floats, Floats]:
    """(centers [n], variances [n] of one launch) of y [n, l], NaN where a launch is missing.

    Huber's location with the scale of the `prior` variances [n], and the variance of his
    pseudo-values (Robust Statistics, 1981, 7.6), no larger than that of y. Of one launch 0.
    """
    present = ~np.isnan(y)
    n = present.sum(axis=1)
    border = np.maximum(WILD * np.sqrt(prior), NEXT_TO_NOTHING)[:, None]
    center = _medians(y, n)
    for _ in range(ROUNDS):
        off = np.where(present, np.abs(y - center[:, None]), 0.0)
        weight = np.divide(border, off, out=present.astype(float), where=off > border)
        center = np.where(present, weight * y, 0.0).sum(axis=1) / weight.sum(axis=1)
        if not (off > border).any():
            break
    off = np.where(present, y - center[:, None], 0.0)
    held = (np.clip(off, -border, border) ** 2).sum(axis=1)
    inside = (present & (np.abs(off) <= border)).sum(axis=1)
    mean = np.where(present, y, 0.0).sum(axis=1) / n
    plain = (np.where(present, y - mean[:, None], 0.0) ** 2).sum(axis=1)
    held = np.where(inside > 0, held * (n / np.maximum(inside, 1)) ** 2, plain)
    return center, np.minimum(plain, held) / np.maximum(n - 1, 1)


def _medians(y: Floats, n: Integers) -> Floats:
    """Medians [n] of the first `n` [n] numbers of each row, NaN being last when sorted."""
    rising, row = np.sort(y, axis=1), np.arange(len(y))
    found: Floats = 0.5 * (rising[row, (n - 1) // 2] + rising[row, n // 2])
    return found


def _prior(variance: Floats, w: Floats, d: Floats) -> tuple[float, float, float]:
    """(s0^2 without repetitions, trend, d0) of variances [n] with d [n] degrees of freedom.

    With e = log s^2 - digamma(d/2) + log(d/2), the variance of e is trigamma(d/2) + trigamma(d0/2), and
    its mean that of log s0^2 - digamma(d0/2) + log(d0/2) (Smyth, 2004, section 6.2). The trend is the
    one that leaves the least variance. d0 is at most the freedom of all cases, which made s0^2.
    """
    # clocks in steps may see no difference at all
    seen = np.maximum(variance, max(float(np.quantile(variance, 0.01)), NEXT_TO_NOTHING**2))
    e = np.log(seen) - digamma(d / 2) + np.log(d / 2)
    borders = [math.inf]
    if (known := w[w > 0]).size:
        borders += np.quantile(known, TREND).tolist()
    left = {border: e - np.log1p(w / border) for border in borders}
    trend = min(borders, key=lambda border: float(np.var(left[border])))
    e = left[trend]
    more = float(np.var(e, ddof=1) - np.mean(polygamma(1, d / 2)))
    half = inverse_trigamma(more)
    bias = float(digamma(half) - np.log(half)) if math.isfinite(half) else 0.0
    return math.exp(float(e.mean()) + bias), trend, min(2.0 * half, float(d.sum()))


def inverse_trigamma(value: float) -> float:
    """x with trigamma(x) = `value`; infinite where it is not positive."""
    least, most = 1e-2, 1e6
    if value <= polygamma(1, most):
        return math.inf
    if value >= polygamma(1, least):
        return least
    return math.exp(
        brentq(lambda x: float(polygamma(1, math.exp(x))) - value, math.log(least), math.log(most))
    )


class Kind(NamedTuple):
    """Cases of a kind are alike in how their launches differ.

    `ranks` are those of the launch; of a collective, whose groups have fewer, 0.
    """

    kind: str
    library: str
    level: str
    active_ranks: int
    ranks: int

    @classmethod
    def of(cls, kind: str, library: str, level: str, active_ranks: int, ranks: int) -> Self:
        """From the columns of a row."""
        return cls(kind, library, level, active_ranks, ranks if kind in OF_EACH_RANK else 0)


@dataclass(frozen=True)
class Launches:
    """How launches differ, for every kind of case in a run."""

    kinds: Mapping[Kind, Spread]

    @classmethod
    def of(cls, samples: Samples) -> Self:
        """From all rows that may feed a parameter."""
        return cls({kind: Spread.fitted(of) for kind, of in cases_of(samples).items()})

    def like(self, case: Samples) -> Spread:
        """That of the kind of these rows of a case, alone."""
        kind = Kind.of(*(getattr(case.first, name) for name in Kind._fields))
        return self.kinds.get(kind, ALONE)


NO_OTHERS = Launches({})


def cases_of(samples: Samples) -> dict[Kind, list[dict[int, Launch]]]:
    """What each case took in each launch, by kinds, sorted; of work of each rank, on the slowest."""
    cases: dict[Kind, list[dict[int, Launch]]] = defaultdict(list)
    groups = samples.groups(*Kind._fields, "case_id", "operation", "key", "nbytes")
    for key in sorted(groups):  # sums must not depend on the order of rows
        kind, rows = Kind.of(*key[: len(Kind._fields)]), groups[key]
        each = kind.kind in OF_EACH_RANK
        medians = slowest_medians(rows) if each else launch_medians(rows, rows["seconds"])
        if medians is not None:
            cases[kind].append(medians)
    return dict(sorted(cases.items()))


class Common(NamedTuple):
    """The variance of what a launch has in common, in squares of logs, and its freedom."""

    variance: float
    freedom: float

    @property
    def margin(self) -> float:
        """95% of a log."""
        return quantile_of_t(self.freedom) * math.sqrt(self.variance)


def launch_factors(samples: Samples, among: Launches) -> dict[int, float]:
    """Number of ranks -> the factor of many launches that 95% of single ones are within.

    By the passes of whole models in place: of a training that is what its launch has in common with
    others, and what is its own. Where no model was in place twice, what layers have in common.
    """
    models: dict[int, list[dict[int, Launch]]] = {}
    layers: dict[int, Common] = {}
    work = samples.where(samples.mask("kind", OF_EACH_RANK.__contains__))
    for (ranks,), rows in sorted(work.groups("ranks").items()):
        cases = [case for case in _whole_passes(rows.where(kind="in_place")) if len(case) > 1]
        if cases:
            models[int(ranks)] = cases
            continue
        kinds = among.kinds.items()
        of_layers = [of for kind, of in kinds if (kind.kind, kind.ranks) == ("layer", ranks)]
        if of_layers:
            spread = max(of_layers, key=lambda of: of.cases)
            layers[int(ranks)] = Common(spread.common, spread.common_freedom)
    return factors_of_one(models, layers)


def factors_of_one(
    cases: Mapping[_K, Sequence[Mapping[int, Launch]]], known: Mapping[_K, Common] = NOTHING_KNOWN
) -> dict[_K, float]:
    """The factor of many launches that 95% of single ones are within, by kinds; without those of 1.

    `cases` have several launches each. Few launches say next to nothing of what they have in common
    (the t of two is 12.7), so a kind borrows what the others say of the same machine; `known` has kinds
    of which no more than that is known.
    """
    spreads = {key: Spread.fitted(of) for key, of in cases.items()}
    common = {
        key: Common(spread.common, spread.common_freedom)
        for key, spread in spreads.items()
        if spread.cases
    }
    common.update(known)
    factors = {}
    for key in dict.fromkeys((*cases, *known)):
        margin = _own_margin(cases[key], spreads[key]) if key in cases else 0.0
        if key in common:
            others = [of for other, of in common.items() if other != key]
            margin = math.hypot(margin, _borrowing(common[key], others).margin)
        if margin:
            factors[key] = factor_of(margin)
    return factors


def _borrowing(mine: Common, others: Sequence[Common]) -> Common:
    """Moderated by others, which count as at most BORROWED degrees of freedom."""
    freedom = math.fsum(of.freedom for of in others)
    if not freedom:
        return mine
    theirs = math.fsum(of.freedom * of.variance for of in others) / freedom
    counted = min(freedom, BORROWED)
    known = mine.freedom + counted
    return Common((mine.freedom * mine.variance + counted * theirs) / known, known)


def _own_margin(cases: Sequence[Mapping[int, Launch]], spread: Spread) -> float:
    """That of what is a case's own. Too few cases do not tell: their launches count once."""
    squares = 0.0
    for case in cases:
        y = np.array([of.log_median - spread.effects.get(n, 0.0) for n, of in case.items()])
        squares += float(((y - y.mean()) ** 2).sum())
    freedom = float(sum(len(case) - 1 for case in cases))
    if not freedom:
        return 0.0
    if spread.cases:
        freedom *= 1.0 - 1.0 / len(cases)
    known = freedom if spread.cases else max(len(case) - 1 for case in cases)
    return quantile_of_t(known) * math.sqrt(squares / freedom)


def _whole_passes(samples: Samples) -> list[dict[int, Launch]]:
    """What the passes of each model in place took together, in each launch that timed them all."""
    cases = []
    for _, rows in sorted(samples.groups("case_id").items()):
        passes = [
            medians
            for (operation,), of in sorted(rows.groups("operation").items())
            if operation in PASSES and (medians := slowest_medians(of)) is not None
        ]
        common = set.intersection(*map(set, passes)) if passes else set[int]()
        cases.append({number: _sum([of[number] for of in passes]) for number in sorted(common)})
    return cases


def _sum(parts: Sequence[Launch]) -> Launch:
    """The log of a sum of medians; their variances, each by its share, add up."""
    seconds = np.exp([part.log_median for part in parts])
    variances = np.array([part.variance for part in parts])
    return Launch(
        float(np.log(seconds.sum())), float((variances * (seconds / seconds.sum()) ** 2).sum())
    )


def launch_medians(rows: Samples, seconds: Floats) -> dict[int, Launch] | None:
    """Launch -> its median of `seconds` [rows]; None where one is 0, below the clock's resolution."""
    launches = in_order(rows, seconds)
    if any(median(values) <= 0 for values in launches.values()):
        return None
    return {number: log_median(values) for number, values in launches.items()}


def slowest_medians(rows: Samples) -> dict[int, Launch] | None:
    """The same of the rank that mostly took longest."""
    times = rows.rank_seconds
    return launch_medians(rows, times[:, int(np.argmax(np.median(times, axis=0)))])


def in_order(rows: Samples, seconds: Floats) -> dict[int, list[float]]:
    """Launch -> `seconds` [rows] of its repetitions, in order of time."""
    launch = rows["launch"]
    order = np.lexsort((seconds, rows["repetition"], launch))
    numbers, first = np.unique(launch[order], return_index=True)
    parts = np.split(seconds[order], first[1:])
    return dict(zip(numbers.tolist(), map(np.ndarray.tolist, parts), strict=True))
