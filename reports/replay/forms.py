"""Forms that fit published runs: levels shared or per strategy, growth in p.

Compute is T B/p1 (share + s (1 - share)), where s does not scale; communication is
c V(p) (1 + g log2 nodes) + a steps(p). s and c (contention over the published beta) are of a series
(model and strategy; c also of where its ring lies) or pooled over the models of a strategy; g (late
ranks and trees grow so) or a (a ring's start-ups) is shared by all, by scaling, by strategy, or of
each series. A form has at most one growth.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeVar

import numpy as np
from scipy.optimize import minimize_scalar

from calib.reports.replay.published_tables import PublishedPoint
from calib.reports.replay.shapes import PointShape

Volume = Literal["ring", "endless ring"]
FactorGrowth = Literal["none", "published alpha", "log", "alpha"]
FactorPool = Literal["all", "scaling", "strategy", "series"]
FactorLevels = Literal["series", "strategy"]
K = TypeVar("K", bound=Hashable)
LEAST = 1e-9  # of a level, where start-ups alone are more than what was measured
MOST_LOG_GROWTH = (
    1.0  # a doubling of the nodes that doubles communication is no tree and no late rank
)
MOST_ALPHA_S = 1e-2


@dataclass(frozen=True)
class PublishedRun:
    """A published point and its shape."""

    point: PublishedPoint
    shape: PointShape

    @property
    def series(self) -> tuple[str, str]:
        """Model and strategy."""
        return self.point.model, self.point.strategy

    @property
    def measured(self) -> float | None:
        """The total; None where there is none, or none that took time."""
        return self.point.measured.get("total") or None

    @property
    def parts(self) -> tuple[float, float] | None:
        """Compute and communication; None where the row lacks one."""
        found = self.point.measured
        return (found["comp"], found["comm"]) if {"comp", "comm"} <= found.keys() else None


@dataclass(frozen=True)
class CandidateForm:
    """One candidate."""

    levels: FactorLevels
    volume: Volume
    growth: FactorGrowth
    pool: FactorPool = "all"

    @property
    def name(self) -> str:
        """For people."""
        of = {
            "none": "no growth",
            "published alpha": "the published alpha",
            "log": "log2(nodes)",
            "alpha": "a free alpha",
        }[self.growth]
        pool = {
            "all": "one for all",
            "scaling": "one for weak, one for strong scaling",
            "strategy": "one per strategy",
            "series": "one per series",
        }[self.pool]
        free = f" ({pool})" if self.growth in ("log", "alpha") else ""
        return f"levels per {self.levels}, {self.volume}, {of}{free}"

    def pool_of(self, run: PublishedRun) -> Hashable:
        """Which growth parameter is a run's."""
        return {
            "all": "all runs",
            "scaling": "strong scaling" if run.shape.strong else "weak scaling",
            "strategy": run.point.strategy,
            "series": " ".join(run.series),
        }[self.pool]

    def level_of(self, run: PublishedRun) -> Hashable:
        """Whose levels are a run's."""
        return run.series if self.levels == "series" else run.point.strategy


def candidates(published_alpha: bool) -> list[CandidateForm]:
    """All forms, few parameters first."""
    rings: tuple[Volume, Volume] = ("ring", "endless ring")
    plain = [CandidateForm("series", v, "none") for v in rings]
    if published_alpha:
        plain.append(CandidateForm("series", "ring", "published alpha"))
    pools: tuple[FactorPool, ...] = ("all", "scaling", "strategy", "series")
    logs = [CandidateForm("series", v, "log", pool) for pool in pools for v in rings]
    alphas = [CandidateForm("series", "ring", "alpha", pool) for pool in pools]
    pooled = [
        CandidateForm("strategy", "ring", "none"),
        CandidateForm("strategy", "endless ring", "log", "scaling"),
    ]
    return [*pooled, *plain, *logs, *alphas]


@dataclass(frozen=True)
class PredictedRun:
    """Seconds of a run; `own`: from runs of its series; `known_p`: the largest p that they had."""

    compute: float | None
    communication: float | None
    seconds: float
    own: bool
    known_p: int
    notes: tuple[str, ...] = ()


@dataclass
class Fitted:
    """A form with its parameters. Levels are relative to the shapes."""

    form: CandidateForm
    growths: dict[Hashable, float] = field(default_factory=dict)
    # level -> s, or a factor where nothing can be apart from what scales
    unscaled: dict[Hashable, float] = field(default_factory=dict)
    factors: dict[Hashable, float] = field(default_factory=dict)
    contention: dict[tuple[Hashable, str], float] = field(default_factory=dict)
    whole: dict[tuple[Hashable, bool], float] = field(default_factory=dict)
    known: dict[Hashable, list[PublishedRun]] = field(default_factory=dict)

    @property
    def parameters(self) -> int:
        """How many numbers were fitted, without medians that stand in for other models."""
        of_form = [
            level
            for level in (
                *self.unscaled,
                *self.factors,
                *(k for k, _ in self.contention),
                *(k for k, _ in self.whole),
            )
            if isinstance(level, tuple) == (self.form.levels == "series")
        ]
        return len(self.growths) + len(of_form)

    def predict(self, run: PublishedRun) -> PredictedRun | None:
        """The prediction of a run; None where nothing is known of its series or strategy."""
        own = self.form.levels == "series" and run.series in self.known
        level: Hashable = run.series if own else run.point.strategy
        mine = self.known.get(level)
        if not mine or (run.shape.why and not (own and mine[0].shape.why)):
            return None
        if own and mine[0].shape.why and not run.shape.why:
            return None
        notes = [f"empirical: {run.shape.why}"] if run.shape.why else []
        if not own:
            notes.append(f"pooled over the runs of strategy {run.point.strategy}")
        there = [r for r in mine if r.shape.scope == run.shape.scope]
        known_p = max(r.point.p for r in there or mine)
        compute, place = self._compute(level, run.shape), (level, run.shape.scope)
        if own and compute is not None and place not in self.contention:
            place, own = (run.point.strategy, run.shape.scope), False
            notes.append(f"its contention {run.shape.scope} is that of other models")
        if compute is not None and place in self.contention:
            growth, alpha = growing(
                self.form, run.shape, self.growths.get(self.form.pool_of(run), 0.0)
            )
            sent = self.contention[place] * volume(self.form, run.shape) * growth + alpha
            return PredictedRun(compute, sent, compute + sent, own, known_p, tuple(notes))
        factor = self.whole.get((level, bool(run.shape.why)))
        if factor is None:
            return None
        notes = [*notes[: int(bool(run.shape.why))], "from totals alone"]
        own = level == run.series
        return PredictedRun(None, None, factor * run.shape.whole_s, own, known_p, tuple(notes))

    def _compute(self, level: Hashable, shape: PointShape) -> float | None:
        if level in self.unscaled and shape.share < 1.0:
            return shape.group_s * (shape.share + self.unscaled[level] * (1.0 - shape.share))
        if level in self.factors:
            return self.factors[level] * shape.group_s * shape.share
        return None


def volume(form: CandidateForm, shape: PointShape) -> float:
    """Seconds at published prices."""
    return shape.volume_s(form.volume == "endless ring")


def growing(form: CandidateForm, shape: PointShape, g: float) -> tuple[float, float]:
    """(what multiplies the volume, seconds that are added) under a growth parameter."""
    if form.growth == "log":
        return 1.0 + g * shape.doublings, 0.0
    if form.growth == "alpha":
        return 1.0, g * shape.steps
    return 1.0, (shape.startups_s or 0.0) if form.growth == "published alpha" else 0.0


def fit(form: CandidateForm, runs: Sequence[PublishedRun]) -> Fitted:
    """The form's parameters from these runs; those without a measured total tell nothing.

    Of a series, some of whose runs have equations, the others are not used: levels are of one kind.
    """
    equations = {run.series for run in runs if not run.shape.why and run.measured is not None}
    used = [
        run
        for run in runs
        if run.measured is not None and (not run.shape.why or run.series not in equations)
    ]
    fitted = Fitted(form)
    for run in used:
        fitted.known.setdefault(run.series, []).append(run)
        fitted.known.setdefault(run.point.strategy, []).append(run)
    apart = [run for run in used if run.parts is not None]
    sending = _grouped(
        [r for r in apart if volume(form, r.shape) > 0], lambda r: (form.level_of(r), r.shape.scope)
    )
    if form.growth in ("log", "alpha"):
        for pool, groups in _pools(form, sending).items():
            fitted.growths[pool] = _least_squares(form, groups)
    for pooled in (False, True):
        _levels(fitted, apart, used, pooled)
    return fitted


def _levels(
    fitted: Fitted, apart: Sequence[PublishedRun], used: Sequence[PublishedRun], pooled: bool
) -> None:
    """s, contention and factors; `pooled` over the series of a strategy, each of which counts once."""
    form = fitted.form
    if not pooled and form.levels == "strategy":
        return

    def level(run: PublishedRun) -> Hashable:
        return run.point.strategy if pooled else run.series

    # of a model without equations a level says nothing of another model
    apart = [run for run in apart if not (pooled and run.shape.why)]
    for key, group in _grouped(apart, level).items():
        splits = [run for run in group if run.shape.share < 1.0]
        s = _typical(splits, _unscaled) if splits else -1.0
        if s >= 0.0:
            fitted.unscaled[key] = s
        else:
            fitted.factors[key] = _typical(group, _factor)
    sending = [run for run in apart if volume(form, run.shape) > 0]
    for place, group in _grouped(sending, lambda r: (level(r), r.shape.scope)).items():
        fitted.contention[place] = _typical(group, lambda r: _contention(fitted, r))
    for run_kind, group in _grouped(used, lambda r: (level(r), bool(r.shape.why))).items():
        if not (pooled and run_kind[1]) and any(run.parts is None for run in group):
            fitted.whole[run_kind] = _typical(
                group, lambda r: (r.measured or 0.0) / r.shape.whole_s
            )


def _typical(runs: Sequence[PublishedRun], value: Callable[[PublishedRun], float]) -> float:
    """The median over series of each series' mean."""
    series = _grouped(runs, lambda run: run.series)
    means = [float(np.mean([value(run) for run in group])) for group in series.values()]
    return float(np.median(means))


def _unscaled(run: PublishedRun) -> float:
    assert run.parts is not None
    return (run.parts[0] / run.shape.group_s - run.shape.share) / (1.0 - run.shape.share)


def _factor(run: PublishedRun) -> float:
    assert run.parts is not None
    return run.parts[0] / (run.shape.group_s * run.shape.share or 1.0)


def _contention(fitted: Fitted, run: PublishedRun) -> float:
    assert run.parts is not None
    g = fitted.growths.get(fitted.form.pool_of(run), 0.0)
    return _level(fitted.form, run, g)


def _level(form: CandidateForm, run: PublishedRun, g: float) -> float:
    assert run.parts is not None
    factor, added = growing(form, run.shape, g)
    return max(run.parts[1] - added, LEAST) / (volume(form, run.shape) * factor)


def _pools(
    form: CandidateForm, sending: Mapping[tuple[Hashable, str], list[PublishedRun]]
) -> dict[Hashable, list[list[PublishedRun]]]:
    """For each growth parameter the groups that determine it: those with two p or more."""
    found: dict[Hashable, list[list[PublishedRun]]] = defaultdict(list)
    for group in sending.values():
        for pool, part in _grouped(group, form.pool_of).items():
            for runs in _grouped(part, lambda run: run.series).values():
                if len({run.point.p for run in runs}) > 1:
                    found[pool].append(runs)
    return found


def _least_squares(form: CandidateForm, groups: Sequence[Sequence[PublishedRun]]) -> float:
    """The growth under which each group's own level leaves the least, relative to the totals."""

    def loss(g: float) -> float:
        total = 0.0
        for group in groups:
            c = float(np.mean([_level(form, run, g) for run in group]))
            for run in group:
                factor, added = growing(form, run.shape, g)
                assert run.parts is not None
                off = c * volume(form, run.shape) * factor + added - run.parts[1]
                total += (off / (run.measured or math.inf)) ** 2
        return total

    most = MOST_LOG_GROWTH if form.growth == "log" else MOST_ALPHA_S
    grid = np.concatenate([[0.0], most * np.geomspace(1e-4, 1.0, 41)])
    losses = [loss(g) for g in grid]
    best = int(np.argmin(losses))
    if best == 0 and losses[1] >= losses[0]:
        return 0.0
    ends = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
    found = minimize_scalar(loss, bounds=ends, method="bounded", options={"xatol": most * 1e-6})
    return float(found.x)


def _grouped(
    runs: Sequence[PublishedRun], key: Callable[[PublishedRun], K]
) -> dict[K, list[PublishedRun]]:
    found: dict[K, list[PublishedRun]] = defaultdict(list)
    for run in runs:
        found[key(run)].append(run)
    return dict(found)
