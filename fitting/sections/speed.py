"""The machine's speed while it was measured -> exponents of the references, and times at one speed."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from statistics import fmean, stdev

import numpy as np
from scipy.optimize import lsq_linear

from calib.fitting.parameters.speed import (
    FEWEST_LOOKS,
    REFERENCES,
    Reference,
    References,
    Speed,
    SpeedLaw,
    SpeedOf,
    Z,
    mean_of,
)
from calib.foundation.arrays import Floats, Integers
from calib.foundation.records import Estimate
from calib.microbench.records.looks import Look
from calib.microbench.records.manifest import CaseEnd, LaunchRecord
from calib.microbench.records.samples import OF_EACH_RANK, Samples

# looks so long before and after a case are of its time: one alone varies more than the machine's speed
AROUND_S = 5.0
# cases so near in time are disturbed by the same thing, and drawn together
TOGETHER_S = 10.0
FEWEST_TIMES, FEWEST_STRETCHES = 30, 8
# What other work can follow. A copy takes up to three times as long in one launch as in the next, by
# where its pages happen to lie: that says nothing of other work.
FOLLOWED: dict[SpeedOf, tuple[Reference, ...]] = {
    "compute": ("arithmetic_s", "threads_s"),
    "messages": ("arithmetic_s", "message_s"),
}
# a time that changed by more than this (logarithm) between launches had another reason
MOST_CHANGE = math.log(2.0)
DRAWS = 200
NO_EXPONENT = 0.01  # solvers end near a bound


def at_one_speed(
    rows: Samples, launches: Sequence[LaunchRecord], ends: Sequence[CaseEnd], seed: int
) -> tuple[Samples, Speed]:
    """The rows as if the machine had been as fast as it mostly was, and its speed.

    Times of a case are compared with those of the same case in other launches, so that only what
    changed between them counts; log t = case + sum of exponent * log reference, exponents from 0 to 1
    by least squares, with intervals by a bootstrap of stretches of TOGETHER_S. One whose interval
    reaches 0 is none.

    Parameters
    ----------
    rows
        Undisturbed ones of several launches.
    launches, ends
        Of the manifests that the rows are of.
    seed
        Of the bootstrap.
    """
    shifts = shifts_of(rows, launches, ends)
    whole = set(rows.where(kind="in_place").distinct("case_id")) if len(rows) else set()
    references = [
        _references(ranks, _behind(looks, ends, whole)) for ranks, looks in _by_ranks(launches)
    ]
    laws = []
    seconds, times = rows["seconds"], rows.flat("rank_seconds")
    of_row = np.repeat(np.arange(len(rows)), rows.lengths("rank_seconds"))
    work = rows.mask("kind", OF_EACH_RANK.__contains__)
    parts: dict[SpeedOf, Integers] = {
        "compute": np.flatnonzero(work),
        "messages": np.flatnonzero(rows.mask("kind", "collective".__eq__)),
    }
    for of, which in parts.items():
        law = _law(of, rows, which, shifts, seed)
        if law is None:
            continue
        laws.append(law)
        exponents = np.array([law.exponent(name) for name in REFERENCES])
        factors = np.ones(len(rows))
        factors[which] = np.exp(shifts[which] @ exponents)
        seconds, times = seconds / factors, times / factors[of_row]
    speed = Speed(references=list(_varying(references, laws, launches)), laws=laws)
    return (rows.with_times(times, seconds) if laws else rows), speed


def _by_ranks(launches: Sequence[LaunchRecord]) -> Iterator[tuple[int, list[Look]]]:
    """Number of ranks -> the looks of its launches."""
    for ranks in sorted({launch.ranks for launch in launches}):
        looks = [look for each in launches if each.ranks == ranks for look in each.looks]
        if looks:
            yield ranks, looks


def _behind(looks: Sequence[Look], ends: Sequence[CaseEnd], cases: Set[str]) -> Sequence[Look]:
    """The looks right behind one of these cases; all looks where these are too few to say anything.

    What a reference takes depends on what ran before it (of a copy, by half), and trainings run whole
    iterations: their looks are to be held against those behind whole iterations.
    """
    stops = sorted(
        (end.started_unix_s + end.elapsed_s, end.case_id in cases)
        for end in ends
        if end.started_unix_s is not None
    )
    times = [time for time, _ in stops]
    found = [
        look
        for look in looks
        if (place := bisect_right(times, look.unix_s)) and stops[place - 1][1]
    ]
    return found if len(found) >= FEWEST_LOOKS else looks


def _references(ranks: int, looks: Sequence[Look]) -> References:
    """The geometric means of the references, with intervals."""
    seconds: dict[Reference, Estimate] = {}
    for name in REFERENCES:
        logs = [math.log(found) for look in looks if (found := getattr(look, name))]
        if logs:
            middle, error = mean_of(logs)
            half = Z * error
            low, value, high = (math.exp(middle + sign * half) for sign in (-1, 0, 1))
            seconds[name] = Estimate.around(value, low, high)
    return References(ranks=ranks, looks=len(looks), seconds=seconds)


def _varying(
    references: Sequence[References], laws: Sequence[SpeedLaw], launches: Sequence[LaunchRecord]
) -> Iterator[References]:
    """The references with the factor that holds 95% of undisturbed stretches of TOGETHER_S.

    A training is about as long, and its speed that of one of them.
    """
    exponents = next((law.exponents for law in laws if law.of == "compute"), {})
    looks_of = dict(_by_ranks(launches))
    for each in references:
        # a rank of one thread does not have the reference of several
        followed = {name: of.value for name, of in exponents.items() if name in each.seconds}
        stretches: dict[float, list[float]] = defaultdict(list)
        for look in looks_of[each.ranks] if followed else ():
            known = [getattr(look, name) for name in followed]
            if all(known) and not look.disturbed:
                slower = float(np.dot(list(followed.values()), np.log(known)))
                stretches[look.unix_s // TOGETHER_S].append(slower)
        means = list(map(fmean, stretches.values()))
        factor = math.exp(Z * stdev(means)) if len(means) >= FEWEST_STRETCHES else 1.0
        yield each.model_copy(update={"variation": factor})


@dataclass(frozen=True)
class Course:
    """The references of the looks of one number of ranks, in the order of time: logs [n, references]."""

    times: Floats
    logs: Floats

    def between(self, start_s: float, stop_s: float) -> Floats:
        """Means around a stretch of time; NaN where there was no look."""
        first, last = np.searchsorted(self.times, [start_s - AROUND_S, stop_s + AROUND_S])
        if first == last:
            return np.full(len(REFERENCES), np.nan)
        found: Floats = self.logs[first:last].mean(axis=0)
        return found


def shifts_of(rows: Samples, launches: Sequence[LaunchRecord], ends: Sequence[CaseEnd]) -> Floats:
    """Logarithms [rows, references] of the references around each row; 0 unknown.

    Over those around the same case in other launches: what a reference takes depends on what runs
    beside and before it, too.
    """
    courses = {}
    for ranks, looks in _by_ranks(launches):
        logs = np.log([[getattr(look, name) or np.nan for name in REFERENCES] for look in looks])
        order = np.argsort([look.unix_s for look in looks])
        known = ~np.isnan(logs)
        usual = np.where(known, logs, 0.0).sum(axis=0) / np.maximum(known.sum(axis=0), 1)
        times = np.array([look.unix_s for look in looks])
        courses[ranks] = Course(times[order], (logs - usual)[order])
    ranks_of = {(launch.launch, launch.ranks) for launch in launches}
    found = np.zeros((len(rows), len(REFERENCES)))
    if not courses or not ranks_of:
        return found
    stops = {(end.case_id, end.started_unix_s): end.elapsed_s for end in ends}
    of_launch = {
        round(look.unix_s, 6): launch.ranks for launch in launches for look in launch.looks
    }
    moments = np.array(sorted(of_launch))
    number = rows.numbered("case_id", "started_unix_s")
    _, first, group = np.unique(number, return_index=True, return_inverse=True)
    cases, starts = rows.table["case_id"].to_pylist(), rows["started_unix_s"]
    values = np.zeros((len(first), len(REFERENCES)))
    for place, row in enumerate(first):
        start = float(starts[row])
        stop = start + stops.get((cases[row], start), 0.0)
        at = min(int(np.searchsorted(moments, start)), len(moments) - 1)
        values[place] = courses[of_launch[float(moments[at])]].between(start, stop)
    _, case = np.unique([cases[row] for row in first], return_inverse=True)
    known = ~np.isnan(values)
    for reference in range(len(REFERENCES)):
        here, of = known[:, reference], np.where(known, values, 0.0)[:, reference]
        usual = np.bincount(case, weights=of) / np.maximum(np.bincount(case, weights=here), 1)
        values[:, reference] -= usual[case]
    found = np.nan_to_num(values)[group]
    return found


def _law(of: SpeedOf, rows: Samples, which: Integers, shifts: Floats, seed: int) -> SpeedLaw | None:
    """The law of these rows; None of too few, or where no exponent is over 0."""
    part = rows.where(np.isin(np.arange(len(rows)), which))
    y, x, when = _changes(part, shifts[which])
    stretch = np.floor(when / TOGETHER_S)
    labels, stretch = np.unique(stretch, return_inverse=True)
    if len(y) < FEWEST_TIMES or len(labels) < FEWEST_STRETCHES:
        return None
    generator = np.random.default_rng(seed)
    followed = map(REFERENCES.index, FOLLOWED[of])
    used = [place for place in followed if np.ptp(x[:, place]) > 0]
    while used:
        value = _bounded(x[:, used], y)
        drawn = []
        for _ in range(DRAWS):
            weight = np.bincount(
                generator.integers(0, len(labels), len(labels)), minlength=len(labels)
            )
            root = np.sqrt(weight[stretch])
            drawn.append(_bounded(x[:, used] * root[:, None], y * root))
        low, high = np.quantile(drawn, [0.025, 0.975], axis=0)
        weakest = int(np.argmin(low))
        if low[weakest] > NO_EXPONENT:
            break
        del used[weakest]
    if not used:
        return None
    exponents = {
        REFERENCES[place]: Estimate.around(float(v), float(a), float(b))
        for place, v, a, b in zip(used, value, low, high, strict=True)
    }
    return SpeedLaw(of=of, exponents=exponents, n=len(y))


def _bounded(x: Floats, y: Floats) -> Floats:
    """Exponents [k] from 0 to 1 with the least squares of y [n] - x [n, k] exponents."""
    found: Floats = lsq_linear(x, y, (0.0, 1.0)).x
    return found


def _changes(rows: Samples, shifts: Floats) -> tuple[Floats, Floats, Floats]:
    """Of the cases in each launch, less the means over launches: log medians [n], references [n, k].

    And when they were measured [n], Unix time, s.
    """
    number = rows.numbered("case_id", "operation", "key", "launch")
    _, first, group = np.unique(number, return_index=True, return_inverse=True)
    order = np.lexsort((rows["seconds"], group))
    ends = np.cumsum(np.bincount(group))
    starts = ends - np.bincount(group)
    middle = rows["seconds"][order][(starts + ends) // 2]
    of = rows.where(np.isin(np.arange(len(rows)), first))
    of_case = of.numbered("case_id", "operation", "key")
    place = np.argsort(np.argsort(first))
    _, case = np.unique(of_case[place], return_inverse=True)
    count = np.bincount(case)
    kept = (count[case] > 1) & (middle > 0)
    y = np.log(np.where(middle > 0, middle, 1.0))
    x = shifts[first]

    def centred(values: Floats) -> Floats:
        sums = np.bincount(case[kept], weights=values[kept], minlength=len(count))
        means = sums / np.maximum(np.bincount(case[kept], minlength=len(count)), 1)
        result: Floats = (values - means[case])[kept]
        return result

    columns = np.column_stack([centred(column) for column in x.T])
    changes, when = centred(y), rows["started_unix_s"][first][kept]
    usual = np.abs(changes) < MOST_CHANGE
    return changes[usual], columns[usual], when[usual]
