"""How often 95% intervals across launches hold, and how wide they are.

`python -m benchmarks coverage` simulates; with run directories it leaves launches out of each: the
median of some launches against that of the others. `among` is one fit of all cases of a kind
(fitting/launches.py), `alone` a case by itself. Scores are interval scores (Gneiting and Raftery, JASA
102, 2007) of logs: the width, and 40 times how far off the truth is; less is better.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from calib.fitting.launches import ALONE, Launch, Spread, cases_of
from calib.foundation.arrays import Floats
from calib.microbench.records.samples import read_samples

PENALTY = 2 / 0.05
MOST_SPLITS, MOST_CASES, FEWEST_CASES = 10, 60, 20

Case = Mapping[int, Launch]


class Interval(NamedTuple):
    """The log of a median, its interval, and what it should hold."""

    low: float
    value: float
    high: float
    truth: float

    def wider(self, factor: float) -> Interval:
        """Both sides `factor` times as wide."""
        low, high = (self.value + factor * (end - self.value) for end in (self.low, self.high))
        return self._replace(low=low, high=high)


class Design(NamedTuple):
    """Runs of `cases` in `launches`: deviations of logs, own and common."""

    name: str
    own: float = 0.1
    common: float = 0.05
    freedom: float = math.inf
    skewed: bool = False
    wild: float = 0.0
    missing: float = 0.0
    cases: int = 40


DESIGNS = (
    Design("normal, own 10%, common 5%"),
    Design("own 10% alone", common=0.0),
    Design("own 2%, common 20%", own=0.02, common=0.2),
    Design("own 10%, of 4 degrees of freedom", freedom=4.0),
    Design("own lognormal, skewness 3", skewed=True),
    Design("one launch of 50 takes 5 times as long", wild=0.02),
    Design("a fifth of the launches missing", missing=0.2),
    Design("5 cases of a kind", cases=5),
)


def drawn(design: Design, launches: int, dice: np.random.Generator) -> list[Case]:
    """The cases of one run; the truth is 0."""
    shape = design.cases, launches
    own = np.full((design.cases, 1), design.own)
    if math.isfinite(design.freedom):
        own = own * np.sqrt(design.freedom / dice.chisquare(design.freedom, own.shape))
    error = dice.standard_normal(shape)
    if design.skewed:
        spread = 0.72  # of a lognormal with skewness 3
        error = np.exp(spread * error) - math.exp(spread**2 / 2)
        error /= math.exp(spread**2 / 2) * math.sqrt(math.expm1(spread**2))
    y = design.common * dice.standard_normal(launches) + own * error
    y[dice.random(shape) < design.wild] += math.log(5.0)
    gone = dice.random(shape) < design.missing
    gone[:, 0] &= ~gone.all(axis=1)
    y[gone] = np.nan
    return [
        {n: Launch(at, math.nan) for n, at in enumerate(row) if not math.isnan(at)}
        for row in y.tolist()
    ]


def intervals(case: Case, spread: Spread, truth: float) -> dict[str, Interval]:
    """In either way."""
    found = {}
    for name, of in (("alone", ALONE), ("among", spread)):
        center = of.center(case)
        ends = center.log_median - center.margin, center.log_median + center.margin
        found[name] = Interval(ends[0], center.log_median, ends[1], truth)
    return found


def row(name: str, found: Sequence[Interval]) -> str:
    """Coverage, the median half-width as a factor, and the mean score."""
    low, _, high, truth = np.array(found).T
    held = (low <= truth) & (truth <= high)
    beyond = np.maximum(low - truth, 0.0) + np.maximum(truth - high, 0.0)
    score = float(np.mean(high - low + PENALTY * beyond))
    half: Floats = 0.5 * np.median(high - low)
    return f"{name:54s} {len(found):6d} {100 * held.mean():6.1f} {math.exp(half):7.3f} {score:7.2f}"


HEADER = f"{'':54s} {'n':>6s} {'held %':>6s} {'half x':>7s} {'score':>7s}"


def coverage(runs: int = 40) -> list[str]:
    """One row per design, launches and way."""
    rows = [HEADER]
    for design, launches in itertools.product(DESIGNS, (2, 3, 6)):
        dice = np.random.default_rng([launches, runs])
        found: dict[str, list[Interval]] = defaultdict(list)
        for _ in range(runs):
            cases = drawn(design, launches, dice)
            spread = Spread.fitted(cases)
            for case in cases:
                if len(case) > 1:
                    for way, interval in intervals(case, spread, 0.0).items():
                        found[way].append(interval)
        rows += [row(f"{design.name}, {launches}: {way}", of) for way, of in found.items()]
    return rows


def left_out(run: Path) -> list[str]:
    """Rows for 2, 3 and 4 launches of a run against the mean of its others.

    That mean differs from what both estimate, too: the intervals are wider by sqrt(1 + k / h) of k
    launches against h.
    """
    rows = [HEADER]
    kinds = cases_of(read_samples(run).usable)
    for k in (2, 3, 4):
        found: dict[str, list[Interval]] = defaultdict(list)
        for kind, cases in kinds.items():
            if len(cases) >= FEWEST_CASES:
                for way, of in _of_kind(cases, k).items():
                    found[f"{kind[0]}, {k} launches: {way}"] += of
        rows += [row(name, of) for name, of in sorted(found.items())]
    return rows


def _of_kind(cases: Sequence[Case], k: int) -> dict[str, list[Interval]]:
    found: dict[str, list[Interval]] = defaultdict(list)
    numbers = sorted({number for case in cases for number in case})
    splits = list(itertools.combinations(numbers, k))
    for kept in splits[:: 1 + len(splits) // MOST_SPLITS]:
        some = [{number: case[number] for number in kept if number in case} for case in cases]
        spread = Spread.fitted(some)
        pairs = list(zip(cases, some, strict=True))
        for case, mine in pairs[:: 1 + len(pairs) // MOST_CASES]:
            others = [of.log_median for number, of in case.items() if number not in kept]
            if len(mine) == k and others:
                wider = math.sqrt(1 + k / len(others))
                for way, interval in intervals(mine, spread, float(np.mean(others))).items():
                    found[way].append(interval.wider(wider))
    return found


def main(runs: Sequence[str]) -> int:
    """Print the tables of run directories."""
    for run in runs:
        print("\n  ".join([run, *left_out(Path(run))]))
    return 0
