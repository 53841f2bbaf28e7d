"""What a rank runs under each strategy: one file each, under the oracle's names."""

from __future__ import annotations

from importlib import import_module

from calib.foundation.division import STRATEGIES
from calib.foundation.errors import InputError
from calib.training.worker import Task, Worker

PLANNED = "layerwise"  # of a plan per layer, which is no strategy for a whole model


def make_worker(task: Task) -> Worker:
    """This rank's work under the division of `task`; collective over all ranks.

    Raises InputError with the reason where the strategy cannot divide the model, the batch or the
    ranks so.
    """
    division = task.division
    if division.strategy not in (*STRATEGIES, PLANNED):
        raise InputError(f"unknown strategy {division.strategy!r}; known: {', '.join(STRATEGIES)}")
    if division.faults:
        raise InputError(division.faults[0])
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
