"""Memory reuse of a machine: measured peaks of models in place, by the naive sums of their cases."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from calib.fitting.estimators.memory_reuse import ReuseLaw
from calib.fitting.parameters.memory import STATES, LiveCheck, Measure, MemoryReuse
from calib.fitting.regression import error_factor
from calib.foundation.errors import InputError
from calib.foundation.layer_keys import parse
from calib.foundation.layers import DTYPE_BYTES
from calib.foundation.records import Estimate
from calib.foundation.statistics import median
from calib.microbench.cases import InPlaceCase
from calib.microbench.records.manifest import CaseEnd

FRAMEWORK = "torch"
# what microbench/memory.py calls the peaks
PEAKS: dict[str, Measure] = {
    "peak_live": "allocated",
    "peak_reserved": "reserved",
    "device_used": "device",
}


@dataclass(frozen=True)
class Naive:
    """Naive bytes of one rank: values and gradients of activations and weights, optimizer's state."""

    activations: int
    weights: int
    optimizer: int

    @property
    def total(self) -> int:
        """The naive sum."""
        return self.activations + self.weights + self.optimizer


def naive_bytes(case: InPlaceCase) -> Naive:
    """2 B' delta sum(|x| + |y|), 2 delta sum(|w| + |bi|), and the optimizer's state (formulas.md).

    The items are those in the keys of the layers, one for each use; views (flatten) have none of
    their own. Raises InputError for keys that are not those of layers.
    """
    nbytes = 0
    for key in case.layer_keys:
        found = parse(key)
        if found is None or found.dtype not in DTYPE_BYTES:
            raise InputError(f"{case.model}: {key!r} is not the key of a layer")
        items = sum(map(math.prod, [*found.shape.input_shapes, found.shape.output_shape]))
        nbytes += 2 * DTYPE_BYTES[found.dtype] * found.batch * items
    return Naive(
        activations=nbytes,
        weights=2 * case.gradient_bytes,
        optimizer=STATES[case.optimizer] * case.gradient_bytes,
    )


def memory_reuses(
    ends: Iterable[CaseEnd], cases: Mapping[str, InPlaceCase], seed: int = 0
) -> tuple[list[MemoryReuse], list[str]]:
    """One MemoryReuse for every (device, strategy family, measure), and what readers should know.

    `ends` are the manifests' lines of all runs, `cases` their cases in place by id. A case whose keys
    name no layers is left out with a note, a strategy other than serial and data without.
    """
    rows: dict[tuple[str, str, Measure], list[tuple[str, Naive, float]]] = defaultdict(list)
    counts: dict[tuple[str, str, Measure], list[tuple[float, float]]] = defaultdict(list)
    notes: dict[str, None] = {}
    for end in ends:
        case = cases.get(end.case_id)
        if case is None or not case.division.traits.whole:
            continue  # of the two, alone or with all weights, the naive sum is the same
        if not end.repetitions or not end.memory:
            continue
        try:
            naive = naive_bytes(case)
        except InputError as error:
            notes[f"memory reuse leaves a model out: {error}"] = None
            continue
        for name, measure in PEAKS.items():
            peak = end.memory.get(name, 0)
            if peak > 0 and naive.total > 0:
                key = case.device, case.strategy, measure
                rows[key].append((case.model, naive, float(peak)))
                counts[key].append((float(case.live_bytes), float(peak)))
    found = [
        _fitted(*key, values, seed).model_copy(update={"live": live_check(counts[key])})
        for key, values in sorted(rows.items())
    ]
    for reuse in found:
        if len(reuse.parts) < 4:
            told_apart = "; ".join(" and ".join(part) for part in reuse.parts)
            notes[
                f"memory reuse ({reuse.device}, {reuse.family}, {reuse.measure}): {len(reuse.models)} "
                f"model(s) tell {len(reuse.parts)} factor(s) apart: {told_apart}"
            ] = None
    return found, list(notes)


def live_check(rows: Sequence[tuple[float, float]]) -> LiveCheck | None:
    """Of (counted, measured) bytes, how far the count is off; None where a case has no count."""
    if not all(counted > 0 for counted, _ in rows):
        return None
    ratios = [measured / counted for counted, measured in rows]
    return LiveCheck(
        ratio=Estimate(value=median(ratios), low=min(ratios), high=max(ratios)),
        error=sum(abs(counted - measured) / measured for counted, measured in rows) / len(rows),
        error_factor=error_factor([c for c, _ in rows], [m for _, m in rows]),
        n=len(rows),
    )


def _fitted(
    device: str,
    of_family: str,
    measure: Measure,
    rows: Sequence[tuple[str, Naive, float]],
    seed: int,
) -> MemoryReuse:
    x = [[naive.activations, naive.weights, naive.optimizer] for _, naive, _ in rows]
    models = [model for model, _, _ in rows]
    law = ReuseLaw(seed=seed).fit(x, [peak for _, _, peak in rows], names=models)

    def refined(term: str, value: float) -> Estimate:
        low, high = law.refined_intervals_[term]
        return Estimate(value=value, low=low, high=high)

    return MemoryReuse(
        framework=FRAMEWORK,
        device=device,
        family=of_family,
        measure=measure,
        gamma=Estimate(value=law.gamma_, low=law.gamma_low_, high=law.gamma_high_),
        gamma_error=law.simple_.error,
        gamma_held_out_error=none_if_nan(law.simple_.held_out_error),
        constant_bytes=refined("constant", law.constant_bytes_),
        activations=refined("activations", law.activations_),
        weights=refined("weights", law.weights_),
        optimizer=refined("optimizer", law.optimizer_),
        parts=[list(part) for part in law.parts_],
        refined_error=law.refined_.error,
        refined_held_out_error=none_if_nan(law.refined_.held_out_error),
        chosen=law.chosen_,
        error_factor=law.error_factor_,
        min_bytes=min(naive.total for _, naive, _ in rows),
        max_bytes=max(naive.total for _, naive, _ in rows),
        models=sorted(set(models)),
        n=len(rows),
        residual_quantiles=law.residual_quantiles_.tolist(),
    )


def none_if_nan(value: float) -> float | None:
    """JSON has no NaN: None says that nothing could be left out."""
    return None if math.isnan(value) else value
