"""Stages of a pipeline: what they are cut into, and that together they are the model.

The stages run one after the other in this process; pipeline_ranks.py runs them on ranks.
"""

from __future__ import annotations

import json
from functools import cache
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.training.launching import needs_mpiexec, said
from tests.training.pipeline_models import ENTRIES, watch
from tests.training.pipeline_ranks import CASES, RANKS
from torch import Tensor

import calib.oracle.layout.stages
from calib.foundation.division import Division
from calib.foundation.errors import InputError
from calib.oracle.layout.stages import with_boundaries
from calib.oracle.model.spec import ModelSpec
from calib.training.allowed import why_not_trained
from calib.training.layer_program import LayerProgram, layer_program
from calib.training.models import built
from calib.training.stages import ProgramStage, border_tensors, cut
from calib.training.step import loss_function
from calib.training.strategies import make_worker
from calib.training.worker import Task, WorkerOptions

PROGRAM = Path(__file__).with_name("pipeline_ranks.py")


@cache
def program_of(name: str) -> LayerProgram:
    """The model as in training."""
    return layer_program(built(ENTRIES[name], 3), ENTRIES[name], 4)


def spec_of(name: str) -> ModelSpec:
    """Its layers."""
    return program_of(name).spec


def data(name: str, batch: int = 4) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn((batch, *ENTRIES[name].input_shape), generator=generator)
    return inputs.double(), torch.randint(ENTRIES[name].outputs, (batch,), generator=generator)


def alike(tensor: Tensor) -> tuple[object, ...]:
    """What a receiver is told of a tensor."""
    return tensor.shape, tensor.dtype, tensor.requires_grad


def run_stages(
    stages: list[ProgramStage], inputs: Tensor
) -> tuple[object, list[tuple[Tensor, Tensor]]]:
    """The stages one behind the other, each on tensors of its own: (sent, received) beside them."""
    sent: dict[str, Tensor] = {}
    handed: list[tuple[Tensor, Tensor]] = []
    result: object = None
    for stage in stages:
        received = [
            sent[name].detach().requires_grad_(sent[name].requires_grad) for name in stage.received
        ]
        handed += zip((sent[name] for name in stage.received), received, strict=True)
        result = stage.program(*received, *([inputs] if stage.reads_input else []))
        if stage is not stages[-1]:
            assert isinstance(result, tuple)
            assert all(tensor.is_contiguous() for tensor in result)
            sent = dict(zip(stage.sent, result, strict=True))
    return result, handed


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_the_stages_together_are_the_model(choice: st.DataObject) -> None:
    name = choice.draw(st.sampled_from(sorted(ENTRIES)))
    count = len(spec_of(name).layers)
    borders = choice.draw(st.sets(st.integers(1, count - 1), min_size=1, max_size=4))
    boundaries = tuple(sorted(borders))
    whole = program_of(name).double()
    whole.zero_grad()
    stages = [cut(whole, boundaries, number) for number in range(len(boundaries) + 1)]
    inputs, targets = data(name)
    loss_of = loss_function(ENTRIES[name])

    expected = watch(whole)
    loss = loss_of(whole(inputs), targets)
    loss.backward()
    gradients = {weight: p.grad.clone() for weight, p in whole.graph.named_parameters()}
    whole.zero_grad()  # the stages have the same parameters

    found = [watch(stage.program) for stage in stages]
    result, handed = run_stages(stages, inputs)
    again = loss_of(result, targets)
    again.backward()
    for sent, received in reversed(handed):  # the last border first: what is handed on is complete
        if received.grad is not None:
            sent.backward(received.grad, retain_graph=True)

    assert torch.equal(loss, again)
    assert sorted(layer for seen in found for layer in seen) == sorted(expected)
    for layer, (output,) in (item for seen in found for item in seen.items()):
        (reference,) = expected[layer]
        assert torch.equal(output, reference)
        if reference.grad is not None:
            torch.testing.assert_close(output.grad, reference.grad, rtol=1e-12, atol=1e-14)
    held = [item for stage in stages for item in stage.program.graph.named_parameters()]
    assert sorted(weight for weight, _ in held) == sorted(gradients)
    for weight, parameter in held:
        torch.testing.assert_close(parameter.grad, gradients[weight], rtol=1e-12, atol=1e-14)


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_what_crosses_is_what_the_oracle_counts(choice: st.DataObject) -> None:
    """And each stage gets what the one before it sends, in the same order."""
    name = choice.draw(st.sampled_from(sorted(ENTRIES)))
    spec = spec_of(name)
    border = choice.draw(st.integers(1, len(spec.layers) - 1))
    before, behind = (cut(program_of(name).double(), (border,), number) for number in (0, 1))
    assert before.sent == behind.received
    assert before.received == ()
    items = {layer.name: layer.shape.output_items for layer in spec.layers}
    crossing = calib.oracle.layout.stages.crossings(spec)[border]
    assert tuple(items[layer] for layer in before.sent) == crossing.forward
    inputs, _ = data(name)
    sent = before.program(inputs)
    assert tuple(x[0].numel() for x in sent if x.requires_grad) == crossing.backward


def test_a_border_in_a_residual_block_sends_the_shortcut_too() -> None:
    program = program_of("resnet")
    names = [layer.name for layer in program.spec.layers]
    inside = names.index("stages.1.1.bn2")  # its block has no convolution on the shortcut
    first, second, third = (cut(program, (inside, inside + 1), number) for number in range(3))
    assert first.sent == second.received == ("stages.1.0.relu3", "stages.1.1.conv2")
    assert second.sent == third.received == ("stages.1.0.relu3", "stages.1.1.bn2")
    assert [name for name, _ in second.program.graph.named_parameters()] == [
        "stages.1.1.bn2.weight",
        "stages.1.1.bn2.bias",
    ]
    assert set(second.program.layer_of.values()) == {"stages.1.1.bn2"}


def test_only_stages_that_read_the_input_get_it() -> None:
    program = program_of("two heads")
    names = [layer.name for layer in program.spec.layers]
    boundaries = (names.index("norm"), names.index("left"), names.index("head"))
    stages = [cut(program, boundaries, number) for number in range(4)]
    assert [stage.reads_input for stage in stages] == [True, False, True, False]
    assert stages[-1].sent == ("head", "auxiliary")
    assert "auxiliary" in stages[2].sent  # made in stage 1, handed on


def test_what_is_sent_lies_in_the_order_that_the_receiver_expects() -> None:
    program = program_of("vgg").double()
    inputs = data("vgg")[0].to(memory_format=torch.channels_last)
    output = watch(program)
    program(inputs)
    assert not output["features.2"][0].is_contiguous()
    (sent,) = cut(program, (3,), 0).program(inputs)
    assert sent.is_contiguous()
    assert torch.equal(sent, output["features.2"][0])


def test_a_stage_holds_nothing_of_the_others() -> None:
    stage = cut(program_of("vgg"), (4, 20), 1)
    kept = sum(p.numel() for p in stage.program.parameters())
    assert kept == spec_of("vgg").parameter_items - sum(
        layer.shape.parameter_items
        for layer in (*spec_of("vgg").layers[:4], *spec_of("vgg").layers[20:])
    )


def slowest(flops: list[float], boundaries: tuple[int, ...]) -> float:
    sums = [0.0, *accumulate(flops)]
    return max(sums[b] - sums[a] for a, b in pairwise((0, *boundaries, len(flops))))


def test_without_boundaries_stages_are_balanced_by_operations() -> None:
    spec = spec_of("vgg")
    flops = [layer.shape.forward_flops(1) for layer in spec.layers]
    for p in (2, 3):
        found = with_boundaries(spec, Division("pipeline", p, 4))
        best = min(
            slowest(flops, (a,) if p == 2 else (a, b))
            for a in range(1, len(flops))
            for b in range(a + 1, len(flops))
        )
        assert slowest(flops, found.boundaries) == pytest.approx(best)


def test_given_boundaries_and_other_strategies_stay() -> None:
    given_by_hand = Division("pipeline", 3, 4, boundaries=(2, 7))
    assert with_boundaries(spec_of("vgg"), given_by_hand).boundaries == (2, 7)
    for division in (Division("data", 2, 4), Division("pipeline", 1, 4)):
        assert with_boundaries(spec_of("vgg"), division) is division


@pytest.mark.parametrize("boundaries", [(0, 3), (3, 3), (5, 4), (4, 1000)])
def test_boundaries_that_are_no_stages_are_refused(boundaries: tuple[int, ...]) -> None:
    division = Division("pipeline", 3, 4, boundaries=boundaries)
    (why,) = why_not_trained(division, spec_of("vgg"))
    assert "numbers must rise from 1 to" in why


def test_more_stages_than_layers_are_refused() -> None:
    spec = spec_of("two heads")
    count = len(spec.layers)
    most = with_boundaries(spec, Division("pipeline", count, 4))
    assert len(most.boundaries) == count - 1
    (why,) = why_not_trained(Division("pipeline", count + 1, 4), spec)
    assert f"it has only {count} layers" in why


@pytest.mark.parametrize(
    ("name", "division", "options", "reason"),
    [
        (
            "vgg",
            Division("pipeline", 3, 4, segments=2, schedule="1f1b"),
            WorkerOptions(),
            "1F1B needs a segment for each stage: p = 3, but there are 2 segments",
        ),
        (
            "resnet",
            Division("pipeline", 2, 4, segments=2),
            WorkerOptions(synchronized_batch_norm=True),
            "bn1 normalises one micro-batch after the other, which cannot be synchronised",
        ),
    ],
)
def test_what_a_rank_refuses(
    name: str, division: Division, options: WorkerOptions, reason: str
) -> None:
    """Before anything is asked of the other ranks."""
    nobody: Any = None
    module = built(ENTRIES[name], 0)
    task = Task(ENTRIES[name], module, nobody, division, nobody, nobody, options)
    with pytest.raises(InputError) as refused:
        make_worker(task)
    assert str(refused.value) == reason


@pytest.mark.parametrize("name", sorted(ENTRIES))
def test_what_crosses_under_autocast_is_what_a_run_sends(name: str) -> None:
    program = program_of(name).float()
    inputs = data(name)[0].float()
    buffers = {key: value.clone() for key, value in program.named_buffers()}
    state = torch.random.get_rng_state()
    like = torch.empty_like(inputs, device="meta")
    cast = torch.autocast("cpu", torch.bfloat16)
    boundaries = (len(program.spec.layers) // 2,)
    received, found = border_tensors(program, boundaries, 0, like, torch.device("cpu"), cast)
    assert [(of.shape, of.dtype) for of in received] == [(inputs.shape, inputs.dtype)]
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(value, buffers[key]) for key, value in program.named_buffers())
    with torch.autocast("cpu", torch.bfloat16):
        sent = cut(program, boundaries, 0).program(inputs)
    assert [alike(of) for of in found] == [alike(of) for of in sent]
    cast = torch.autocast("cpu", torch.bfloat16)
    again = border_tensors(program, boundaries, 1, like, torch.device("cpu"), cast)[0]
    assert [alike(of) for of in again] == [alike(of) for of in sent]
    assert torch.bfloat16 in {of.dtype for of in sent}


@pytest.mark.mpi
@pytest.mark.waits
@needs_mpiexec
def test_on_ranks_every_value_is_the_serial_one() -> None:
    """Both schedules and backends, p = 2 and 3, three steps of the optimizer: pipeline_ranks.py."""
    differences = json.loads(said(RANKS, PROGRAM).splitlines()[-1])
    assert len(differences) == len(CASES)
    for case, difference in zip(CASES, differences, strict=True):
        assert difference <= 1e-10, f"{case}: {difference}"
