"""Training on parts on real ranks: mpiexec -n 4 python FILE.

Each case is trained on p of the ranks. Of each a line of JSON: the difference of gradients, which are of
float64 whatever the execution and so are looked at once, the peak of live bytes, and the oracle's count.
"""

from __future__ import annotations

import gc
import json
from typing import NamedTuple

import torch
from tests.helpers.side_by_side import side_by_side
from tests.training.test_sequence import CLASS, PLAIN, sequence
from tests.training.test_sequence import GPT as SEQUENCE_GPT
from tests.training.test_sequence import VIT as SEQUENCE_VIT
from tests.training.test_tensor import APART, BLOCKS, GPT, GPT2, ODD, POOLED, VIT, tensor

from calib.foundation.division import Division
from calib.microbench.communicators.mpi import MpiCommunicator
from calib.oracle.memory.live_bytes import live_bytes
from calib.training.checks.gradients import gradient_difference
from calib.training.footprint import peak_live_bytes
from calib.training.models import ModelEntry
from calib.training.step import TrainingStep
from calib.training.teams import make_teams
from calib.training.worker import WorkerOptions


class Case(NamedTuple):
    """What is trained, and how."""

    about: ModelEntry
    division: Division
    execution: str


FLOAT32, MIXED = "float32", "bfloat16-mixed"
CASES = [
    case
    for p in (2, 4)
    for case in (
        *(Case(about, tensor(p), FLOAT32) for about in (VIT, GPT)),
        *(Case(about, tensor(p), MIXED) for about in (APART, GPT2, VIT)),
        *(Case(about, tensor(p, sequence=True), FLOAT32) for about in (POOLED, BLOCKS, VIT, ODD)),
        *(Case(about, tensor(p, sequence=True), MIXED) for about in (BLOCKS, ODD, POOLED, VIT)),
        *(Case(about, sequence(p), FLOAT32) for about in (SEQUENCE_VIT, CLASS, SEQUENCE_GPT)),
        *(Case(about, sequence(p), MIXED) for about in (CLASS, PLAIN, SEQUENCE_VIT)),
    )
]
RANKS = max(case.division.p for case in CASES)


def main() -> None:
    """All cases."""
    torch.set_num_threads(1)
    world = MpiCommunicator()
    off: dict[tuple[ModelEntry, Division], float] = {}
    for case, control in side_by_side(world, CASES, lambda case: case.division.p):
        about, division, execution = case
        teams, options = make_teams(control, division, "mpi"), WorkerOptions(execution=execution)
        key = about, division
        if key not in off:
            off[key] = gradient_difference(about, division, 3, teams, options)
        gc.freeze()  # every count of bytes looks through all objects
        step = TrainingStep(about, division, 3, teams, options)
        step.iterate()
        peaks = control.allgather_object(peak_live_bytes(step))
        spec = step.worker.module.spec.run_as(execution)  # type: ignore[union-attr, operator]
        counted = live_bytes(spec, division, "momentum", widens=True)
        if control.rank == 0:
            print(json.dumps([CASES.index(case), off[key], max(peaks), counted]), flush=True)
        step.close()
        teams.close()
        del step, teams


if __name__ == "__main__":
    main()
