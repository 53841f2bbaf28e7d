"""Gradients and loss must equal the serial ones on a small joint batch before a run.

What training itself runs (TrainingStep) runs once in float64, so that what is found is a mistake and
not rounding, with dropout off (its masks differ by definition). Rank 0 computes the same samples
serially, by plain torch, with batch normalisation as the strategy defines it
(training/checks/serial.py), and every rank compares the parts of the weights that it holds. A plan per
layer differs from serial training in batch normalisation alone: every part of such a layer is normalised
by itself.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from calib.foundation.division import Division
from calib.foundation.errors import MeasurementError
from calib.microbench.timing.watchdog import beat, idle
from calib.oracle.layout.partitions import Configuration
from calib.oracle.layout.spatial import part_ranges
from calib.training.checks.serial import PiecewiseNorm, batch_chunks, define_norms, has_batch_norm
from calib.training.gradients.sharded import ShardedGradients
from calib.training.layer_program import LayerProgram, layer_program
from calib.training.models import ModelEntry, built
from calib.training.plans.division import LayerwiseDivision
from calib.training.run.lines import GRADIENT_TOLERANCE
from calib.training.step import TrainingStep, loss_function, synthetic_batch
from calib.training.teams import Teams
from calib.training.worker import WorkerOptions

# a tensor whose gradient is nothing (of a bias before batch normalisation) has rounding for a gradient:
# no tensor counts as smaller than this share of the largest gradient of all
NOTHING = 1e-9
CUT_SAMPLES = 8  # of a replica, where parts of images are normalised
_DROPOUT = (
    F.dropout,
    F.dropout1d,
    F.dropout2d,
    F.dropout3d,
    F.alpha_dropout,
    F.feature_alpha_dropout,
)


def smallest(division: LayerwiseDivision, samples: int) -> LayerwiseDivision:
    """The same parts of the fewest samples: at least `samples` for each part."""
    return replace(division, batch=samples * division.sample_degrees)


def define_plan_norms(program: LayerProgram, division: LayerwiseDivision) -> None:
    """Let the batch normalisation of a serial program be that of the parts; in place."""
    for layer, of in zip(program.spec.layers, division.configurations, strict=True):
        if layer.shape.kind != "batch_norm":
            continue
        norm = program.graph.get_submodule(str(program.node_of(layer.name).target))
        assert isinstance(norm, nn.modules.batchnorm._BatchNorm)
        cells = cells_of(of, layer.shape.output_shape[1:])
        program.replace_module(layer.name, PiecewiseNorm(norm, of.sample, cells, in_turn=False))
    program.recompile()


def cells_of(of: Configuration, lengths: tuple[int, ...]) -> list[tuple[slice, ...]]:
    """The parts of an image of such lengths that are normalised apart."""
    cuts = [part_ranges(n, parts) for n, parts in zip(lengths, of.spatial, strict=False)]
    return [tuple(slice(*part) for part in cell) for cell in itertools.product(*cuts)]


class WithoutDropout(TorchFunctionMode):
    """`with` it, dropout passes its input on; that of modules and of functions, in this thread."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        keywords = kwargs or {}
        if func in _DROPOUT:
            return args[0] if args else keywords["input"]
        return func(*args, **keywords)


def gradient_difference(
    about: ModelEntry, division: Division, seed: int, teams: Teams, options: WorkerOptions
) -> float:
    """Largest |exchanged - serial| / max |serial| over the tensors and ranks, the loss among them.

    The same on every rank; collective over the world of `teams`, which it leaves as it was, and so
    torch's generators. Raises MeasurementError above GRADIENT_TOLERANCE and for a NaN: a wrong result
    has no time.
    """
    with torch.random.fork_rng(devices=[]):
        small = _small(about, division)
        step = TrainingStep(about, small, seed, teams, replace(options, dtype="float64"))
        try:
            difference = _compare(step, seed, teams)
        finally:
            step.close()
    if not difference <= GRADIENT_TOLERANCE:
        raise MeasurementError(
            f"{about.name} under {division.strategy} on {division.p} ranks: gradients differ from the "
            f"serial ones by {difference:.1e} (limit {GRADIENT_TOLERANCE:.0e}); nothing was timed"
        )
    return difference


def _template(about: ModelEntry) -> nn.Module:
    """The whole model, for its names and shapes; without memory where it can be built so."""
    try:
        with torch.device("meta"):
            return about.build()
    except RuntimeError:  # a build that looks at its values
        return built(about, 0)


def _small(about: ModelEntry, division: Division) -> Division:
    """The same parts of the fewest samples: one for each replica and micro-batch.

    Two with batch normalisation, which of one image of 1 x 1 has one value. More where images are cut:
    of two values the variance may be as good as nothing, and dividing by it makes 2e-4 of rounding.
    """
    if isinstance(division, LayerwiseDivision):
        return smallest(division, CUT_SAMPLES if has_batch_norm(_template(about)) else 1)
    cut = division.traits.cuts == "image" and division.parts > 1
    samples = (CUT_SAMPLES if cut else 2) if has_batch_norm(_template(about)) else 1
    return replace(division, batch=samples * batch_chunks(division))


def _compare(step: TrainingStep, seed: int, teams: Teams) -> float:
    """Run the step and compare what this rank has; the worst of all ranks, infinite for a NaN."""
    world = teams.world
    first = world.rank == 0
    step.clock.begin("forward")
    with WithoutDropout():
        loss = step.worker.compute(step.inputs, step.targets)
    step.exchange_gradients()
    exchange = step.worker.exchange
    if isinstance(exchange, ShardedGradients):  # a rank has but its piece of the averages
        exchange.average([p.grad for p in step.parameters if p.grad is not None])
    losses = torch.zeros(2, dtype=torch.float64, device=world.device)
    if loss is not None:
        losses[0], losses[1] = loss, 1.0
    world.allreduce(losses)  # of every replica the same number of ranks have it
    serial_loss, serial = _serial(step, seed) if first else (0.0, {})
    # the loss, and the largest gradient of all
    about_all = torch.zeros(2, dtype=torch.float64, device=world.device)
    if first:
        about_all[0], about_all[1] = serial_loss, max(float(g.abs().max()) for g in serial.values())
    with nullcontext() if first else idle():  # until rank 0 has its reference
        world.broadcast(about_all, 0)
    floor = NOTHING * float(about_all[1])
    worst = [_relative(losses[:1] / losses[1], about_all[:1], floor)]
    mine = {held.name: held for held in step.worker.held}
    holders = torch.zeros(1, dtype=torch.float64, device=world.device)
    for name, like in _template(step.about).named_parameters():
        whole = torch.empty(like.numel(), dtype=torch.float64, device=world.device)
        if first:
            whole.copy_(serial[name].reshape(-1))
        world.broadcast(whole, 0)
        beat()
        held = mine.get(name)
        holders.fill_(held is not None)
        world.allreduce(holders)
        if not holders and like.requires_grad:
            worst.append(math.inf)  # a weight that nobody trains
        if held is not None:
            expected = held.cut(whole.view(like.shape))
            found = held.parameter.grad
            scale = max(float(whole.abs().max()), floor)
            worst.append(_relative(expected * 0.0 if found is None else found, expected, scale))
    everyone = torch.empty(world.size, dtype=torch.float64, device=world.device)
    world.allgather(torch.full_like(everyone[:1], max(worst)), everyone)
    return float(everyone.max())


def _relative(found: Tensor, expected: Tensor, least: float) -> float:
    """Largest |found - expected| / max(|expected|, least); infinite for a NaN."""
    if not found.numel():
        return 0.0
    scale = max(float(expected.abs().max()), least, torch.finfo(torch.float64).tiny)
    difference = float((found.detach() - expected).abs().max()) / scale
    return difference if math.isfinite(difference) else math.inf  # max() may forget a NaN


def _serial(step: TrainingStep, seed: int) -> tuple[float, dict[str, Tensor]]:
    """Mean loss and its gradients over the joint batch of all replicas, by parameter."""
    about, division = step.about, step.division
    device = step.inputs.device
    module = built(about, seed).to(device=device, dtype=torch.float64).train()
    for part in module.modules():
        part.register_forward_hook(lambda *_: beat())
    run: nn.Module = module
    chunks = batch_chunks(division)
    normalized = has_batch_norm(module)
    if normalized and isinstance(division, LayerwiseDivision):
        program = layer_program(module, about)
        define_plan_norms(program, division)
        run = program
    elif normalized and step.options.synchronized_batch_norm and not division.traits.stages:
        chunks = 1
    elif normalized and division.traits.cuts == "image":
        program = layer_program(module, about)
        define_norms(program, division, synchronized=False)
        run, chunks = program, 1
    each = division.batch // division.replicas
    batches = [synthetic_batch(about, each, seed + 1 + r) for r in range(division.replicas)]
    inputs, targets = (torch.cat(parts).to(device) for parts in zip(*batches, strict=True))
    inputs = inputs.to(torch.float64)
    if targets.is_floating_point():
        targets = targets.to(torch.float64)
    loss_of, total = loss_function(about), 0.0
    for x, t in zip(inputs.chunk(chunks), targets.chunk(chunks), strict=True):
        with WithoutDropout():
            loss = loss_of(run(x), t) / chunks
        torch.autograd.backward(loss)
        total += float(loss.detach())
    return total, {
        name: torch.zeros_like(p) if p.grad is None else p.grad
        for name, p in module.named_parameters()
    }
