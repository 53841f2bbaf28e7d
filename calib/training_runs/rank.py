"""A rank's part of a training run. It imports PyTorch."""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path

from calib.driver.ranks import driven, emit
from calib.microbench.communicators.mpi import MpiCommunicator
from calib.oracle.division import Division
from calib.rundir import prepare_training
from calib.training.run.record import TrainingRun
from calib.training.runner import Job, train
from calib.training.stopping import Stopping
from calib.training.worker import Options
from calib.training_runs.options import model_entry, model_layers
from calib.training_runs.plan import show_planned
from calib.training_runs.runs import Asked, machine_of, needs_layers, whole_run
from calib.training_runs.table import summarize


def run_as_rank(
    communicator: MpiCommunicator, asked: Asked, division: Division, path: Path, quiet: bool = False
) -> TrainingRun | None:
    """SPMD: one run. Rank 0 of a person's own launch says how it went, and returns it."""
    settings = asked.settings
    if communicator.rank == 0:
        prepare_training(path)
    job = Job(
        model_entry(asked.model, settings.own),
        division,
        settings.backend,
        Options(settings.optimizer, settings.dtype, settings.synchronized_batch_norm, settings.ddp),
        Stopping(settings.iterations, settings.precision),
        seed=settings.seed,
        spec=model_layers(asked.model, settings.own, division.strategy)
        if needs_layers(division.strategy, division.p)
        else None,
        fingerprint=machine_of(communicator, asked.cluster, path),
        command=os.environ.get("CALIB_COMMAND", "direct"),
        plan=asked.plan.digest if asked.plan else "",
    )
    train(communicator, job, path, partial(emit, to=sys.stderr) if quiet else emit, settings.hang_s)
    if communicator.rank != 0 or driven():
        return None
    run = whole_run(path)
    if not quiet:
        summarize(run, path)
        show_planned(asked.plan, run)
    return run
