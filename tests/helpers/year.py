"""A year of nights as a plan: what is predicted, what is measured, what fails, and what has to be said.

All of it is arithmetic on a seeded table [night, point, phase]; nothing here uses the code that is
tested with it. `tests/helpers/year_runs.py` makes the records and files that say the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property, lru_cache
from math import fsum, log
from typing import TYPE_CHECKING, Any

import numpy as np

from calib.foundation.division import STRATEGIES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

NIGHTS, SEED = 365, 7
FIRST_NIGHT = datetime(2025, 11, 22, 2, 0, tzinfo=UTC)
# of a night, and of a point or a check in it: together 0.7%
NIGHT_NOISE = POINT_NOISE = 0.005
PHASES = ("forward", "backward", "halo", "layerwise", "pack", "exchange", "update")
SHARED = ("halo", "layerwise", "exchange")
# as the series of a report name them
GROUPS = {
    "forward and backward": ("forward", "backward"),
    "communication": SHARED,
    "packing and update": ("pack", "update"),
}
# seven timed iterations: the deviations of phases without waiting, and of those with. Of three pairs,
# one is the other's opposite in both, so that as many totals lie below the middle one as above, and
# every median is that of the middle iteration. One is further out: no mean is.
SPREAD = 0.004
APART = SPREAD * np.array([-3, -2, -1, 0, 1, 2, 5 * 3])
TOGETHER = SPREAD * np.array([2, -1, -3, 0, 3, 1, 5 * -2])

MODELS = {"vgg16-mini": 0.08, "resnet50-mini": 0.05, "cosmoflow-mini": 0.12}  # seconds on one rank
# (strategy, p, what else the header of its run says)
LAYOUTS: tuple[tuple[str, int, dict[str, Any]], ...] = (
    ("serial", 1, {}),
    ("data", 1, {}),
    ("data", 2, {}),
    ("data", 4, {}),
    ("data", 4, {"overlap": True, "exchange": "ddp"}),
    ("data", 4, {"sharded_optimizer": True}),
    ("data", 8, {"oversubscribed": True}),
    ("spatial", 2, {"grid": (2,)}),
    ("spatial", 4, {"grid": (2, 2)}),
    ("pipeline", 2, {"segments": 4}),
    ("pipeline", 4, {"segments": 4}),
    ("pipeline", 4, {"segments": 4, "schedule": "1f1b"}),
    ("filter", 2, {}),
    ("filter", 4, {}),
    ("channel", 2, {}),
    ("channel", 4, {}),
    ("data+filter", 4, {"inner": 2}),
    ("data+filter", 8, {"inner": 4, "oversubscribed": True}),
    ("data+spatial", 4, {"inner": 2, "grid": (2,)}),
    ("data+spatial", 4, {"inner": 2, "grid": (2,), "gradients": "all"}),
)
# of an iteration, in the order of PHASES
SHARES = {
    "serial": (0.35, 0.55, 0, 0, 0, 0, 0.10),
    "data": (0.30, 0.45, 0, 0, 0.05, 0.15, 0.05),
    "spatial": (0.28, 0.42, 0.10, 0.03, 0.03, 0.10, 0.04),
    "pipeline": (0.33, 0.50, 0, 0.12, 0, 0, 0.05),
    "filter": (0.25, 0.40, 0, 0.26, 0.05, 0, 0.04),
    "channel": (0.24, 0.38, 0, 0.29, 0.05, 0, 0.04),
    "data+filter": (0.25, 0.38, 0, 0.19, 0.06, 0.08, 0.04),
    "data+spatial": (0.27, 0.40, 0.10, 0.05, 0.03, 0.11, 0.04),
}
# (kind, what, case, seconds by the parameter file)
CHECKS: tuple[tuple[str, str, str, float], ...] = tuple(
    ("network", f"{operation}, torch_mpi, node, p={p}", case, seconds * p)
    for operation, p in (("allreduce", 2), ("allreduce", 4), ("allgather", 4), ("send", 2))
    for case, seconds in (("64 KiB", 2e-5), ("1 MiB", 2e-4), ("4 MiB", 8e-4))
) + tuple(
    (kind, what, case, seconds)
    for kind, what in (
        ("kernels", "conv layers, p=4"),
        ("kernels", "linear layers, p=4"),
        ("memory", "pack, p=4"),
    )
    for case, seconds in (("first", 1e-3), ("second", 4e-3), ("third", 9e-3))
)


@dataclass(frozen=True)
class Change:
    """From `night` on (and before `until`), `phases` and `checks` take `factor` of the time.

    With `predicted`, what is replaced is the parameter file: phases are predicted so.
    """

    of: str
    night: int
    factor: float
    phases: tuple[str, ...]
    checks: str
    until: int = NIGHTS
    predicted: bool = False


CHANGES = (
    Change("oracle", 62, 0.94, ("forward", "backward"), "nothing", predicted=True),
    Change("network", 130, 1.08, ("exchange",), "allreduce"),
    Change("kernels", 196, 1.05, ("forward", "backward"), "layers"),
    Change("memory", 258, 1.10, ("pack",), "pack", until=310),
)
REPLACED, SLOWER_NETWORK, SLOWER_KERNELS, SLOWER_COPIES = CHANGES
ACCEPTED = SLOWER_NETWORK  # by somebody who looked at it
# what of the software changes on a night: nothing comes of the first one
VERSIONS = {"python": "3.11.7", "numpy": "2.4.5", "torch": "2.12.0"}
DRIVER = "550.10"
UPDATES = {100: {"numpy": "2.4.6"}, SLOWER_KERNELS.night: {"torch": "2.13.0"}}
DRIVERS = {SLOWER_KERNELS.night: "560.35"}
# whole nights without a run directory: single ones, and a week before the copies become slow
GAPS = (20, 101, 177, *range(250, 257), 333)
# a whole night, by a factor; single points (night, point) by a factor
BAD_NIGHTS = {40: 1.3, 215: 1.3}
BAD_POINTS = {(85, 7): 1.5, (120, 31): 1.5, (281, 3): 1.5}
# a node that was down: nothing on more than two ranks
NODE_DOWN = 145
ABSENT, KILLED, WRONG, STRANGER, SCORED = "absent", "killed", "wrong", "stranger", "scored"
# beside 1% absent and 0.5% killed: (night, point)
WRONG_GRADIENTS = ((30, 5), (31, 5), (220, 44))
OF_ANOTHER_MACHINE = ((77, 12),)
MEMORY_ERROR = 0.04


@dataclass(frozen=True)
class Point:
    """One of the sixty trainings of a night."""

    model: str
    strategy: str
    p: int
    more: dict[str, Any] = field(default_factory=dict, hash=False)

    @property
    def oversubscribed(self) -> bool:
        return bool(self.more.get("oversubscribed", False))

    @property
    def file(self) -> str:
        """Its name in the folder of trainings."""
        marks = [f"{key}-{value}" for key, value in self.more.items()]
        text = "-".join([self.model, self.strategy, f"p{self.p}", *marks])
        return "".join(c if c.isalnum() or c in "+-" else "_" for c in text) + ".jsonl"


# in the order of their files, in which a report reads them
POINTS = tuple(
    sorted(
        (Point(model, strategy, p, more) for model in MODELS for strategy, p, more in LAYOUTS),
        key=lambda point: point.file,
    )
)
NUMBER = len(POINTS)
TRAINED = tuple(dict.fromkeys(strategy for strategy, _, _ in LAYOUTS))
assert NUMBER == 60 and set(TRAINED) <= set(STRATEGIES)


@dataclass(frozen=True)
class Expected:
    """What a night's summary must say, of the points that count."""

    points: int
    oversubscribed: int
    strategy_means: dict[str, float]
    mean_of_strategy_means: float
    mean_over_points: float
    worst: tuple[int, float]  # which of POINTS, and its accuracy
    coverage: float


@dataclass(frozen=True)
class Year:
    """Seconds [night, point, phase] and [night, check]; margins [point]; states [night][point].

    `normal` is what would be measured without any noise.
    """

    predicted: Floats
    normal: Floats
    measured: Floats
    margins: Floats
    checks: Floats
    peaks: NDArray[np.int64]
    states: Sequence[Sequence[str]]

    @property
    def nights(self) -> list[int]:
        """Those that have a run directory."""
        return [night for night in range(NIGHTS) if night not in GAPS]

    @cached_property
    def accuracies(self) -> Floats:
        """[night, point], whatever became of the run."""
        predicted, measured = self.predicted.sum(axis=2), self.measured.sum(axis=2)
        result: Floats = 1 - np.abs(predicted - measured) / measured
        return result

    @cached_property
    def phase_accuracies(self) -> Floats:
        """[night, point, phase]; NaN where a phase takes no time."""
        with np.errstate(invalid="ignore"):
            result: Floats = 1 - np.abs(self.predicted - self.measured) / self.measured
        return result

    @cached_property
    def intervals(self) -> tuple[Floats, Floats]:
        """(low, high) of the median total [night, point], in seconds.

        Of seven values the 95% interval is from the least to the largest: P(none below) = 1/128.
        """
        deviations, median = self._deviations, self.measured.sum(axis=2)
        return median + deviations[0], median + deviations[-1]

    @cached_property
    def quartile_spreads(self) -> Floats:
        """(q75 - q25) / median [night, point]: of seven in order, q25 is between the 2nd and 3rd."""
        of = self._deviations
        result: Floats = (of[4] + of[5] - of[1] - of[2]) / 2 / self.measured.sum(axis=2)
        return result

    @cached_property
    def _deviations(self) -> Floats:
        """Of the seven iterations from their median, in seconds, rising: [7, night, point]."""
        together = np.isin(PHASES, SHARED)
        waits = self.measured[:, :, together].sum(axis=2)
        rest = self.measured[:, :, ~together].sum(axis=2)
        result: Floats = np.sort(
            [a * rest + b * waits for a, b in zip(APART, TOGETHER, strict=True)], axis=0
        )
        return result

    @cached_property
    def covered(self) -> NDArray[np.bool_]:
        """Whether the measured median lies in the predicted interval [night, point]."""
        predicted, measured = self.predicted.sum(axis=2), self.measured.sum(axis=2)
        result: NDArray[np.bool_] = np.abs(measured - predicted) <= self.margins * predicted
        return result

    def scored(self, night: int) -> list[int]:
        """Which of POINTS have a score that night."""
        return [i for i, state in enumerate(self.states[night]) if state == SCORED]

    def missing(self, night: int) -> dict[int, str]:
        """Which have none, and what became of them."""
        return {i: state for i, state in enumerate(self.states[night]) if state != SCORED}

    def summary(self, night: int) -> Expected:
        """The means of that night."""
        scored = self.scored(night)
        values = {
            i: float(self.accuracies[night, i]) for i in scored if not POINTS[i].oversubscribed
        }
        of: dict[str, list[float]] = {}
        for i, value in values.items():
            of.setdefault(POINTS[i].strategy, []).append(value)
        means = {strategy: fsum(each) / len(each) for strategy, each in of.items()}
        worst = min(values, key=values.__getitem__)
        return Expected(
            points=len(values),
            oversubscribed=len(scored) - len(values),
            strategy_means=means,
            mean_of_strategy_means=fsum(means.values()) / len(means),
            mean_over_points=fsum(values.values()) / len(values),
            worst=(worst, values[worst]),
            coverage=float(np.mean([self.covered[night, i] for i in values])),
        )

    def level(self, strategy: str, phases: Sequence[str], of: str = "measured") -> Floats:
        """ln(seconds) of phases [night] without noise, the mean over a strategy's points that count.

        Of those that spend time in them; `of` "predicted", or "accuracy" for measured / predicted.
        """
        inside = np.isin(PHASES, phases)
        points = [
            i for i, x in enumerate(POINTS) if x.strategy == strategy and not x.oversubscribed
        ]
        measured, predicted = (
            x[:, points][:, :, inside].sum(axis=2) for x in (self.normal, self.predicted)
        )
        seconds = {"measured": measured, "predicted": predicted}.get(of, measured / predicted)
        result: Floats = np.log(seconds[:, measured[0] > 0]).mean(axis=1)
        return result

    def steps(self) -> dict[str, dict[int, float]]:
        """For each series that a report judges: night -> relative change; nothing else changes."""
        levels: dict[str, Floats] = {}
        for strategy in TRAINED:
            levels[f"accuracy of training, {strategy}"] = self.level(strategy, PHASES, "accuracy")
            levels[f"predicted time, {strategy}"] = self.level(strategy, PHASES, "predicted")
            levels[f"peak memory of training, {strategy}"] = np.zeros(NIGHTS)
            for name, phases in GROUPS.items():
                if name != "communication" or strategy != "serial":
                    levels[f"{name} in training, {strategy}"] = self.level(strategy, phases)
        for _, what, _, _ in CHECKS:
            levels[what] = np.log([check_factor(night, what) for night in range(NIGHTS)])
        return {name: _steps(values) for name, values in levels.items()}


def _steps(values: Floats) -> dict[int, float]:
    changes = np.expm1(np.diff(values))
    return {int(at) + 1: float(changes[at]) for at in np.flatnonzero(np.abs(changes) > 1e-9)}


def started(night: int, point: int | None = None) -> str:
    """When a night began, or a training of it. UTC, ISO 8601."""
    minutes = 0 if point is None else 1 + point
    return (FIRST_NIGHT + timedelta(days=night, minutes=minutes)).isoformat()


def factors(night: int, phase: str, predicted: bool = False) -> float:
    """What the changes make of a phase on a night."""
    result = 1.0
    for change in CHANGES:
        if change.predicted == predicted and change.night <= night < change.until:
            result *= change.factor if phase in change.phases else 1.0
    return result


def check_factor(night: int, what: str) -> float:
    """What the changes make of a check on a night."""
    result = 1.0
    for change in CHANGES:
        if not change.predicted and change.night <= night < change.until:
            result *= change.factor if change.checks in what else 1.0
    return result


@lru_cache(maxsize=1)
def year() -> Year:
    """The year of SEED."""
    random = np.random.default_rng(SEED)
    shares = np.array([SHARES[point.strategy] for point in POINTS])
    seconds = np.array([MODELS[point.model] * (1 + 0.1 * log(point.p)) for point in POINTS])
    base = shares * seconds[:, None]
    bias = 1 + 0.06 * random.standard_normal(base.shape)  # what the oracle has wrong
    predicted = np.array(
        [
            base * [factors(night, phase, predicted=True) for phase in PHASES]
            for night in range(NIGHTS)
        ]
    )
    whole = 1 + NIGHT_NOISE * random.standard_normal(NIGHTS)
    for night, factor in BAD_NIGHTS.items():
        whole[night] *= factor
    noise = whole[:, None] * (1 + POINT_NOISE * random.standard_normal((NIGHTS, NUMBER)))
    for (night, point), factor in BAD_POINTS.items():
        noise[night, point] *= factor
    normal = np.array(
        [base * bias * [factors(night, phase) for phase in PHASES] for night in range(NIGHTS)]
    )
    measured = normal * noise[:, :, None]
    checks = np.array(
        [[of[3] * check_factor(night, of[1]) for of in CHECKS] for night in range(NIGHTS)]
    )
    checks *= 1 + 0.02 * random.standard_normal(len(CHECKS))  # what the fit has wrong
    checks *= whole[:, None] * (1 + POINT_NOISE * random.standard_normal(checks.shape))
    peaks = random.integers(2**24, 2**27, NUMBER)
    margins = 0.05 + 0.1 * random.random(NUMBER)
    return Year(predicted, normal, measured, margins, checks, peaks, _states(random))


def _states(random: np.random.Generator) -> list[list[str]]:
    drawn = random.random((NIGHTS, NUMBER))
    states = [
        [ABSENT if x < 0.01 else KILLED if x < 0.015 else SCORED for x in row] for row in drawn
    ]
    for i, point in enumerate(POINTS):
        if point.p > 2:
            states[NODE_DOWN][i] = ABSENT
    for special, cases in ((WRONG, WRONG_GRADIENTS), (STRANGER, OF_ANOTHER_MACHINE)):
        for night, i in cases:
            states[night][i] = special
    for night, i in BAD_POINTS:
        states[night][i] = SCORED  # an outlier that nobody sees is none
    return states
