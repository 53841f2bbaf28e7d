"""Before a run, gradients and loss must equal the serial ones on a small joint batch.

The step that training runs (TrainingStep: its micro-batches, memory format and graphs too) runs once in
float64, so that a difference is a mistake and not rounding, without dropout and other random numbers
(which differ by definition). Rank 0 computes the same samples serially, by plain torch, with batch
normalisation as the strategy defines it (training/checks/serial.py), and every rank compares the parts
of the weights that it holds.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import replace

import torch
from torch import Tensor, nn

from calib.foundation.division import Division
from calib.foundation.errors import InputError, MeasurementError
from calib.foundation.execution import execution_of
from calib.microbench.timing.watchdog import beat, idle
from calib.training.checks.chance import WithoutChance
from calib.training.checks.serial import batch_chunks, define_norms, has_batch_norm
from calib.training.layer_program import layer_program
from calib.training.models import ModelEntry, built
from calib.training.plans.division import LayerwiseDivision
from calib.training.run.lines import GRADIENT_TOLERANCE
from calib.training.step import TrainingStep, in_type, loss_function, synthetic_batch
from calib.training.teams import Teams
from calib.training.worker import WorkerOptions

# a gradient that is zero but for rounding (of a bias before batch normalisation) is compared with this
# share of the largest gradient of all
NOTHING = 1e-9
CUT_SAMPLES = 8  # per replica, where parts of images are normalised


def gradient_difference(
    about: ModelEntry, division: Division, seed: int, teams: Teams, options: WorkerOptions
) -> float:
    """Largest |exchanged - serial| / max |serial| over the tensors and ranks, including the loss.

    The same on every rank; collective over the world of `teams`. Leaves torch's generators as they
    were. Raises MeasurementError above GRADIENT_TOLERANCE and for a NaN: a wrong result has no time.
    """
    execution = replace(execution_of(options.execution), dtype="float64")
    with torch.random.fork_rng(devices=[]):
        small = _small(about, division)
        # a graph is what runs when it is captured
        with WithoutChance(building=True) if execution.cuda_graph else nullcontext():
            options = replace(options, execution=execution.name)
            step = TrainingStep(about, small, seed, teams, options)
        try:
            difference = _compare(step, seed, teams)
        finally:
            step.close()
    if not difference <= GRADIENT_TOLERANCE:
        raise MeasurementError(
            f"{about.name} under {division.strategy} on {division.p} ranks: gradients differ from the "
            f"serial ones by {difference:.1e} (limit {GRADIENT_TOLERANCE:.0e}); no time is kept"
        )
    return difference


def _template(about: ModelEntry) -> nn.Module:
    """The whole model, for its names and shapes; without memory where that is possible."""
    try:
        with torch.device("meta"):
            return about.build()
    except (RuntimeError, InputError):  # a build that looks at its values
        return built(about, 0)


def _small(about: ModelEntry, division: Division) -> Division:
    """The same parts of the fewest samples: one for each replica, micro-batch or part.

    Two with batch normalisation, which over one image of 1 x 1 has a single value. More where images
    are cut: the variance of two values may be almost nothing, and dividing by it turns rounding to 2e-4.
    """
    pieces = batch_chunks(division)
    cut = division.traits.cuts == "image" and division.parts > 1
    if isinstance(division, LayerwiseDivision):
        pieces, cut = division.sample_degrees, True
    samples = (CUT_SAMPLES if cut else 2) if has_batch_norm(_template(about)) else 1
    return replace(division, batch=samples * pieces)


def _compare(step: TrainingStep, seed: int, teams: Teams) -> float:
    """Run the step and compare what this rank has; the worst over all ranks, infinite for a NaN."""
    world = teams.world
    first = world.rank == 0
    step.clock.begin("forward")
    with WithoutChance(exact=True):
        loss = step.worker.compute(step.inputs, step.targets)
    step.exchange_gradients()
    step.worker.average_gradients()
    losses = torch.zeros(2, dtype=torch.float64, device=world.device.tensors)
    if loss is not None:
        losses[0], losses[1] = loss, 1.0
    world.allreduce(losses)  # the same number of ranks of every replica have it
    serial_loss, serial = _serial(step, seed) if first else (0.0, {})
    # the loss, and the largest gradient of all
    about_all = torch.zeros(2, dtype=torch.float64, device=world.device.tensors)
    if first:
        about_all[0], about_all[1] = serial_loss, max(float(g.abs().max()) for g in serial.values())
    with nullcontext() if first else idle():  # until rank 0 has its reference
        world.broadcast(about_all, 0)
    floor = NOTHING * float(about_all[1])
    worst = [_relative(losses[:1] / losses[1], about_all[:1], floor)]
    mine = {held.name: held for held in step.worker.held}
    holders = torch.zeros(1, dtype=torch.float64, device=world.device.tensors)
    for name, like in _template(step.about).named_parameters():
        whole = torch.empty(like.numel(), dtype=torch.float64, device=world.device.tensors)
        if first:
            whole.copy_(serial[name].reshape(-1))
        world.broadcast(whole, 0)
        beat()
        held = mine.get(name)
        holders.fill_(held is not None)
        world.allreduce(holders)
        untrained = name in step.about.untrained and not whole.any()
        if not holders and like.requires_grad and not untrained:
            worst.append(math.inf)  # a weight that no rank trains
        if held is not None:
            expected = held.cut(whole.view(like.shape))
            found = held.parameter.grad
            scale = max(float(whole.abs().max()), floor)
            worst.append(_relative(expected * 0.0 if found is None else found, expected, scale))
    everyone = torch.empty(world.size, dtype=torch.float64, device=world.device.tensors)
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
    if has_batch_norm(module):
        synchronized = step.options.synchronized_batch_norm
        cut = division.traits.cuts == "image" and not synchronized
        if cut or isinstance(division, LayerwiseDivision):
            program = layer_program(module, about, division.batch)
            define_norms(program, division, synchronized=False)
            run, chunks = program, 1
        elif synchronized and not division.traits.stages:
            chunks = division.accumulation
    each = division.batch // division.replicas
    batches = [synthetic_batch(about, each, seed + 1 + r) for r in range(division.replicas)]
    inputs, targets = (torch.cat(parts).to(device) for parts in zip(*batches, strict=True))
    if chunks == division.accumulation > 1:  # the n-th micro-batches of all replicas, together
        order = torch.arange(division.batch).view(division.replicas, chunks, -1)
        order = order.transpose(0, 1).reshape(-1)
        inputs, targets = inputs[order], targets[order]
    inputs, targets = in_type(inputs, torch.float64), in_type(targets, torch.float64)
    loss_of, total = loss_function(about), 0.0
    buffers = [(part, dict(part._buffers)) for part in module.modules()]
    # forwards of a replica, which has buffers of its own
    turns = division.segments if division.traits.stages else division.accumulation
    for at, (x, t) in enumerate(zip(inputs.chunk(chunks), targets.chunk(chunks), strict=True)):
        if at % turns == 0:
            for part, held in buffers:
                for name, of in held.items():
                    part._buffers[name] = None if of is None else of.clone()
        with WithoutChance(exact=True):
            loss = loss_of(run(x), t) / chunks
        torch.autograd.backward(loss)
        total += float(loss.detach())
    return total, {
        name: torch.zeros_like(p) if p.grad is None else p.grad
        for name, p in module.named_parameters()
    }
