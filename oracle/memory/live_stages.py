"""The peak of live bytes of pipeline stages, as torch.distributed.pipelining runs them.

A stage has a buffer for every tensor it receives, for each of the S micro-batches (torch 2.13,
stage.py: args_recv_info, grad_recv_info). GPipe holds the outputs and gradients that it sent until the
iteration ends, where it waits for all sends (schedules.py); 1F1B waits for each before the next. At
most, GPipe keeps S micro-batches for the backward, and 1F1B p - i of them at stage i. The gradient of a
weight that several stages share has a buffer.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

from calib.foundation.division import Division
from calib.oracle.layout.item_bytes import item_bytes
from calib.oracle.layout.stages import (
    sent_tensors,
    stage_borders,
    stages_waves,
    tensor_graph,
    ties,
    weights_of,
    with_boundaries,
)
from calib.oracle.layout.workload import tensors
from calib.oracle.memory.live_iteration import buffers, forward, held_bytes, targets, update_bytes
from calib.oracle.memory.live_layers import line
from calib.oracle.memory.live_parts import WholeLayers
from calib.oracle.memory.liveness import (
    NOTHING,
    UNCOUNTED,
    Back,
    ByteLine,
    HeldTensor,
    Ledger,
    Tape,
    highest,
)
from calib.oracle.model.graph import INPUT
from calib.oracle.model.spec import ModelSpec
from calib.oracle.once import once


class StageBytes(NamedTuple):
    """One micro-batch in a stage, as lines in its samples.

    `held` is live throughout for each micro-batch, `fixed` once; `kept` is what a forward leaves,
    `left` what remains after the backward. `ahead` are the peaks of the forward, `first` those of the
    first backward and `later` those of one that adds to gradients, each for a micro-batch alone.
    """

    held: ByteLine
    fixed: ByteLine
    kept: ByteLine
    left: ByteLine
    ahead: tuple[ByteLine, ...]
    first: tuple[ByteLine, ...]
    later: tuple[ByteLine, ...]


def stage_bytes(model: ModelSpec, division: Division, optimizer: str) -> list[int]:
    """Peak live bytes of every stage; balanced by FLOPs if there are no boundaries."""
    boundaries = with_boundaries(model, division).boundaries
    borders = stage_borders(model, boundaries)
    peaks = [
        _peak(model, layers, division, waves, optimizer)
        for waves, layers in zip(stages_waves(division), borders, strict=True)
    ]
    for tie in ties(model, boundaries):
        for stage in tie.stages:
            peaks[stage] += tensors((tie.shape,), model.items).nbytes
    return peaks


def _peak(
    model: ModelSpec, layers: tuple[int, int], division: Division, waves: int, optimizer: str
) -> int:
    """The peak of a stage with at most `waves` micro-batches between forward and backward."""
    samples, segments = division.local_batch, division.segments
    stage = _walked(model, *layers)
    weights = weights_of(model, *layers)
    kept, left = stage.kept.of(samples), stage.left.of(samples)
    sends = segments if division.schedule == "gpipe" else 1

    def most(lines: tuple[ByteLine, ...]) -> float:
        return max((of.of(samples) for of in lines), default=0.0)

    others = (waves - 1) * kept
    peaks = [others + most(stage.ahead), others + most(stage.first)]
    done = range(1, segments)
    for k in {*done[:1], *done[-1:]}:  # linear in k: the ends are enough
        sent = min(k, sends) * left
        before = sent + weights.nbytes + min(waves - 1, segments - 1 - k) * kept
        peaks.append(before + most(stage.later))
        if waves < segments and k + waves < segments + 1:
            peaks.append(sent + weights.nbytes + (waves - 1) * kept + most(stage.ahead))
    peaks.append(sends * left + (update_bytes(weights, optimizer) or weights.nbytes))
    every = segments * stage.held.of(samples) + stage.fixed.fixed
    return round(max(peaks) + every + held_bytes(weights, optimizer))


@once
def _walked(model: ModelSpec, first: int, end: int) -> StageBytes:
    """A micro-batch through layers `first` to `end` - 1: a forward and both kinds of backward."""
    found = _micro_batch(model, first, end, again=False)
    if not weights_of(model, first, end).ntensors:
        return found
    return found._replace(later=_micro_batch(model, first, end, again=True).later)


def _micro_batch(model: ModelSpec, first: int, end: int, again: bool) -> StageBytes:
    place, _, borders = tensor_graph(model)
    received, sent = borders[first], borders[end]
    ledger = Ledger()
    tape, parts = Tape(ledger, model.items), WholeLayers(model)
    variables = {INPUT: HeldTensor(UNCOUNTED, parts.given, None, model.items.weight_bytes)}
    variables |= _received(model, tape, first, end)
    # sent tensors stay held, and the last stage holds the logits until its backward ends
    logits = tuple(model.layers[-1].inputs) if end == len(model.layers) else ()
    variables = forward(model, tape, parts, (first, end), variables, (*sent, *logits))
    part: HeldTensor | None = None
    if logits:  # the mean loss over the batch
        loss = variables.pop(model.layers[-1].name)
        part = tape.run([loss], tape.scalar, Back((tape.scalar,)))
        ledger.drop(loss.tensor)
    kept, ahead = ledger.live, highest(ledger.peaks)
    ledger.peaks.clear()
    made = [variables[name] for name in sent if place[name] >= first]
    # incoming gradients are in receive buffers
    given = [(value, UNCOUNTED) for value in made if value.node is not None]
    number = UNCOUNTED
    if part is not None:
        number = ledger.make(tape.scalar)
        given = [(part, ledger.hold(number))]
    tape.backward(given, again)
    for name in sent:
        if place[name] < first and _has_gradient(model, name):  # passed on: autograd copies it
            ledger.make(_size(model, name))
    peaks = highest(ledger.peaks)
    for tensor in (number, *(variables[name].tensor for name in set(logits))):
        ledger.drop(tensor)
    gradients = 0 if again else weights_of(model, first, end).nbytes
    left = ByteLine(ledger.each, ledger.fixed - gradients)
    held = [_size(model, of) for of in received]
    held += [_size(model, of) for of in sent if _has_gradient(model, of)]
    held += [parts.given] if any(INPUT in x.inputs for x in model.layers[first:end]) else []
    held += [targets(model.layers[-1].shape, model.items.weight_bytes)] if logits else []
    every = functools.reduce(ByteLine.plus, held, NOTHING)
    fixed = buffers((x.shape for x in model.layers[first:end]), model.items.weight_bytes)
    return StageBytes(every, fixed, kept, left, ahead, peaks, peaks)


def _received(model: ModelSpec, tape: Tape, first: int, end: int) -> dict[str, HeldTensor]:
    """The earlier variables that a stage reads or passes on; several may be views of one tensor."""
    place, sources, borders = tensor_graph(model)
    tensors = {}
    for of in borders[first]:
        size, each = _size(model, of), item_bytes(model)[of]
        tensors[of] = (
            tape.leaf(UNCOUNTED, size, each)
            if _has_gradient(model, of)
            else HeldTensor(UNCOUNTED, size, None, each)
        )
    read = {name for layer in model.layers[first:end] for name in layer.inputs if name in place}
    return tensors | {name: tensors[sources[name]] for name in read if place[name] < first}


def _size(model: ModelSpec, name: str) -> ByteLine:
    sent = sent_tensors(model).get(name)
    if sent is not None:
        return ByteLine(float(model.items.activation_bytes * sent.items))
    layer = model.layers[tensor_graph(model).place[name]]  # made in each stage
    return line(layer.outputs[name], 1.0, item_bytes(model)[name])


def _has_gradient(model: ModelSpec, name: str) -> bool:
    sent = sent_tensors(model).get(name)
    return sent is not None and sent.gradient
