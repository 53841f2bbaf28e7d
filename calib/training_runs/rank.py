"""A rank's part of a training run. It imports PyTorch."""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path

from calib.driver.ranks import emit, require_variables
from calib.microbench.communicators.mpi import MpiCommunicator
from calib.rundir import prepare_training
from calib.training.job import TrainingJob
from calib.training.models import entry
from calib.training.runner import Job, train
from calib.training.stopping import Stopping
from calib.training.worker import WorkerOptions
from calib.training_runs.options import divided_layers
from calib.training_runs.runs import machine_of


def run_as_rank(
    communicator: MpiCommunicator, job: TrainingJob, path: Path, quiet: bool = False
) -> None:
    """SPMD: one run, written to `path`; `quiet` sends its progress to stderr."""
    settings, division = job.settings, job.division
    require_variables(settings.variables)
    if communicator.rank == 0:
        prepare_training(path)
    what = Job(
        entry(job.model, settings.own),
        division,
        settings.backend,
        WorkerOptions(
            settings.optimizer, settings.execution, settings.synchronized_batch_norm, settings.ddp
        ),
        Stopping(settings.iterations, settings.precision),
        seed=settings.seed,
        spec=divided_layers(job.model, settings.own, division.strategy, division.p),
        fingerprint=machine_of(communicator, job.fingerprint, path),
        command=os.environ.get("CALIB_COMMAND", "direct"),
        plan=job.plan,
        series=job.series,
        traced=settings.traced,
    )
    report = partial(emit, to=sys.stderr) if quiet else emit
    train(communicator, what, path, report, settings.hang_s)
