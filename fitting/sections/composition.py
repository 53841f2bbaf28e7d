"""What a sum of isolated parts misses of an in-place iteration (formulas.md, "wrong" 2 and 3).

Outside a loop of its own, a part meets cold caches, fresh pages and one more call of the framework, and
ranks come late. Per phase: t in place = sum + a n + b bytes (fitting/estimators/composition.py), over
all models and strategies that an execution was measured in place with:

- forward, backward: n layers and the bytes of their outputs, beside layers alone;
- copies: n copies of shards and halos, and their bytes, beside these alone;
- halo, layerwise: n calls in which ranks meet, beside a loop of calls of the smallest message by the
  same library;
- pack, unpack, update: n tensors and their bytes, beside the pass alone;
- exchange: the bytes of an allreduce whose buffers are in no cache, beside the same in a loop.

A law has at most two numbers for all models, so it cannot memorise the ones that a prediction is
checked on.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from calib.fitting.estimators.composition import SumInPlace
from calib.fitting.parameters.collectives import CollectiveFit
from calib.fitting.parameters.file import (
    LEAST_EXCHANGE_BYTES,
    TRAINING_LIBRARIES,
    Composition,
    LayerTime,
    TensorLoop,
)
from calib.fitting.sections.collective_rows import usual
from calib.fitting.sections.compute import of_slowest_rank, taking_time
from calib.foundation.execution import execution_of
from calib.microbench.cases import MET, InPlaceCase
from calib.microbench.records.samples import Samples

BOOTSTRAPS = 100
EXCHANGE, COPIES = "exchange", "copies"


@dataclass(frozen=True)
class PhaseInPlace:
    """One phase of one model: the sum of its parts, and the (launch, seconds) measured in place."""

    model: str
    sum_s: float
    repetitions: tuple[tuple[int, float], ...]
    layers: int
    nbytes: int


def compositions(
    samples: Samples,
    cases: Mapping[str, InPlaceCase],
    layers: Sequence[LayerTime],
    loops: Sequence[TensorLoop],
    collectives: Sequence[CollectiveFit],
) -> list[Composition]:
    """One for every (phase, execution, active ranks, library of meetings) measured in place, sorted."""
    rows: dict[tuple[str, str, int, str], list[PhaseInPlace]] = defaultdict(list)
    # layers timed in place by hooks are no phase
    phases = samples.where(samples.mask("operation", lambda name: not name.startswith("layer_")))
    in_place = phases.where(kind="in_place").groups("case_id", "operation")
    for (case_id, phase), repetitions in sorted(in_place.items()):
        case, active = cases[case_id], repetitions.first.active_ranks
        if case.optimizer != "momentum" or case.layer_ranks or case.is_overlap:
            # its update is another loop, and training's default is momentum; stages are no whole;
            # phases beside an exchange wait for other ranks
            continue
        parts = sum_of_parts(case, phase, active, layers, loops, collectives)
        if parts is None:
            continue
        total, count, nbytes = parts
        typical = of_first_rank if phase in MET else of_slowest_rank
        shared = not case.division.traits.whole or case.division.shards
        how = case.division.slug if shared else ""
        about = " ".join(filter(None, [case.model, how, "x", str(case.batch)]))
        found = PhaseInPlace(about, total, tuple(typical(repetitions)), count, nbytes)
        if found.repetitions:
            rows[phase, case.execution, active, case.library if phase in MET else ""].append(found)
    for execution, active in sorted({(execution, active) for _, execution, active, _ in rows}):
        if not rows[EXCHANGE, execution, active, ""]:
            rows[EXCHANGE, execution, active, ""] = cold_exchanges(samples, active, collectives)
    return [
        _law(*key, sorted(values, key=lambda v: v.model))
        for key, values in sorted(rows.items())
        if values
    ]


def of_first_rank(samples: Samples) -> list[tuple[int, float]]:
    """(launch, seconds) of every repetition by the rank that waited least, as the others wait for it."""
    return taking_time(samples, samples.rank_seconds.min(axis=1))


def cold_exchanges(
    samples: Samples, active_ranks: int, collectives: Sequence[CollectiveFit]
) -> list[PhaseInPlace]:
    """Allreduces of buffers that are in no cache, as a backward leaves them, beside those in a loop.

    For the library that training uses, at sizes where the bytes and not the start-up take the time.
    """
    found = []
    cold = usual(samples).where(groups=1, cold=True, operation="allreduce")
    for _, of in sorted(cold.groups("case_id").items()):
        first = of.first
        about = first.operation, first.ranks, active_ranks, first.device, first.library
        fits = of_training(collectives, *about)
        fits = [f for f in fits if f.library == first.library and f.level == first.level]
        if first.active_ranks != active_ranks or not fits or first.ranks != active_ranks:
            continue
        warm = _at(fits[0], first.nbytes)
        if warm is not None and first.nbytes >= LEAST_EXCHANGE_BYTES:
            times = tuple(zip(of["launch"].tolist(), of["seconds"].tolist(), strict=True))
            found.append(PhaseInPlace(f"cold {first.nbytes} B", warm, times, 0, first.nbytes))
    return found


def sum_of_parts(
    case: InPlaceCase,
    phase: str,
    active_ranks: int,
    layers: Sequence[LayerTime],
    loops: Sequence[TensorLoop],
    collectives: Sequence[CollectiveFit],
) -> tuple[float, int, int] | None:
    """(seconds, number, bytes) of the isolated parts of a phase; None where one was not measured."""
    kernels = execution_of(case.execution).kernels.name
    by_operation = {
        loop.operation: loop
        for loop in loops
        if loop.of_training(case.device, kernels) and loop.active_ranks == active_ranks
    }
    if phase in ("forward", "backward"):
        return _layers(case, phase, {t.key: t for t in layers if t.active_ranks == active_ranks})
    if phase in MET:
        return _meetings(case, phase, active_ranks, collectives)
    if phase == COPIES:
        return _copies(case, by_operation)
    if phase == EXCHANGE:
        about = "allreduce", case.ranks, active_ranks, case.device, case.library
        fits = of_training(collectives, *about)
        times_of = (_at(fit, case.gradient_bytes) for fit in fits)
        whole = next((seconds for seconds in times_of if seconds is not None), None)
        return None if whole is None else (whole, 0, case.gradient_bytes)
    loop = by_operation.get(phase)
    key, count, nbytes = case.passed(phase)
    measured = loop.measured.get(key) if loop else None
    return None if measured is None else (measured.value, count, nbytes)


def _layers(
    case: InPlaceCase, phase: str, times: Mapping[str, LayerTime]
) -> tuple[float, int, int] | None:
    """The layers alone; of a backward also the forward that it runs again."""
    if any(key not in times for key in case.layer_keys):
        return None
    chosen = [times[key] for key in case.layer_keys]
    if phase == "forward":
        return sum(t.forward_s.value for t in chosen), len(chosen), case.activation_bytes
    again = [times[key].forward_s.value for key in case.again_keys]
    seconds = sum(t.backward_s.value for t in chosen) + sum(again)
    return seconds, len(chosen) + len(again), case.activation_bytes + case.again_bytes


def _meetings(
    case: InPlaceCase, phase: str, active_ranks: int, collectives: Sequence[CollectiveFit]
) -> tuple[float, int, int] | None:
    """Calls of the smallest message that was measured, one after the other."""
    seconds, count = 0.0, 0
    for of, operation, n in case.meetings:
        if of == phase:
            parts = case.division.p if case.division.shards else case.division.parts
            fits = of_training(
                collectives, operation, parts, active_ranks, case.device, case.library
            )
            if not fits:
                return None
            seconds, count = seconds + n * fits[0].points[0].seconds.value, count + n
    return (seconds, count, 0) if count else None


def _copies(case: InPlaceCase, loops: Mapping[str, TensorLoop]) -> tuple[float, int, int] | None:
    """Copies alone: as they were measured, or else by the law of their kind."""
    seconds, count, total = 0.0, 0, 0
    for operation, key, parts, nbytes, n in case.copies:
        loop = loops.get(operation)
        if loop is None:
            return None
        found = loop.measured.get(f"{key}/{parts}") if key else None
        law = loop.call_s + parts * loop.s_per_tensor + nbytes * loop.s_per_byte
        seconds += n * (found.value if found else law)
        count, total = count + n, total + n * nbytes
    return (seconds, count, total) if count else None


def _at(fit: CollectiveFit, nbytes: int) -> float | None:
    """Seconds at a size inside those that were measured."""
    low, high = fit.range_nbytes
    return fit.seconds(nbytes) if low <= nbytes <= high else None


def of_training(
    collectives: Sequence[CollectiveFit],
    operation: str,
    ranks: int,
    active_ranks: int,
    device_kind: str,
    library: str = "",
) -> list[CollectiveFit]:
    """The fits of an operation of `ranks` ranks side by side, of `library` or the one of training."""
    inside = ranks <= active_ranks
    found = [
        fit
        for fit in collectives
        if (fit.operation, fit.ranks) == (operation, ranks)
        and (fit.level == "node") == inside
        and fit.at_home
        and fit.made_on(-(-ranks // active_ranks), min(ranks, active_ranks))
    ]
    used = {fit.library for fit in found}
    mine = next((n for n in (library, *TRAINING_LIBRARIES[device_kind]) if n in used), None)
    return [fit for fit in found if fit.library == mine]


def _law(
    phase: str, execution: str, active_ranks: int, library: str, rows: list[PhaseInPlace]
) -> Composition:
    features = [[row.sum_s, row.layers, row.nbytes] for row in rows for _ in row.repetitions]
    seconds = [seconds for row in rows for _, seconds in row.repetitions]
    launches = [launch for row in rows for launch, _ in row.repetitions]
    law = SumInPlace(bootstraps=BOOTSTRAPS).fit(features, seconds, groups=launches)
    return Composition(
        phase=phase,
        execution=execution,
        active_ranks=active_ranks,
        library=library,
        s_per_layer=law.s_per_layer_,
        s_per_byte=law.s_per_byte_,
        error_factor=law.error_factor_,
        sum_error_factor=law.sum_error_factor_,
        max_bytes=max(r.nbytes for r in rows),
        intervals=law.intervals_,
        n=law.n_,
        form=law.form_,
        runner_up=law.runner_up_,
        residual_quantiles=law.residual_quantiles_.tolist(),
        models=[row.model for row in rows],
    )
