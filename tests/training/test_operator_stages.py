"""Stages of models of operators: together they are the model, wherever they are cut."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.training.operator_models import ENTRIES
from torch import Tensor, nn

from calib.oracle.layout.stages import crossings, ties
from calib.training.checks.chance import WithoutChance
from calib.training.layer_program import LayerProgram, layer_program
from calib.training.models import built
from calib.training.stages import border_tensors, cut
from calib.training.step import in_type, loss_function, synthetic_batch

BATCH = 3


@cache
def program_of(name: str) -> tuple[nn.Module, LayerProgram]:
    """A module in float64 and its program."""
    module = built(ENTRIES[name], 3).double().train()
    return module, layer_program(module, ENTRIES[name], BATCH)


def batch_of(name: str) -> tuple[Tensor, Tensor]:
    inputs, targets = synthetic_batch(ENTRIES[name], BATCH, 1)
    return in_type(inputs, torch.float64), in_type(targets, torch.float64)


def whole(name: str) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]:
    """Loss, outputs, gradients and buffers of the module by itself."""
    module = copy.deepcopy(program_of(name)[0])
    program = layer_program(module, ENTRIES[name], BATCH)
    inputs, targets = batch_of(name)
    outputs: dict[str, Tensor] = {}
    program.observer = lambda layer, y: outputs.__setitem__(layer, y.detach().clone())
    with WithoutChance():
        loss = loss_function(ENTRIES[name])(program(inputs), targets)
    loss.backward()
    gradients = {weight: p.grad for weight, p in module.named_parameters() if p.grad is not None}
    return loss.detach(), outputs, gradients, dict(module.named_buffers())


REFERENCES = cache(whole)


def run_stages(name: str, boundaries: tuple[int, ...]) -> tuple[Tensor, dict[str, Tensor]]:
    """Forward through all stages, then backward through all, each on tensors of its own."""
    _, program = program_of(name)
    inputs, targets = batch_of(name)
    outputs: dict[str, Tensor] = {}
    sent: dict[str, Tensor] = {}
    handed: list[tuple[Tensor, Tensor]] = []
    result: Any = None
    for number in range(len(boundaries) + 1):
        stage = cut(program, boundaries, number)
        assert set(stage.received) == sent.keys()

        def observer(layer: str, y: Tensor) -> None:
            assert layer not in outputs
            outputs[layer] = y.detach().clone()

        stage.program.observer = observer
        received = []
        for layer in stage.received:
            like = sent[layer].detach().clone().contiguous()
            received.append(like.requires_grad_(sent[layer].requires_grad))
            handed.append((sent[layer], received[-1]))
        with WithoutChance():
            result = stage.program(*received, *([inputs] if stage.reads_input else []))
        if number < len(boundaries):
            sent = dict(zip(stage.sent, result, strict=True))
    loss: Tensor = loss_function(ENTRIES[name])(result, targets)
    loss.backward()
    for source, copied in reversed(handed):
        if copied.grad is not None and source.requires_grad:
            source.backward(copied.grad, retain_graph=True)
    return loss.detach(), outputs


@pytest.mark.parametrize("name", sorted(ENTRIES))
@settings(max_examples=12, deadline=None)
@given(st.data())
def test_the_stages_together_are_the_model(name: str, choice: st.DataObject) -> None:
    """Outputs, gradients, also of weights that several stages share, and buffers."""
    module, program = program_of(name)
    borders = choice.draw(
        st.sets(st.integers(1, len(program.spec.layers) - 1), min_size=1, max_size=3)
    )
    boundaries = tuple(sorted(borders))
    loss, outputs, gradients, buffers = REFERENCES(name)
    before = {key: value.clone() for key, value in module.named_buffers()}
    module.zero_grad()
    again, seen = run_stages(name, boundaries)
    assert torch.equal(loss, again)
    assert seen.keys() == outputs.keys()
    empty = {of.name for of in program.spec.layers if "empty" in of.shape.name}
    for layer in outputs.keys() - empty:
        assert torch.equal(seen[layer], outputs[layer]), layer
    for weight, parameter in module.named_parameters():
        torch.testing.assert_close(parameter.grad, gradients[weight], rtol=1e-10, atol=1e-13)
    for key, value in module.named_buffers():
        assert torch.equal(value, buffers[key]), key
        value.copy_(before[key])


@pytest.mark.parametrize("name", sorted(ENTRIES.keys() - {"rotary"}))
def test_what_crosses_is_what_the_oracle_counts(name: str) -> None:
    """Numbers of tensors and of gradients, at every border.

    A record is of torch's default type, in which the x.float() of "rotary" is x itself.
    """
    _, program = program_of(name)
    inputs, _ = batch_of(name)
    for border in range(1, len(program.spec.layers)):
        first = cut(program, (border,), 0)
        if any("empty" in layer or "zeros_like" in layer for layer in first.sent):
            continue  # the record does not say that a forward writes into them
        counted = crossings(program.spec)[border]
        assert len(first.sent) == len(counted.forward), border
        with WithoutChance():
            sent = first.program(*([inputs] if first.reads_input else []))
        assert sum(of.requires_grad for of in sent) == len(counted.backward), border


@pytest.mark.parametrize("name", sorted(ENTRIES))
def test_a_receiver_is_told_what_is_sent(name: str) -> None:
    """Indices, truths, what a forward makes in another type, and zeros that are written into."""
    _, program = program_of(name)
    inputs, _ = batch_of(name)
    like = torch.empty_like(inputs, device="meta")
    for border in range(1, len(program.spec.layers), 2):
        first = cut(program, (border,), 0)
        with WithoutChance():
            sent = first.program(*([inputs] if first.reads_input else []))
        found = border_tensors(program, (border,), 0, like, torch.device("cpu"), nullcontext())[1]
        assert [(of.shape, of.dtype, of.requires_grad) for of in found] == [
            (of.shape, of.dtype, of.requires_grad) for of in sent
        ]


@pytest.mark.parametrize("name", sorted(ENTRIES.keys() - {"rotary", "lstm"}))
def test_bytes_that_cross_under_autocast(name: str) -> None:
    """A stream of residuals stays in float32, and so does what is added to it.

    That autocast narrows a whole LSTM is not counted.
    """
    program = layer_program(built(ENTRIES[name], 3).train(), ENTRIES[name], BATCH)
    model = program.spec.run_as("bfloat16-mixed")
    like = torch.empty_like(synthetic_batch(ENTRIES[name], BATCH, 1)[0], device="meta")
    shapes = {layer.name: layer.shape for layer in model.layers}
    for border in range(1, len(model.layers), 2):
        names = cut(program, (border,), 0).sent
        if any("empty" in layer or "zeros_like" in layer for layer in names):
            continue  # as above
        cast = torch.autocast("cpu", torch.bfloat16)
        sent = border_tensors(program, (border,), 0, like, torch.device("cpu"), cast)[1]
        for layer, tensor, items in zip(names, sent, crossings(model)[border].forward, strict=True):
            of = shapes[layer.partition("[")[0]]
            whole = of.operator is not None and of.output_sizes(1) == of.output_sizes(2)
            # what has no batch counts for each sample
            assert BATCH * 2 * items == tensor.nbytes * (BATCH if whole else 1), (border, layer)


def test_a_weight_of_two_stages_is_a_tie() -> None:
    _, program = program_of("gpt")
    names = [layer.name for layer in program.spec.layers]
    head, block = names.index("head"), names.index("blocks.1.before")
    assert [(of.owner, of.shape, of.stages) for of in ties(program.spec, (block, head))] == [
        ("tokens", (50, 16), (0, 2))
    ]
    assert ties(program.spec, ()) == []
    held = [dict(cut(program, (block, head), stage).program.trained()) for stage in range(3)]
    assert [stage for stage in range(3) if "tokens.weight" in held[stage]] == [0, 2]
    assert held[0]["tokens.weight"] is held[2]["tokens.weight"]
