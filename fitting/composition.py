"""What a sum of isolated parts leaves out of an iteration in place (formulas.md, "wrong" 2 and 3).

Outside a loop of its own, a part meets cold caches, fresh pages and one more call of the framework.
Per phase: t in place = sum + a layers + b bytes (fitting/estimators/composition.py). The three models
that a prediction is checked on are not remembered one by one: the law has at most two numbers for all.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fitting.compute import of_slowest_rank
from fitting.estimate import group
from fitting.parameters import TRAINING_LIBRARIES, Composition, LayerTime, TensorLoop
from fitting.parameters_collective import CollectiveFit, interpolate
from microbench.cases import InPlaceCase
from microbench.samples import Sample

BOOTSTRAPS = 100


@dataclass(frozen=True)
class InPlace:
    """One phase of one model: the sum of its parts, and the (launch, seconds) measured in place."""

    model: str
    sum_s: float
    repetitions: tuple[tuple[int, float], ...]
    layers: int
    nbytes: int


def compositions(
    samples: list[Sample],
    cases: Mapping[str, InPlaceCase],
    layers: Sequence[LayerTime],
    loops: Sequence[TensorLoop],
    collectives: Sequence[CollectiveFit],
) -> list[Composition]:
    """One Composition for every (phase, active ranks) that was measured in place, sorted."""
    rows: dict[tuple[str, int], list[InPlace]] = defaultdict(list)
    # layers timed in place by hooks are no phase
    in_place = [s for s in samples if s.kind == "in_place" and not s.operation.startswith("layer_")]
    for (case_id, phase), repetitions in sorted(group(in_place).items()):
        case, active = cases[case_id], repetitions[0].active_ranks
        if case.optimizer != "momentum":
            continue  # its update is another loop, and training's default is momentum
        total = sum_of_parts(case, phase, active, layers, loops, collectives)
        if total is None:
            continue
        by_layer = phase in ("forward", "backward")
        rows[phase, active].append(
            InPlace(
                model=f"{case.model} x {case.batch}",
                sum_s=total,
                repetitions=tuple(of_slowest_rank(repetitions)),
                layers=len(case.layer_keys) if by_layer else 0,
                nbytes=case.activation_bytes if by_layer else case.gradient_bytes,
            )
        )
    return [
        _law(*key, sorted(values, key=lambda v: v.model)) for key, values in sorted(rows.items())
    ]


def sum_of_parts(
    case: InPlaceCase,
    phase: str,
    active_ranks: int,
    layers: Sequence[LayerTime],
    loops: Sequence[TensorLoop],
    collectives: Sequence[CollectiveFit],
) -> float | None:
    """Seconds of the isolated parts of a phase; None where a part was not measured."""
    if phase in ("forward", "backward"):
        times = {t.key: t for t in layers if t.active_ranks == active_ranks}
        if any(key not in times for key in case.layer_keys):
            return None
        chosen = [times[key] for key in case.layer_keys]
        return sum((t.forward_s if phase == "forward" else t.backward_s).value for t in chosen)
    if phase == "exchange":
        for fit in allreduces(collectives, case.ranks, active_ranks):
            low, high = fit.range_nbytes
            if low <= case.gradient_bytes <= high:
                sizes = [point.nbytes for point in fit.points]
                seconds = [point.seconds.value for point in fit.points]
                return interpolate(case.gradient_bytes, sizes, seconds)
        return None
    for loop in loops:
        wanted = loop.of_training and loop.operation == phase
        if wanted and loop.active_ranks == active_ranks:
            measured = loop.measured.get(case.tensors_key)
            return None if measured is None else measured.value
    return None


def allreduces(
    collectives: Sequence[CollectiveFit], ranks: int, active_ranks: int
) -> list[CollectiveFit]:
    """The allreduce fits of the library that training uses, of `ranks` ranks at their level."""
    inside = ranks <= active_ranks
    found = [
        fit for fit in collectives
        if (fit.operation, fit.ranks) == ("allreduce", ranks)
        and (fit.level == "node") == inside and fit.at_home
    ]  # fmt: skip
    libraries = (name for name in TRAINING_LIBRARIES if any(f.library == name for f in found))
    mine = next(libraries, None)
    return [fit for fit in found if fit.library == mine]


def _law(phase: str, active_ranks: int, rows: list[InPlace]) -> Composition:
    from fitting.estimators.composition import SumInPlace

    features = [[row.sum_s, row.layers, row.nbytes] for row in rows for _ in row.repetitions]
    seconds = [seconds for row in rows for _, seconds in row.repetitions]
    launches = [launch for row in rows for launch, _ in row.repetitions]
    law = SumInPlace(bootstraps=BOOTSTRAPS).fit(features, seconds, groups=launches)
    return Composition(
        phase=phase, active_ranks=active_ranks, s_per_layer=law.s_per_layer_,
        s_per_byte=law.s_per_byte_, error_factor=law.error_factor_,
        sum_error_factor=law.sum_error_factor_, max_bytes=max(r.nbytes for r in rows),
        intervals=law.intervals_, n=law.n_, form=law.form_, runner_up=law.runner_up_,
        residual_quantiles=law.residual_quantiles_.tolist(),
        models=[row.model for row in rows],
    )  # fmt: skip
