"""Models of operators under every strategy that divides layers; on real ranks: mpiexec -n 4 python FILE.

Each case trains a step on p of the ranks and compares loss and gradients with those of the module by
itself, in float64. Rank 0 prints the relative differences of each case, as its ranks
found them, as JSON.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import torch
from tests.helpers.side_by_side import side_by_side
from tests.oracle.checkpointed_models import entry_of
from tests.training.operator_models import ENTRIES, POOLED

from calib.foundation.division import Division
from calib.microbench.communicators.mpi import MpiCommunicator
from calib.training.checks.gradients import gradient_difference
from calib.training.models import ModelEntry
from calib.training.teams import make_teams
from calib.training.worker import WorkerOptions


class Case(NamedTuple):
    """A model, a division, and the backend of its ranks."""

    model: str
    division: Division
    backend: str = "mpi"

    @property
    def about(self) -> ModelEntry:
        """The model."""
        known = {**ENTRIES, "pooled": POOLED}
        return known.get(self.model) or entry_of(self.model)

    def __str__(self) -> str:
        return f"{self.model} {self.division.slug} p={self.division.p}"


def of(models: str, strategy: str, p: int, backend: str = "mpi", **more: Any) -> list[Case]:
    """The case of every model."""
    division = Division(strategy, p, 8, **more)
    return [Case(model, division, backend) for model in models.split()]


# every rank traces each of its models: what MPI has no part in is checked on threads
ON_THREADS = [
    *of("vit convnext windows lstm cut-images", "filter", 2),
    *of("vit mobile", "filter", 3),
    *of("unet awkward recurrent cut-images", "channel", 2),
    *of("mobile", "data+filter", 4, inner=2),
    *of("mobile unpooled", "spatial", 4, grid=(2, 2)),
    *of("mobile", "data+spatial", 4, inner=2, grid=(2,)),
    *of("images cut-images", "spatial", 4, grid=(2, 2)),
    *of("cut-images", "data+spatial", 4, inner=2, grid=(2,)),
]
CASES = [
    *of("vision of-two vit lstm pooled", "pipeline", 2, segments=2),
    *of("language convnext shifted mobile rotary", "pipeline", 2, segments=4, schedule="1f1b"),
    *of("gpt", "pipeline", 3, segments=4, schedule="1f1b"),
    *of("awkward", "pipeline", 3, "gloo", segments=2),
    *of("gpt unet", "pipeline", 4, segments=4, schedule="1f1b"),
    *of("gpt pooled", "filter", 2),
    *of("gpt", "channel", 2),
    *of("gpt", "data+filter", 4, inner=2),
    *of("unet", "spatial", 2, grid=(2,)),
    *of("unet", "data+spatial", 4, inner=2, grid=(2,)),
]
RANKS = max(case.division.p for case in CASES)


def main() -> None:
    """All cases."""
    torch.set_num_threads(1)
    world, mine = MpiCommunicator(), {}
    numbers = range(len(CASES))
    for number, control in side_by_side(world, numbers, lambda number: CASES[number].division.p):
        case = CASES[number]
        teams = make_teams(control, case.division, case.backend)
        mine[number] = gradient_difference(case.about, case.division, 3, teams, WorkerOptions())
        teams.close()
    everyone = world.allgather_object(sorted(mine.items()))
    if world.rank == 0:
        found: list[list[float]] = [[] for _ in CASES]
        for number, difference in (pair for of_rank in everyone for pair in of_rank):
            found[number].append(difference)
        print(json.dumps(found))


if __name__ == "__main__":
    main()
