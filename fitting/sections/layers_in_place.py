"""Layers timed inside a model's iterations, with caches and pages as in training.

A model in place is timed twice: phase by phase without hooks, and layer by layer with hooks
(training/in_place/iterations.py). The difference between a phase and the sum of its layers (time of the
framework between layers, less the cost of hooks) is shared equally among the layers, so that they add
up to the phase. Where hooks are not to be believed, the times of the layers alone stand in for theirs.
A layer without a module of its own (an addition) counts with its time alone. In
a CUDA graph layers cannot be told apart: its iterations say nothing of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from calib.fitting.estimate import of_ranks, slowest_rank
from calib.fitting.launches import NO_OTHERS, Launches
from calib.fitting.parameters.file import LayerTime
from calib.fitting.sections.compute import ZERO
from calib.foundation.execution import execution_of
from calib.foundation.layer_keys import parse
from calib.foundation.layers import Direction
from calib.foundation.records import Estimate
from calib.foundation.statistics import median
from calib.microbench.cases import InPlaceCase
from calib.microbench.records.samples import Samples

DIRECTIONS: tuple[Direction, ...] = ("forward", "backward")
# a layer is hardly less than this of its hook's time: hooks cost microseconds
LEAST_SHARE = 0.25
# a layer in place takes hardly more than this many times what it takes alone, but for small ones; where
# such excess is over half of the phase, hooks gave a layer the time of others (an operation that
# writes in place cuts the chain of a backward's hooks)
MOST_TIMES, MOST_EXCESS = 4.0, 0.5


@dataclass
class LayerInPlace:
    """Seconds of one layer in one direction, use by use, and their relative intervals.

    `n` counts the repetitions behind these medians, over all uses.
    """

    seconds: list[float] = field(default_factory=list)
    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)
    n: int = 0

    def add(self, seconds: float, phase: Estimate, n: int) -> None:
        """Add one use of the layer; its relative interval is that of its phase."""
        self.seconds.append(seconds)
        self.n += n
        self.low.append(phase.low / phase.value)
        self.high.append(phase.high / phase.value)

    @property
    def estimate(self) -> Estimate:
        """The mean over its uses, so that the layers of a case still add up to its phase."""
        value = sum(self.seconds) / len(self.seconds)
        return Estimate(
            value=value,
            low=value * min(1.0, median(self.low)),
            high=value * max(1.0, median(self.high)),
        )


def with_in_place(
    times: Sequence[LayerTime],
    samples: Samples,
    cases: Mapping[str, InPlaceCase],
    among: Launches = NO_OTHERS,
) -> list[LayerTime]:
    """The same times, with those in place where some model was timed layer by layer."""
    alone = {(time.key, time.active_ranks): time for time in times}
    found: dict[tuple[str, int, Direction], LayerInPlace] = defaultdict(LayerInPlace)
    rows: dict[tuple[str, str], dict[str, Samples]] = defaultdict(dict)
    in_place = samples.where(kind="in_place")
    phases = in_place.groups("case_id", "operation")
    for (case_id, operation, key), of in in_place.groups("case_id", "operation", "key").items():
        rows[case_id, operation][key.rpartition(":")[2]] = of
    for case_id, case in sorted(cases.items()):
        for direction in DIRECTIONS:
            phase = phases.get((case_id, direction))
            layers = rows.get((case_id, f"layer_{direction}"))
            told_apart = case.layer_names and not execution_of(case.execution).cuda_graph
            if phase and layers and told_apart and case.optimizer == "momentum":
                _of_case(case, direction, phase, layers, alone, found, among)
    made = [*times, *_only_in_place(alone, found)]
    return sorted(
        (time.model_copy(update=_update(time, found)) for time in made),
        key=lambda time: (time.active_ranks, time.key),
    )


def _update(
    time: LayerTime, found: Mapping[tuple[str, int, Direction], LayerInPlace]
) -> dict[str, Estimate]:
    return {
        f"in_place_{direction}_s": found[time.key, time.active_ranks, direction].estimate
        for direction in DIRECTIONS
        if (time.key, time.active_ranks, direction) in found
    }


def _only_in_place(
    alone: Mapping[tuple[str, int], LayerTime],
    found: Mapping[tuple[str, int, Direction], LayerInPlace],
) -> list[LayerTime]:
    """Layers that were timed in place only: those times stand in for their times alone."""
    made = []
    for key, active in sorted({(key, active) for key, active, _ in found} - set(alone)):
        forward, backward = (found.get((key, active, direction)) for direction in DIRECTIONS)
        named = parse(key)
        if forward is not None and named is not None:
            made.append(
                LayerTime(
                    key=key,
                    kind=named.shape.kind,
                    batch=named.batch,
                    active_ranks=active,
                    forward_s=forward.estimate,
                    backward_s=backward.estimate if backward else ZERO,
                    n=forward.n,
                )
            )
    return made


def _of_case(
    case: InPlaceCase,
    direction: Direction,
    phase: Samples,
    layers: Mapping[str, Samples],
    alone: Mapping[tuple[str, int], LayerTime],
    found: dict[tuple[str, int, Direction], LayerInPlace],
    among: Launches,
) -> None:
    """Share a phase out to the layers of the model; of a pipeline, that of each rank to its stage."""
    named = list(zip(case.layer_names, case.layer_keys, strict=True))
    stages = [(slowest_rank(phase, among), named, case.again_keys)]
    if case.layer_ranks:
        whole, ranks = of_ranks(phase, among), case.layer_ranks
        stages = [
            (
                whole[rank],
                [of for of, at in zip(named, ranks, strict=True) if at == rank],
                tuple(
                    of
                    for of, at in zip(case.again_keys, case.again_ranks, strict=True)
                    if at == rank
                ),
            )
            for rank in sorted(set(ranks))
        ]
    for whole_of, own, keys in stages:
        again = 0.0
        if direction == "backward":
            again = _run_again(keys, phase.first.active_ranks, alone, found)
        _shared_out(
            case.division.segments, direction, whole_of, again, phase, own, layers, alone, found
        )


def _run_again(
    keys: Sequence[str],
    active: int,
    alone: Mapping[tuple[str, int], LayerTime],
    found: Mapping[tuple[str, int, Direction], LayerInPlace],
) -> float:
    """Seconds of the forward that a backward runs again: it is no layer's backward."""
    seconds = 0.0
    for key in keys:
        forward, time = found.get((key, active, "forward")), alone.get((key, active))
        if forward is not None:
            seconds += forward.estimate.value
        elif time is not None:
            seconds += time.forward_s.value
    return seconds


def _shared_out(
    segments: int,
    direction: Direction,
    whole: Estimate,
    again: float,
    phase: Samples,
    named: Sequence[tuple[str, str]],
    layers: Mapping[str, Samples],
    alone: Mapping[tuple[str, int], LayerTime],
    found: dict[tuple[str, int, Direction], LayerInPlace],
) -> None:
    """`whole` seconds of `segments` passes, less what runs `again`, to (name, key) of layers."""
    active = phase.first.active_ranks
    by_itself: dict[str, float] = {}
    for name, key in named:
        if time := alone.get((key, active)):
            by_itself[name] = (time.forward_s if direction == "forward" else time.backward_s).value
    hooked = {name: slowest_rank(layers[name]).value for name, _ in named if name in layers}
    excess = sum(max(0.0, t - MOST_TIMES * by_itself.get(name, t)) for name, t in hooked.items())
    seconds = by_itself | (hooked if excess * segments <= MOST_EXCESS * whole.value else {})
    seconds = {name: time for name, time in seconds.items() if time > 0}  # no backward: no part
    if not seconds or whole.value <= 0:
        return
    rest = whole.value / segments - again
    if rest <= 0:
        return
    left = (rest - sum(seconds.values())) / len(seconds)
    shares = {name: max(time + left, LEAST_SHARE * time) for name, time in seconds.items()}
    scale = rest / sum(shares.values())
    for name, key in named:
        if name in shares:
            found[key, active, direction].add(
                scale * shares[name], whole, len(layers.get(name, phase))
            )
