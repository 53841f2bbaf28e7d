"""Models of operators under every strategy that divides layers, on real ranks: mpiexec -n 4 python FILE.

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
from calib.training.teams import make_teams
from calib.training.worker import WorkerOptions


class Case(NamedTuple):
    """A model, a division, and the backend of its ranks."""

    model: str
    division: Division
    backend: str = "mpi"


def of(models: str, strategy: str, p: int, backend: str = "mpi", **more: Any) -> list[Case]:
    """The case of every model."""
    division = Division(strategy, p, 8, **more)
    return [Case(model, division, backend) for model in models.split()]


OTHERS = {
    name: entry_of(name) for name in ("vision", "language", "of-two", "images", "cut-images")
} | {"pooled": POOLED}
CASES = [
    *of("vision language of-two", "pipeline", 2, segments=2),
    *of("vision language", "pipeline", 4, segments=4, schedule="1f1b"),
    *of("gpt vit awkward lstm pooled", "pipeline", 2, segments=2),
    *of("gpt convnext shifted", "pipeline", 3, segments=4, schedule="1f1b"),
    *of("gpt mobile unet rotary", "pipeline", 4, segments=4, schedule="1f1b"),
    *of("awkward", "pipeline", 3, "gloo", segments=2),
    *of("gpt vit convnext windows lstm pooled", "filter", 2),
    *of("vit mobile", "filter", 3),
    *of("gpt unet awkward recurrent", "channel", 2),
    *of("gpt mobile", "data+filter", 4, inner=2),
    *of("unet", "spatial", 2, grid=(2,)),
    *of("mobile", "spatial", 4, grid=(2, 2)),
    *of("mobile unet", "data+spatial", 4, inner=2, grid=(2,)),
    *of("images cut-images", "spatial", 4, grid=(2, 2)),
    *of("cut-images", "data+spatial", 4, inner=2, grid=(2,)),
    *of("cut-images", "filter", 2),
    *of("cut-images", "channel", 2),
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
        about, options = (ENTRIES | OTHERS)[case.model], WorkerOptions()
        mine[number] = gradient_difference(about, case.division, 3, teams, options)
        teams.close()
    everyone = world.allgather_object(sorted(mine.items()))
    if world.rank == 0:
        found: list[list[float]] = [[] for _ in CASES]
        for number, difference in (pair for of_rank in everyone for pair in of_rank):
            found[number].append(difference)
        print(json.dumps(found))


if __name__ == "__main__":
    main()
