"""What a sum of isolated parts leaves out of an iteration in place (formulas.md, "wrong" 2 and 3).

Outside a loop of its own, a part meets cold caches, fresh pages and one more call of the framework.
Per phase: t in place = sum + a layers + b bytes. Which of the four laws (nothing, a, b, both) is
taken is decided by leaving one model out; so is its error. The three models that a prediction is
checked on are therefore not remembered one by one: the law has at most two numbers for all.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fitting.estimate import group, slowest_rank
from fitting.hockney import interpolate
from fitting.parameters import TRAINING_LIBRARY, CollectiveFit, Composition, LayerTime, TensorLoop
from fitting.regression import RelativeNonNegativeRegression, error_factor, leave_one_out
from microbench.cases import InPlaceCase
from microbench.samples import Sample


@dataclass(frozen=True)
class InPlace:
    """One phase of one model: the sum of its parts and what was measured in place, in seconds."""

    model: str
    sum_s: float
    seconds: float
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
                seconds=slowest_rank(repetitions).value,
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
        if loop.operation == phase and loop.active_ranks == active_ranks:
            measured = loop.measured.get(case.tensors_key)
            return None if measured is None else measured.value
    return None


def allreduces(
    collectives: Sequence[CollectiveFit], ranks: int, active_ranks: int
) -> list[CollectiveFit]:
    """The allreduce fits of the library that training uses, of `ranks` ranks at their level."""
    inside = ranks <= active_ranks
    return [
        fit for fit in collectives
        if (fit.operation, fit.library, fit.ranks) == ("allreduce", TRAINING_LIBRARY, ranks)
        and (fit.level == "node") == inside
    ]  # fmt: skip


def _law(phase: str, active_ranks: int, rows: list[InPlace]) -> Composition:
    offset = np.array([row.sum_s for row in rows])
    seconds = np.array([row.seconds for row in rows])
    columns = np.array([[row.layers, row.nbytes] for row in rows], dtype=float)
    best, best_predicted = np.array([False, False]), offset
    if len(rows) == 1:
        # nothing to leave out: the law repeats the one model, and is trusted as little as the sum
        best = np.array([columns[0, 0] > 0, columns[0, 0] == 0])
    candidates = [[True, False], [False, True], [True, True]] if len(rows) > 1 else []
    for candidate in candidates:
        used = columns * np.array(candidate)
        if not used.any():
            continue
        predicted = leave_one_out(used, seconds, offset)
        if _spread(predicted, seconds) < _spread(best_predicted, seconds):
            best, best_predicted = np.array(candidate), predicted
    coefficients = np.zeros(2)
    if best.any():
        model = RelativeNonNegativeRegression().fit(columns * best, seconds, offset)
        coefficients = model.coefficients_ * best
    return Composition(
        phase=phase, active_ranks=active_ranks, s_per_layer=float(coefficients[0]),
        s_per_byte=float(coefficients[1]), error_factor=error_factor(best_predicted, seconds),
        sum_error_factor=error_factor(offset, seconds), max_bytes=max(r.nbytes for r in rows),
        models=[row.model for row in rows],
    )  # fmt: skip


def _spread(predicted: np.ndarray, seconds: np.ndarray) -> float:
    return float(np.mean(np.log(predicted / seconds) ** 2))
