"""The serial training that a case of test_equality.py must equal, and how far float32 may be from it."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from functools import cache

import torch
from tests.helpers.norms import Tensors, norms_of
from tests.training.equality_program import BATCH, CURVE, MODELS, SEED, STEPS, Case, joint_batch
from tests.training.rounding import DRAWN, WIDER, Noise, round_program, round_weights, rounded_loss
from torch import Tensor

from calib.foundation.division import Division
from calib.training.checks.serial import batch_chunks, define_norms, has_batch_norm
from calib.training.layer_program import layer_program
from calib.training.models import built
from calib.training.step import loss_function


@dataclass(frozen=True)
class Definition:
    """What a reference depends on: of cases that differ in nothing of it, it is the same."""

    model: str
    optimizer: str
    norm: Division | None = None  # that cuts the batch norms


@cache
def definition_of(case: Case) -> Definition:
    """Of strategies that normalise alike, and of all without batch norms, the same."""
    if not has_batch_norm(built(MODELS[case.model], SEED)):
        return Definition(case.model, case.optimizer)
    division = case.division
    cut = division.traits.cuts == "image" or batch_chunks(division) > 1
    if not cut or case.synchronized:
        return Definition(case.model, case.optimizer)
    if division.strategy in ("data", "data+filter"):  # of p1 chunks each
        division = Division("data", batch_chunks(division), division.batch)
    division = replace(division, gradients="leaders", schedule="gpipe")  # not of the norms
    return Definition(case.model, case.optimizer, division)


@dataclass
class Training:
    """What a serial training leaves, by "output|layer", "gradient|layer", "weight|parameter",
    "after|parameter" (after STEPS) and "running_mean|layer|replica|cell"; and its losses."""

    tensors: dict[str, Tensor]
    losses: list[float]


def optimizer_of(name: str, parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """What training says that it uses: a rate of 1e-3, a momentum of 0.9."""
    if name == "adam":
        return torch.optim.Adam(parameters, lr=1e-3)
    return torch.optim.SGD(parameters, lr=1e-3, momentum=0.9)


def train_serially(of: Definition, iterations: int, noise: Noise | None = None) -> Training:
    """Plain torch on the joint batch in float64; with `noise`, every sum wrong by its bound."""
    about = MODELS[of.model]
    program = layer_program(built(about, SEED).double().train(), about, BATCH[of.model])
    define_norms(program, of.norm or Division("serial", 1, 1), synchronized=False)
    inputs, targets = joint_batch(of.model)
    inputs = inputs.double()
    targets = targets.double() if targets.is_floating_point() else targets
    loss_of, seen = loss_function(about), Tensors()
    named = dict(program.graph.named_parameters())
    if noise is not None:
        round_program(program, noise)
        loss_of = rounded_loss(loss_of, noise)
    optimizer = optimizer_of(of.optimizer, list(named.values()))
    found, losses = dict[str, Tensor](), list[float]()
    for iteration in range(iterations):
        program.observer = seen.see if iteration == 0 else None
        loss = loss_of(program(inputs), targets)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        losses.append(float(loss.detach()))
        if iteration == 0:
            found |= {f"weight|{n}": p.grad.clone() for n, p in named.items() if p.grad is not None}
            for layer, norm in norms_of(program):
                for (replica, cell), (mean, variance) in norm.running.items():
                    assert mean is not None and variance is not None
                    found[f"running_mean|{layer}|{replica}|{cell}"] = mean.clone()
                    found[f"running_var|{layer}|{replica}|{cell}"] = variance.clone()
        optimizer.step()
        if noise is not None:
            round_weights(list(named.values()), noise)
        if iteration + 1 == STEPS:
            found |= {f"after|{n}": p.detach().clone() for n, p in named.items()}
    found |= {f"output|{layer}": y for layer, (y,) in seen.outputs.items()}
    found |= {f"gradient|{layer}": dy for layer, (dy,) in seen.gradients.items() if dy is not None}
    return Training(found, losses)


@cache
def reference(of: Definition, curve: bool) -> Training:
    """Exact, or as near as float64 is."""
    return train_serially(of, CURVE if curve else STEPS)


@cache
def float32_bound(of: Definition, curve: bool) -> Training:
    """By the same names: how far a float32 training may be from `reference`, item by item."""
    iterations = CURVE if curve else STEPS
    exact = reference(of, curve)
    drawn = [train_serially(of, iterations, Noise(seed)) for seed in range(DRAWN)]
    tensors = {
        name: torch.tensor(
            WIDER
            * max(float((other.tensors[name] - value).detach().abs().max()) for other in drawn)
        )
        for name, value in exact.tensors.items()
    }
    losses = [
        WIDER * max(abs(other.losses[i] - value) for other in drawn)
        for i, value in enumerate(exact.losses[:iterations])
    ]
    # an error that has grown once is not taken back: rounding may be at its worst an iteration early
    return Training(tensors, list(itertools.accumulate(losses, max)))


def starting_weights(model: str) -> dict[str, Tensor]:
    """Before the first update, by parameter."""
    module = built(MODELS[model], SEED).double()
    return {name: parameter.detach().clone() for name, parameter in module.named_parameters()}
