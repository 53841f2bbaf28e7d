"""Largest causes of error: which phase, at which points, in which layers.

A phase's error in a point is |predicted - measured| of the phase over the measured iteration: what
of the point's accuracy it costs, were it the only one. Every point has the same weight, as in the means.
Errors of phases may cancel in the iteration, so their sum can be more than the iteration is off by.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import Literal, NamedTuple

from pydantic import Field

from calib.foundation.execution import USUAL, ExecutionName, unusual
from calib.foundation.names import ModelName
from calib.foundation.records import Record
from calib.foundation.text import plain
from calib.foundation.words import counted, number, percent
from calib.reports.scoring.accuracy import Accuracy, needs_batch, occurring
from calib.reports.scoring.layer_pairs import LayerPair
from calib.reports.words import case_words

MOST_CAUSES, MOST_CASES, MOST_LAYERS, MOST_IN_WORDS = 3, 2, 3, 2
LEAST_SHARE = 0.005  # of an iteration: a phase that is off by less is no cause
LEAST_CASE = 0.01  # of a phase's error
BOTH_WAYS = 1 / 3  # of the error: a smaller mean with sign has no direction
OffDirection = Literal["too little", "too much", "both ways"]
UNDER_OR_OVER = {"too little": "under-predicted", "too much": "over-predicted"}
SIGNS: dict[OffDirection, int] = {"too little": -1, "too much": 1, "both ways": 0}


class CaseShare(Record):
    """A case, and its part of the error of a phase over all points."""

    what: str = Field(description="model, strategy with its layout, p, batch per rank")
    runs: int = Field(ge=1, description="how many runs")
    share: float = Field(description="of the phase's error over all points")


class LayerError(Record):
    """The layers of one kind in one model, in one phase, as they run on one rank.

    Seconds of all of them; the prediction has what is added for running in place.
    """

    model: ModelName
    execution: ExecutionName = USUAL
    kind: str = Field(description="kind of layer")
    layers: int = Field(ge=1, description="how many")
    worst: str = Field(description="the layer that is off most in that direction")
    predicted_s: float = Field(description="predicted, with what is added for running in place, s")
    measured_s: float = Field(description="measured, s")
    share: float = Field(description="of the errors of all kinds and models in this phase")


class ErrorCause(Record):
    """A phase that predictions get wrong, with where and in which layers."""

    phase: str = Field(
        description="of an iteration: forward, backward, halo, layerwise, pack, exchange, update"
    )
    error: float = Field(description="mean over points of |predicted - measured| / iteration")
    bias: float = Field(description="the same with its sign: below 0, too little is predicted")
    share: float = Field(description="of the errors of all phases together")
    direction: OffDirection = Field(description="too little or too much is predicted, or both ways")
    points: int = Field(ge=1, description="that were counted")
    cases: list[CaseShare] = Field(description="the cases with most of it, most first")
    layers: list[LayerError] = Field(
        default_factory=list,
        description="of forward and backward, where models were timed in place",
    )
    alone_share: float | None = Field(
        default=None,
        description="of these layers' time in place, what the sum of layers timed alone has",
    )
    added_share: float | None = Field(
        default=None, description="the same of what the composition adds"
    )
    words: str = Field(description="the same in a sentence")


def causes(accuracies: Iterable[Accuracy], layers: Sequence[LayerPair] = ()) -> list[ErrorCause]:
    """The three phases with the largest errors over the points that count, the largest first.

    `layers` (reports/scoring/layer_pairs.py) say which layers of forward and backward; those of models
    that no point is of are left out.
    """
    points = [point for point in accuracies if point.counts]
    errors = {phase: _errors(points, phase) for phase in occurring(points)}
    everything = sum(sum(map(abs, of)) for of in errors.values())
    found = sorted(errors, key=lambda phase: -sum(map(abs, errors[phase])))
    models = {point.model for point in points}
    return [
        _cause(phase, points, errors[phase], everything, [x for x in layers if x.model in models])
        for phase in found[:MOST_CAUSES]
        if fmean(map(abs, errors[phase])) >= LEAST_SHARE
    ]


def _errors(points: Sequence[Accuracy], phase: str) -> list[float]:
    """(predicted - measured) / iteration of each point."""
    return [
        (of.predicted.value - of.measured.value) / point.total.measured.value
        for point in points
        for of in [point.phases[phase]]
    ]


def _cause(
    phase: str,
    points: Sequence[Accuracy],
    errors: Sequence[float],
    everything: float,
    layers: Sequence[LayerPair],
) -> ErrorCause:
    whole, signed = sum(map(abs, errors)), fmean(errors)
    error = whole / len(points)
    direction: OffDirection = "too little" if signed < 0 else "too much"
    if abs(signed) < BOTH_WAYS * error:
        direction = "both ways"
    sides = _sides(phase, layers)
    in_place = sum(side.measured for side in sides)
    found = ErrorCause(
        phase=phase,
        error=error,
        bias=signed,
        share=whole / everything,
        direction=direction,
        points=len(points),
        cases=_cases(points, errors, whole),
        layers=_worst_layers(sides, SIGNS[direction]),
        alone_share=sum(side.alone for side in sides) / in_place if in_place else None,
        added_share=sum(side.added for side in sides) / in_place if in_place else None,
        words="",
    )
    return found.model_copy(update={"words": plain(_words(found))})


def _cases(points: Sequence[Accuracy], errors: Sequence[float], whole: float) -> list[CaseShare]:
    found: dict[tuple[str, str, str, int, float | None], list[float]] = defaultdict(list)
    with_batch = needs_batch(points)
    for of, error in zip(points, errors, strict=True):
        batch = of.batch_per_rank if with_batch else None
        found[of.model, of.strategy, of.layout, of.p, batch].append(abs(error))
    worst = sorted(found.items(), key=lambda item: -sum(item[1]))[:MOST_CASES]
    return [
        CaseShare(what=case_words(*case), runs=len(each), share=sum(each) / whole)
        for case, each in worst
        if sum(each) >= LEAST_CASE * whole
    ]


class _LayerDirection(NamedTuple):
    """One direction of a LayerPair, seconds. `error` is relative to its model's phase in place."""

    pair: LayerPair
    alone: float
    added: float
    measured: float
    error: float


def _sides(phase: str, pairs: Sequence[LayerPair]) -> list[_LayerDirection]:
    """Errors relative to the model's, as all models have the same weight and large ones long layers."""
    if phase not in ("forward", "backward"):
        return []
    seconds = [
        (x.predicted_forward_s, x.added_forward_s, x.measured_forward_s)
        if phase == "forward"
        else (x.predicted_backward_s, x.added_backward_s, x.measured_backward_s)
        for x in pairs
    ]
    whole: dict[tuple[str, int, str], float] = defaultdict(float)
    for pair, (_, _, measured) in zip(pairs, seconds, strict=True):
        whole[pair.model, pair.batch, pair.execution] += measured
    return [
        _LayerDirection(pair, alone, added, measured, (alone + added - measured) / of)
        for pair, (alone, added, measured) in zip(pairs, seconds, strict=True)
        if (of := whole[pair.model, pair.batch, pair.execution]) > 0
    ]


def _worst_layers(sides: Sequence[_LayerDirection], sign: int) -> list[LayerError]:
    """The kinds whose layers are off most; with a sign, only those that are off in that direction."""
    kinds: dict[tuple[str, str, str], list[_LayerDirection]] = defaultdict(list)
    for side in sides:
        kinds[side.pair.model, side.pair.kind, side.pair.execution].append(side)
    errors = {kind: sum(side.error for side in of) for kind, of in kinds.items()}
    whole = sum(map(abs, errors.values()))
    chosen = [kind for kind, error in errors.items() if error * (sign or error) > 0]
    found = []
    for kind in sorted(chosen, key=lambda kind: -abs(errors[kind]))[:MOST_LAYERS]:
        of = kinds[kind]
        way = 1 if errors[kind] > 0 else -1
        found.append(
            LayerError(
                model=kind[0],
                kind=kind[1],
                execution=kind[2],
                layers=len(of),
                worst=max(of, key=lambda side: way * side.error).pair.name,
                predicted_s=sum(side.alone + side.added for side in of),
                measured_s=sum(side.measured for side in of),
                share=abs(errors[kind]) / whole,
            )
        )
    return found


def _words(of: ErrorCause) -> str:
    off = (
        f"off by {percent(of.error)} of the iteration, in both directions"
        if of.direction == "both ways"
        else f"{UNDER_OR_OVER[of.direction]} by {percent(of.error)} of the iteration on average"
    )
    places = ", ".join(f"{case.what} ({_share(case.share)})" for case in of.cases)
    where = f"; most in {places}" if places else ""
    words = [f"{of.phase}: {off}, {_share(of.share)} of the error of all phases{where}."]
    if of.layers:
        layers = "; ".join(
            f"{kind.kind} of {_model_words(kind)} ({counted(kind.layers, 'layer')}), predicted "
            f"{number(1e3 * kind.predicted_s)} ms from times alone, measured "
            f"{number(1e3 * kind.measured_s)} ms"
            for kind in of.layers[:MOST_IN_WORDS]
        )
        words.append(f"In place, on one rank: {layers}.")
    if of.alone_share is not None and of.added_share is not None:
        words.append(
            f"All layers alone take {_share(of.alone_share)} of their time in place; the correction "
            f"for running in place adds {_share(of.added_share)}. Predictions take the times in place "
            "where there are some."
        )
    return " ".join(words)


def _model_words(of: LayerError) -> str:
    """`vgg16-mini`, `vgg16-mini in bfloat16`."""
    return f"{of.model} in {how}" if (how := unusual(of.execution)) else of.model


def _share(value: float) -> str:
    return f"{100 * value:.0f}%"
