"""What a rank runs under each strategy: one file each, under the oracle's names."""

from __future__ import annotations

from importlib import import_module

from calib.foundation.errors import InputError
from calib.foundation.execution import execution_of
from calib.oracle.layout.shards import fitted
from calib.oracle.layout.stages import with_boundaries
from calib.training.allowed import WHOLE, why_not_trained
from calib.training.worker import Task, Worker

PLANNED = "layerwise"  # a plan per layer, which is no strategy for a whole model


def make_worker(task: Task) -> Worker:
    """This rank's work under the division of `task`, which gets its grid and stages; collective.

    Raises InputError with the reason where training cannot run so.
    """
    division, options, model = task.division, task.options, None
    if division.p > 1 and not division.traits.whole and not division.faults:
        _check_autocast(task)
        model = task.program.spec
        division = fitted(model, division)
    reasons = why_not_trained(
        division,
        model,
        options.execution,
        options.synchronized_batch_norm,
        options.ddp,
        task.about.input_shape,
        next(task.module.parameters()).device.type,
    )
    if reasons:
        raise InputError(reasons[0])
    if model is not None:
        task.division = division = with_boundaries(model, division)
    if division.p != task.teams.world.size:
        size = task.teams.world.size
        raise InputError(f"{division.strategy} on p = {division.p}, but {size} ranks run")
    module = (
        "calib.training.plans.program"
        if division.strategy == PLANNED
        else f"{__name__}.{division.traits.module}"
    )
    worker: Worker = import_module(module).make(task)
    return worker


def _check_autocast(task: Task) -> None:
    """Raise InputError where a program would not be its model under autocast (see TrainedGraph)."""
    narrowed, execution = task.program.narrowed, task.options.execution
    if narrowed and execution_of(execution).items.mixed:
        raise InputError(
            f"{task.about.name} turns autocast off and reads {narrowed} there, whose item type a trace "
            f"does not tell: in {execution} only {WHOLE} train it"
        )
