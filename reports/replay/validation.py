"""Cross-validation of the forms: how far each misses runs it was not fitted on.

The folds are those of the question, larger p from smaller: (a) the largest p of every series left
out; (b) of one model at a time, its largest p from those a quarter of it or smaller; (c) the same of
all models at once. Leaving out a whole model says how well the other models' runs stand for it. A form
is chosen by the mean over strategies of the mean error; of those within one standard error of the
best, the one with the fewest parameters (Breiman et al. 1984, 3.4.3).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from calib.reports.replay.forms import CandidateForm, Fitted, PredictedRun, PublishedRun, fit

COVERAGE = 0.9
FAR = 4  # (b) and (c): known are p up to a quarter of what is predicted
FAR_DOUBLINGS = 2.0
NEGLIGIBLE = 1e-3  # of a mean error, between two forms
NEAR_ERRORS = 2.0  # standard errors within which a form may be as right as the best
UNKNOWN_FACTOR = 2.0  # either way, where no run could be left out to see the error
ValidatedRun = tuple[PublishedRun, PredictedRun, str]  # and the fold's letter


@dataclass(frozen=True)
class Scored:
    """A candidate: mean error over strategies, its standard error from the best's, parameters."""

    form: CandidateForm
    error: float
    behind: float
    behind_standard_error: float
    parameters: int
    pairs: list[ValidatedRun]


def distance(run: PublishedRun, predicted: PredictedRun) -> float:
    """Doublings of p from the largest that is known of its ring, at least 1."""
    return max(1.0, abs(math.log2(run.point.p / predicted.known_p)))


def missed(run: PublishedRun, predicted: PredictedRun) -> float:
    """|log(measured / predicted)|."""
    assert run.measured is not None
    return abs(math.log(run.measured / max(predicted.seconds, 1e-300)))


def largest(runs: Sequence[PublishedRun]) -> list[PublishedRun]:
    """Of every series with several p, the rows of its largest p."""
    found: dict[tuple[str, str], list[PublishedRun]] = defaultdict(list)
    for run in runs:
        if run.measured is not None:
            found[run.series].append(run)
    last = []
    for group in found.values():
        most = max(run.point.p for run in group)
        if any(run.point.p < most for run in group):
            last += [run for run in group if run.point.p == most]
    return last


def folds(
    runs: Sequence[PublishedRun],
) -> Iterator[tuple[str, list[PublishedRun], list[PublishedRun]]]:
    """(letter, known, predicted)."""
    last = largest(runs)
    away = {id(run) for run in last}
    yield "a", [run for run in runs if id(run) not in away], last
    most = {run.series: run.point.p for run in last}
    far = [run for run in last if any(_is_far(r, run) for r in runs)]

    def near(run: PublishedRun) -> bool:
        return run.series in most and run.point.p * FAR > most[run.series]

    models = sorted({run.point.model for run in far})
    letters = [("b", {model}) for model in models] if len(models) > 1 else []
    for letter, held in [*letters, ("c", set(models))]:
        wanted = [run for run in far if run.point.model in held]
        series = {run.series for run in wanted}
        known = [run for run in runs if not (run.series in series and near(run))]
        if wanted:
            yield letter, known, wanted


def _is_far(known: PublishedRun, run: PublishedRun) -> bool:
    """Whether it is known at a quarter of the p or below, in the same place."""
    same = known.series == run.series and known.shape.scope == run.shape.scope
    return same and known.measured is not None and known.point.p * FAR <= run.point.p


def pairs_of(form: CandidateForm, runs: Sequence[PublishedRun]) -> list[ValidatedRun]:
    """Runs and predictions of them, of every fold; by levels of their own if the form has any."""
    found = []
    for letter, known, wanted in folds(runs):
        fitted = fit(form, known)
        for run in wanted:
            predicted = fitted.predict(run)
            if predicted is not None and (predicted.own or form.levels == "strategy"):
                found.append((run, predicted, letter))
    return found


def strangers(form: CandidateForm, runs: Sequence[PublishedRun]) -> list[ValidatedRun]:
    """Every run of a model, predicted from the runs of the other models."""
    found = []
    for model in sorted({run.point.model for run in runs}):
        fitted = fit(form, [run for run in runs if run.point.model != model])
        for run in runs:
            predicted = fitted.predict(run) if run.point.model == model else None
            if predicted is not None and run.measured is not None:
                found.append((run, predicted, "model"))
    return found


def choose(
    forms: Sequence[CandidateForm], runs: Sequence[PublishedRun]
) -> tuple[CandidateForm, list[Scored]]:
    """The form to use, and every candidate's score, best first.

    A form is compared on the pairs that all have. Where no run can be left out, the first of the forms
    without growth is used.
    """
    found = {form: pairs_of(form, runs) for form in forms}
    most = max(map(len, found.values()))
    # pooled forms say nothing of what has no equations: such runs are not compared, or those forms
    found = {form: pairs for form, pairs in found.items() if 2 * len(pairs) >= most}
    shared = set.intersection(*(set(map(_key, pairs)) for pairs in found.values()))
    errors = {
        form: {
            _key(pair): abs(pair[1].seconds / (pair[0].measured or 1.0) - 1.0)
            for pair in pairs
            if _key(pair) in shared
        }
        for form, pairs in found.items()
    }
    if not shared:
        return _plain(forms), []
    best = min(found, key=lambda form: _mean(errors[form]))
    scored = []
    for form in found:
        behind = {key: errors[form][key] - errors[best][key] for key in shared}
        scored.append(
            Scored(
                form,
                _mean(errors[form]),
                _mean(behind),
                _standard_error(behind),
                fit(form, runs).parameters,
                found[form],
            )
        )
    scored.sort(key=lambda s: s.error)
    near = [s for s in scored if _is_near(s, 1.0)]
    order = {form: number for number, form in enumerate(forms)}

    def simplest(one: Scored) -> tuple[int, int, int]:
        """Fewest parameters first, then the smallest error, then the order of the candidates."""
        return one.parameters, round(one.error / NEGLIGIBLE), order[one.form]

    return min(near, key=simplest).form, scored


def _plain(forms: Sequence[CandidateForm]) -> CandidateForm:
    return next(form for form in forms if form.levels == "series" and form.growth == "none")


PointKey = tuple[str, str, str, int]  # fold, model, strategy, p


def _key(pair: ValidatedRun) -> PointKey:
    run, _, letter = pair
    return letter, *run.series, run.point.p


def _mean(errors: dict[PointKey, float]) -> float:
    """The mean over strategies of their mean."""
    by: dict[str, list[float]] = defaultdict(list)
    for key, error in errors.items():
        by[key[2]].append(error)
    return float(np.mean([np.mean(values) for values in by.values()]))


def _standard_error(behind: dict[PointKey, float]) -> float:
    """The standard error of that mean, leaving out one series at a time (jackknife)."""
    series = sorted({key[1:3] for key in behind})
    if len(series) < 2:
        return 0.0
    means = []
    for one in series:
        rest = {key: value for key, value in behind.items() if key[1:3] != one}
        means.append(_mean(rest))
    n = len(means)
    return math.sqrt((n - 1) / n * float(np.sum((np.array(means) - np.mean(means)) ** 2)))


@dataclass(frozen=True)
class Width:
    """Half-widths of intervals as |log|: of runs with levels of their own, and of strangers.

    `per_doubling` is for runs of which a twice smaller p is known, and grows with the root of the
    doublings, as the error of a walk in log2 p does; a stranger's on top of `stranger`. None, or a
    strategy that is none of `seen`: no run could be left out, and the interval is a factor
    UNKNOWN_FACTOR.
    """

    per_doubling: float | None
    stranger: float | None
    seen: frozenset[str] = frozenset()

    def of(self, run: PublishedRun, predicted: PredictedRun) -> float:
        """The half-width of a prediction."""
        far = math.sqrt(distance(run, predicted))
        known = math.log(UNKNOWN_FACTOR)
        own = self.per_doubling if self.per_doubling is not None else known
        if predicted.own:
            return (own if run.point.strategy in self.seen else max(own, known)) * far
        return (self.stranger if self.stranger is not None else known) + own * (far - 1.0)


def width_of(pairs: Sequence[ValidatedRun], others: Sequence[ValidatedRun]) -> Width:
    """From left-out errors: the larger quantile of near and far folds, each per doubling."""
    own = [pair for pair in pairs if pair[1].own]
    shares: dict[bool, list[float]] = {True: [], False: []}
    for run, predicted, _ in own:
        far = distance(run, predicted)
        shares[far < FAR_DOUBLINGS].append(missed(run, predicted) / math.sqrt(far))
    known = [q for q in map(_quantile, shares.values()) if q is not None]
    seen = frozenset(run.point.strategy for run, _, _ in own)
    return Width(max(known, default=None), _quantile([missed(r, p) for r, p, _ in others]), seen)


def _quantile(values: Sequence[float]) -> float | None:
    """The value that holds COVERAGE of a further one (split conformal: rank (n+1) 0.9, at most n)."""
    if not values:
        return None
    rank = min(math.ceil((len(values) + 1) * COVERAGE), len(values))
    return float(sorted(values)[rank - 1])


def coverage(pairs: Sequence[ValidatedRun]) -> float | None:
    """How many of the left-out runs lie within widths that were made of the other series' errors."""
    inside = []
    for series in sorted({run.series for run, _, _ in pairs}):
        width = width_of([pair for pair in pairs if pair[0].series != series], [])
        if width.per_doubling is not None:
            mine = [pair for pair in pairs if pair[0].series == series and pair[1].own]
            inside += [missed(run, p) <= width.of(run, p) for run, p, _ in mine]
    return float(np.mean(inside)) if inside else None


@dataclass(frozen=True)
class Calibration:
    """The chosen form fitted to all runs, the forms that validation cannot tell from it, and widths."""

    fitted: Fitted
    plain: Fitted  # of each series by itself: for runs of which a pooled form says nothing
    near: list[Fitted]
    width: Width
    scored: list[Scored]
    coverage: float | None

    def predict(self, run: PublishedRun) -> PredictedRun | None:
        """The prediction of a run; None where nothing is known of it."""
        return self.fitted.predict(run) or self.plain.predict(run)

    def interval(self, run: PublishedRun, predicted: PredictedRun) -> tuple[float, float]:
        """(low, high) seconds at 90%: what near forms say, wider by the left-out errors."""
        said = [predicted.seconds]
        for fitted in self.near:
            other = fitted.predict(run)
            said += [other.seconds] if other is not None and other.own == predicted.own else []
        factor = math.exp(self.width.of(run, predicted))
        return min(said) / factor, max(said) * factor


def calibrate(forms: Sequence[CandidateForm], runs: Sequence[PublishedRun]) -> Calibration:
    """Choose a form on these runs, fit it to all of them, and say how far it misses."""
    form, scored = choose(forms, runs)
    pairs = next((s.pairs for s in scored if s.form == form), pairs_of(form, runs))
    return Calibration(
        fitted=fit(form, runs),
        plain=fit(_plain(forms), runs),
        near=[fit(s.form, runs) for s in scored if s.form != form and _is_near(s, NEAR_ERRORS)],
        width=width_of(pairs, strangers(form, runs)),
        scored=scored,
        coverage=coverage(pairs),
    )


def _is_near(scored: Scored, errors: float) -> bool:
    """Whether a form is within so many standard errors of the best."""
    return scored.behind <= max(errors * scored.behind_standard_error, NEGLIGIBLE)
