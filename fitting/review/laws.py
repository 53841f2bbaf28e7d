"""Layers, work laws, loops, composition, memory: what is thin or noisy."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from calib.fitting.parameters.file import Composition, LayerTime, Parameters, TensorLoop, WorkModel
from calib.fitting.parameters.findings import (
    BEYOND,
    COSTS,
    FEW,
    GAPS,
    MAX_FACTOR,
    MAX_HALF_WIDTH,
    MIN_REPETITIONS,
    MISFIT,
    QUIETER,
    WIDE,
    Finding,
    Remark,
    Severity,
    about,
    large_error,
    note,
    warning,
    wide_intervals,
)
from calib.fitting.parameters.laws import label_of
from calib.fitting.parameters.memory import MemoryReuse, Overlap, Partitions
from calib.foundation.words import several

# layers, under which leaving one out says little of a law with several prices
MIN_LAYERS = 6
# lists of tensors, under which a law says little of another list
MIN_LISTS = 4
# models, under which leaving one out leaves a single one
MIN_MODELS = 3
# eta is a share: its interval is told as it is
MAX_ETA_SPAN = 0.2
# factors of the refined memory form: constant, activations, weights, optimizer
TERMS = 4


def review_laws(parameters: Parameters) -> Iterator[Finding]:
    """Findings on everything that is no message."""
    by_kind = sorted(parameters.layers, key=lambda layer: layer.kind)
    for kind, layers in groupby(by_kind, lambda layer: layer.kind):
        yield from about("layers", kind, _layers(list(layers)))
    laws = sorted(parameters.work, key=lambda law: law.kind)
    for kind, models in groupby(laws, lambda law: law.kind):
        yield from about("work", kind, _work(list(models)))
    for loop in parameters.tensor_loops:
        yield from about("tensor_loops", label_of("tensor_loops", loop), _loop(loop))
    for term in parameters.composition:
        yield from about("composition", label_of("composition", term), _composition(term))
    if parameters.layers and not parameters.composition:
        remark = note(
            GAPS,
            "no model was measured in place, so an iteration is a sum of isolated parts; measure one",
        )
        yield from about("composition", "all phases", [remark])
    for reuse in parameters.memory:
        yield from about("memory", label_of("memory", reuse), _memory(reuse))
    for overlap in parameters.overlap:
        yield from about("overlap", label_of("overlap", overlap), _overlap(overlap))
    for partitions in parameters.partitions:
        yield from about("partitions", partitions.name, _partitions(partitions))


def _layers(layers: list[LayerTime]) -> Iterator[Remark]:
    """`layers` are all of one kind."""
    few = [layer for layer in layers if layer.n < MIN_REPETITIONS]
    if few:
        yield warning(
            FEW,
            f"{len(few)} of {len(layers)} layers have under {MIN_REPETITIONS} repetitions, so their "
            f"medians have no 95% interval (first {few[0].key}); measure longer",
        )
    widths = [
        (max(layer.forward_s.half_width, layer.backward_s.half_width), layer.key)
        for layer in layers
    ]
    over = [pair for pair in widths if pair[0] > MAX_HALF_WIDTH]
    if over:
        worst, key = max(over)
        yield Remark(
            "warning" if 2 * len(over) > len(widths) else "note",
            WIDE,
            f"{len(over)} of {len(layers)} times have a 95% interval over +-{MAX_HALF_WIDTH:.0%}, "
            f"worst +-{worst:.0%} ({key}); {QUIETER}",
        )


def _work(laws: list[WorkModel]) -> Iterator[Remark]:
    """`laws` are all of one kind of layer."""
    # a law with the prices of many kinds is checked on these
    thin = [law for law in laws if law.n_layers < MIN_LAYERS and law.n_kinds == 1]
    if thin:
        yield warning(
            GAPS,
            f"{len(thin)} of {len(laws)} laws rest on {min(law.n_layers for law in thin)} layers, "
            f"under {MIN_LAYERS}; measure a model with more layers of this kind",
        )
    bad = sorted(
        (law for law in laws if law.error_factor > MAX_FACTOR), key=lambda law: -law.error_factor
    )
    if bad:
        names = [
            f"{law.direction} in {law.execution} with {law.active_ranks} rank(s) at work "
            f"x{law.error_factor:.2f}"
            for law in bad
        ]
        yield warning(
            MISFIT,
            f"layers that were left out lie within / and * the factor (95%), over {MAX_FACTOR:g}: "
            f"{several(names)}; measure the layers that you need instead of predicting them",
        )


def _loop(loop: TensorLoop) -> Iterator[Remark]:
    if loop.measured and len(loop.measured) < MIN_LISTS:
        yield note(
            GAPS,
            f"{len(loop.measured)} lists of tensors, under {MIN_LISTS}; other lists are a guess, so "
            "measure those of your model",
        )
    then = "measure the list of your model"
    yield from large_error(loop.error_factor, "lists that were left out", then)


def _few_models(severity: Severity, models: list[str], where: str = "") -> Iterator[Remark]:
    if len(models) < MIN_MODELS:
        yield Remark(
            severity,
            GAPS,
            f"from {len(models)} model(s), under {MIN_MODELS}: {several(models)}; "
            f"measure others{where} too",
        )


def _composition(term: Composition) -> Iterator[Remark]:
    yield from _few_models("warning", term.models, " in place")
    then = "measure more models in place"
    yield from large_error(term.error_factor, "models that were left out", then)


def _memory(reuse: MemoryReuse) -> Iterator[Remark]:
    yield from _few_models("warning", reuse.models)
    if len(reuse.models) >= MIN_MODELS and len(reuse.parts) < TERMS:
        yield note(
            GAPS,
            f"{len(reuse.models)} models tell {len(reuse.parts)} of {TERMS} factors apart, so some "
            "are 0 or shared; measure more models or batch sizes",
        )
    if reuse.chosen == "simple":
        yield from wide_intervals([("gamma", reuse.gamma)], "measure more models")
    then = "measure the peak of the model that you need"
    yield from large_error(reuse.error_factor, "models that were left out", then)


def _overlap(law: Overlap) -> Iterator[Remark]:
    if law.eta.high - law.eta.low > MAX_ETA_SPAN:
        yield warning(
            WIDE,
            f"eta is {law.eta.value:.2f}, but anything from {law.eta.low:.2f} to {law.eta.high:.2f} "
            "fits; measure models whose exchange takes longer",
        )
    if law.slowdown.low > 0:
        yield note(
            COSTS, f"iterations with overlap take {law.slowdown.value:.1%} longer than without"
        )
    yield from _few_models("note", law.models)
    yield from large_error(law.error_factor, "iterations", "measure more models")


def _partitions(law: Partitions) -> Iterator[Remark]:
    low, high = law.min_partitions, law.max_partitions
    best = law.best_partitions
    if best is None or not low <= best <= high:
        where = "more is always faster" if best is None else f"{best:.0f}"
        yield warning(
            BEYOND,
            f"the best P ({where}) lies outside the measured {low} to {high}; measure on until the "
            "time rises",
        )
    elif law.best_low is None or law.best_high is None or law.best_high > 2 * best:
        ends = ["any" if end is None else f"{end:.0f}" for end in (law.best_low, law.best_high)]
        yield note(
            WIDE,
            (f"the best P is {best:.0f}, but {ends[0]} to {ends[1]} fit; measure more P around it"),
        )
    yield from large_error(law.error_factor, "times", "measure more P")
