"""What a rank of tests says of training on parts: gradients, and the bytes that the oracle counts."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from calib.foundation.division import Division
from calib.microbench.communicators.mpi import MpiCommunicator
from calib.oracle.memory.live_bytes import live_bytes
from calib.training.checks.gradients import gradient_difference
from calib.training.footprint import peak_live_bytes
from calib.training.models import ModelEntry
from calib.training.step import TrainingStep
from calib.training.teams import make_teams
from calib.training.worker import WorkerOptions

NUMBERS = 1024  # bytes of single numbers, which the count leaves out


def say(control: MpiCommunicator, cases: Iterable[tuple[ModelEntry, Division, str]]) -> None:
    """A line for each model, division and execution: the difference, the peak, the count."""
    torch.set_num_threads(1)
    for about, division, execution in cases:
        teams, options = make_teams(control, division, "mpi"), WorkerOptions(execution=execution)
        off = gradient_difference(about, division, 3, teams, options)
        step = TrainingStep(about, division, 3, teams, options)
        step.iterate()
        peaks = control.allgather_object(peak_live_bytes(step))
        spec = step.worker.module.spec.run_as(execution)  # type: ignore[union-attr, operator]
        counted = live_bytes(spec, division, "momentum", widens=True)
        if control.rank == 0:
            print(off, max(peaks), counted, flush=True)
        step.close()
        teams.close()
        del step, teams


def check(lines: list[str], count: int, exact: float) -> None:
    """So many lines, each right."""
    assert len(lines) == count
    for off, measured, counted in map(str.split, lines):
        assert float(off) < exact
        assert abs(int(measured) - int(counted)) <= NUMBERS
