"""Memory reuse of a machine: measured peaks of models in place, by the naive sums of their cases."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from calib.fitting.estimators.memory_reuse import ReuseLaw
from calib.fitting.parameters.memory import NO_BYTES, STATES, DeviceMemory, LiveCheck, MemoryReuse
from calib.fitting.regression import error_factor
from calib.foundation.errors import InputError
from calib.foundation.execution import execution_of
from calib.foundation.layer_keys import parse
from calib.foundation.records import Estimate
from calib.foundation.statistics import median
from calib.microbench.cases import InPlaceCase
from calib.microbench.records.manifest import CaseEnd

FRAMEWORK = "torch"
# of one model none can be left out: a convention
ONE_MODEL_FACTOR = 1.5


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

    Each delta is the execution's: under autocast those of activations and weights differ. The items are
    those in the keys of the layers, one for each use; views (flatten) have none of their own. Raises
    InputError for keys that are not those of layers.
    """
    nbytes, each = 0, execution_of(case.execution).items.activation_bytes
    for key in case.layer_keys:
        found = parse(key)
        if found is None:
            raise InputError(f"{case.model}: {key!r} is not the key of a layer")
        nbytes += 2 * each * found.batch * found.shape.tensor_items
    return Naive(
        activations=nbytes,
        weights=2 * case.gradient_bytes,
        optimizer=STATES[case.optimizer] * case.gradient_bytes,
    )


class Peak(NamedTuple):
    """One measured iteration: its model, bytes by either prediction, and by training/footprint.py."""

    model: str
    naive: Naive
    counted: float
    memory: Mapping[str, int]

    @property
    def live(self) -> float:
        """Measured bytes of live tensors."""
        return float(self.memory["peak_live"])


def memory_reuses(
    ends: Iterable[CaseEnd], cases: Mapping[str, InPlaceCase], seed: int = 0
) -> tuple[list[MemoryReuse], list[str]]:
    """One MemoryReuse for every (device, strategy family, execution), and what to know of them.

    `ends` are the manifests' lines of all runs, `cases` their cases in place by id. A case whose keys
    name no layers is left out with a note, a strategy other than serial and data without.
    """
    peaks: dict[tuple[str, str, str], list[Peak]] = defaultdict(list)
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
        if end.memory.get("peak_live", 0) > 0 and naive.total > 0:
            peak = Peak(case.model, naive, float(case.live_bytes), end.memory)
            peaks[case.device, case.strategy, case.execution].append(peak)
    found = [_fitted(*key, peaks[key], seed) for key in sorted(peaks)]
    for reuse in found:
        if len(reuse.parts) < 4:
            told_apart = "; ".join(" and ".join(part) for part in reuse.parts)
            notes[
                f"memory reuse ({reuse.device}, {reuse.family}, {reuse.execution}): "
                f"{len(reuse.models)} model(s) tell {len(reuse.parts)} factor(s) apart: {told_apart}"
            ] = None
    return found, list(notes)


def live_check(peaks: Sequence[Peak], device: str) -> LiveCheck | None:
    """How far the count is off, on a GPU with the workspace; None where a case has no count.

    The workspace is a term of its own where a constant brings the count closer to models that were
    left out. A single model cannot tell: its workspace may be none or twice as much, and the factor is
    that of the count alone.
    """
    if not all(peak.counted > 0 for peak in peaks):
        return None
    counted, measured = [peak.counted for peak in peaks], [peak.live for peak in peaks]
    ratios = [m / c for c, m in zip(counted, measured, strict=True)]
    workspace, predicted = NO_BYTES, counted
    error, factor = _mean_error(counted, measured), error_factor(counted, measured)
    if device != "cpu":
        beyond = [(peak.model, max(0.0, peak.live - peak.counted)) for peak in peaks]
        predicted = [c + w for c, w in zip(counted, _by_other_models(beyond), strict=True)]
        if _mean_error(predicted, measured) < error:
            error, middle = _mean_error(predicted, measured), _middle(beyond)
            ends = [0.0, 2.0 * middle]
            if len({peak.model for peak in peaks}) > 1:
                factor, ends = error_factor(predicted, measured), [w for _, w in beyond]
            workspace = Estimate.around(middle, min(ends), max(ends))
    return LiveCheck(
        ratio=Estimate(value=median(ratios), low=min(ratios), high=max(ratios)),
        workspace_bytes=workspace,
        error=error,
        error_factor=factor,
        n=len(peaks),
    )


def device_memory(peaks: Sequence[Peak]) -> DeviceMemory | None:
    """What the caching allocator reserves for live tensors, and what is outside it; None of a CPU."""
    found = [peak for peak in peaks if peak.memory.get("peak_reserved", 0) > 0]
    if not found:
        return None
    ratios = [(peak.model, max(1.0, peak.memory["peak_reserved"] / peak.live)) for peak in found]
    outside = [(peak.model, float(peak.memory.get("outside", 0))) for peak in found]
    outside = [(model, nbytes) for model, nbytes in outside if nbytes > 0]
    reserved = _within_models(ratios)
    return DeviceMemory(
        reserved=reserved.model_copy(update={"low": max(1.0, reserved.low)}),
        outside_bytes=_within_models(outside) if outside else None,
        n=len(found),
    )


def _within_models(values: Sequence[tuple[str, float]]) -> Estimate:
    """The middle of (model, value > 0), within the factor by which left-out models were off."""
    factor = ONE_MODEL_FACTOR
    if len({model for model, _ in values}) > 1:
        factor = error_factor(_by_other_models(values), [value for _, value in values])
    return Estimate.within_factor(_middle(values), factor)


def _by_other_models(values: Sequence[tuple[str, float]]) -> list[float]:
    """For each (model, value) the middle of other models; of a single model its own."""
    of_others = {
        model: _middle([pair for pair in values if pair[0] != model] or values)
        for model in {model for model, _ in values}
    }
    return [of_others[model] for model, _ in values]


def _middle(values: Sequence[tuple[str, float]]) -> float:
    """The median over models of their medians."""
    by_model: dict[str, list[float]] = defaultdict(list)
    for model, value in values:
        by_model[model].append(value)
    return median([median(mine) for mine in by_model.values()])


def _mean_error(predicted: Sequence[float], measured: Sequence[float]) -> float:
    pairs = zip(predicted, measured, strict=True)
    return sum(abs(p - m) / m for p, m in pairs) / len(measured)


def _fitted(
    device: str, of_family: str, execution: str, peaks: Sequence[Peak], seed: int
) -> MemoryReuse:
    naives = [peak.naive for peak in peaks]
    x = [[naive.activations, naive.weights, naive.optimizer] for naive in naives]
    models = [peak.model for peak in peaks]
    law = ReuseLaw(seed=seed).fit(x, [peak.live for peak in peaks], names=models)

    def refined(term: str, value: float) -> Estimate:
        low, high = law.refined_intervals_[term]
        return Estimate(value=value, low=low, high=high)

    return MemoryReuse(
        framework=FRAMEWORK,
        device=device,
        family=of_family,
        execution=execution,
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
        min_bytes=min(naive.total for naive in naives),
        max_bytes=max(naive.total for naive in naives),
        models=sorted(set(models)),
        n=len(peaks),
        residual_quantiles=law.residual_quantiles_.tolist(),
        live=live_check(peaks, device),
        on_device=device_memory(peaks) if device != "cpu" else None,
    )


def none_if_nan(value: float) -> float | None:
    """JSON has no NaN: None says that nothing could be left out."""
    return None if math.isnan(value) else value
