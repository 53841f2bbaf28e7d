"""A searched plan as a division: layer by layer, or the stages of a pipeline."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import groupby, pairwise

from calib.foundation.division import Division
from calib.foundation.errors import InputError
from calib.oracle.layout.partitions import Configuration, why_impossible
from calib.oracle.model.spec import ModelSpec
from calib.search.plan import SearchedPlan

LAYERWISE = "layerwise"
TRAINED = (LAYERWISE, "pipeline")  # spaces of plans that training can run
RankTuple = tuple[int, ...]
MOST_RUNS = 12  # runs of equal layers that a layout lists one by one
DIMENSIONS = ("sample", "channel", "height", "width", "depth", "input")


@dataclass(frozen=True)
class LayerwiseDivision(Division):
    """One Configuration for each layer, in the model's order; the whole batch is one replica.

    `strategy` is layerwise, which is not in the registry (calib.foundation.division.STRATEGIES).
    """

    configurations: tuple[Configuration, ...] = field(kw_only=True)

    @property
    def faults(self) -> list[str]:
        """Configurations with more parts than ranks; `why_not_cut` knows the model."""
        most = max((of.parts for of in self.configurations), default=1)
        return [f"a layer in {most} parts needs more than p = {self.p}"] if most > self.p else []

    @property
    def sample_degrees(self) -> int:
        """The smallest batch that all configurations divide."""
        return math.lcm(*(of.sample for of in self.configurations))

    @property
    def layout(self) -> str:
        """The configurations in the order of the layers, runs of equal ones counted.

        Where there are many runs, the number of layers of each configuration, most frequent first.
        """
        runs = [(str(of), len(list(same))) for of, same in groupby(self.configurations)]
        if len(runs) > MOST_RUNS:
            counts = Counter(map(str, self.configurations)).most_common()
            words = ", ".join(f"{count} x {name}" for name, count in counts)
            return f"{words}, in {len(runs)} runs of layers"
        return "; ".join(f"{count} x {words}" if count > 1 else words for words, count in runs)


def why_not_cut(spec: ModelSpec, division: LayerwiseDivision) -> list[str]:
    """Why layers cannot be cut as planned, with their names."""
    if len(division.configurations) != len(spec.layers):
        return [
            f"a plan of {len(division.configurations)} layers does not fit {spec.name}, which has "
            f"{len(spec.layers)}"
        ]
    found = []
    for layer, of in zip(spec.layers, division.configurations, strict=True):
        why = why_impossible(layer.shape, of, division.batch)
        if not why and of.parts > division.p:
            why = f"{of.parts} parts are more than the {division.p} devices"
        if why:
            found.append(f"{layer.name} cannot be cut by {of}: {why}")
    return found


def division_of(plan: SearchedPlan, spec: ModelSpec) -> Division:
    """How training divides `spec` under a plan.

    Raises InputError for a space that training cannot run, for layers that are not the model's, and for
    impossible stages. What cannot be trained of the division: calib.training.allowed.
    """
    if plan.space not in TRAINED:
        raise InputError(
            f"a plan of the space {plan.space} cannot be trained; plans of {' and '.join(TRAINED)} can"
        )
    if plan.batch is None:
        raise InputError("the plan does not say its batch, so it cannot be trained")
    if plan.space == "pipeline":
        return _pipeline(plan, spec, plan.batch)
    names, expected = [layer.name for layer in plan.layers], [x.name for x in spec.layers]
    if names != expected:
        pairs = zip(names, expected, strict=False)
        mine, theirs = next((p for p in pairs if p[0] != p[1]), (len(names), len(expected)))
        words = f"{mine!r} where {spec.name} has {theirs!r}"
        raise InputError(f"the plan's layers are not those of {spec.name}: {words}")
    configurations = tuple(_configuration(layer.name, layer.degrees) for layer in plan.layers)
    return LayerwiseDivision(LAYERWISE, plan.p, plan.batch, configurations=configurations)


def _configuration(name: str, degrees: Mapping[str, int]) -> Configuration:
    for dimension, degree in degrees.items():
        if dimension not in DIMENSIONS:
            raise InputError(
                f"{name}: unknown dimension {dimension!r}; known: {', '.join(DIMENSIONS)}"
            )
        if degree < 1:
            raise InputError(f"{name}: {dimension} in {degree} parts")
    return Configuration.of(dict(degrees))


def _pipeline(plan: SearchedPlan, spec: ModelSpec, batch: int) -> Division:
    """The stages of a plan, each on one device."""
    stages = plan.stages
    if plan.details.get("recompute") == "yes":
        raise InputError("a pipeline that runs forwards again (recompute=yes) cannot be trained")
    if any(stage.replicas != 1 or stage.inner for stage in stages):
        raise InputError(
            "a pipeline with replicated stages cannot be trained; one rank a stage can"
        )
    borders = [(one.stop, other.first) for one, other in pairwise(stages)]
    ends = (stages[0].first, stages[-1].stop) if stages else (0, 0)
    if ends != (0, len(spec.layers)) or any(stop != first for stop, first in borders):
        raise InputError(f"the plan's stages are not the {len(spec.layers)} layers of {spec.name}")
    if len(stages) != plan.p:
        raise InputError(f"{len(stages)} stages on {plan.p} devices: training has one on each")
    schedule = plan.details.get("schedule", "gpipe").lower()
    if schedule not in ("gpipe", "1f1b"):
        raise InputError(f"training has no schedule {schedule!r}; it has gpipe and 1f1b")
    text = plan.details.get("microbatches", "1")
    if not (text.isascii() and text.isdecimal() and int(text[:9]) > 0 and len(text) < 9):
        raise InputError(f"microbatches={text} is not a whole number from 1 on")
    return Division(
        "pipeline",
        plan.p,
        batch,
        segments=int(text),
        schedule="1f1b" if schedule == "1f1b" else "gpipe",
        boundaries=tuple(stage.first for stage in stages[1:]),
    )


def sharers(of: Configuration) -> list[RankTuple]:
    """The groups of ranks with the same weights of a layer: the same channels and inputs."""
    groups: dict[tuple[int, int], list[int]] = {}
    for part in range(of.parts):
        place = of.place(part)
        groups.setdefault((place.channel, place.input), []).append(part)
    return [tuple(ranks) for ranks in groups.values()]


def any_shared(configurations: Iterable[Configuration]) -> bool:
    """Whether weights of some layer are on several ranks."""
    return any(len(ranks) > 1 for of in configurations for ranks in sharers(of))


def summers(of: Configuration) -> list[RankTuple]:
    """The groups of ranks with terms of the same output."""
    if of.input == 1:
        return []
    return [tuple(range(first, first + of.input)) for first in range(0, of.parts, of.input)]
