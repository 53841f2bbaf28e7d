"""Models in place on real ranks, with messages of one item: mpiexec -n 2 python FILE.

Each strategy's case of the plan is measured once. Rank 0 prints, as JSON by strategy, how many
repetitions every row has and on how many ranks; and of every rank how far its weights moved, and
whether anything was filled in. Under "overlap" the same of a case of overlap, and whether both kinds of
iteration have the same gradients, those of all ranks.
"""

from __future__ import annotations

import json
from typing import Any

import torch
from torch import Tensor, nn

from calib.foundation.division import Division
from calib.microbench.cases import InPlaceCase
from calib.microbench.communicators.mpi import MpiCommunicator
from calib.microbench.communicators.torch_short import FILLED
from calib.microbench.timing.repeat import Repetitions
from calib.oracle.trace.tracing import trace
from calib.planning.layers import in_place_case
from calib.planning.points import Point
from calib.training.in_place import iterations as in_place
from calib.training.in_place import overlap
from calib.training.in_place.iterations import measure_in_place
from calib.training.models import ModelEntry
from calib.training.step import TrainingStep

STRATEGIES = ("data", "filter", "channel", "tensor", "spatial", "pipeline")
RANKS, BATCH, SEGMENTS = 2, 2, 3


class Small(nn.Module):
    """A convolution and a pooling with halos, a ReLU that is used twice, and whole layers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.relu, self.pool = nn.ReLU(), nn.MaxPool2d(3, 1, 1)
        self.fc1, self.fc2 = nn.Linear(4 * 8 * 8, 6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, 3, 8, 8) -> (batch, 2)."""
        x = self.pool(self.relu(self.conv1(x)))
        x = self.relu(self.conv2(x))
        y: Tensor = self.fc2(self.fc1(torch.flatten(x, 1)))
        return y


ABOUT = ModelEntry("small", Small, (3, 8, 8), "mse", 2, BATCH)
SPEC = trace(Small(), ABOUT.input_shape, ABOUT.name, ABOUT.loss)
TWICE = {"relu", "relu#2"}


def case_of(strategy: str, p: int) -> InPlaceCase:
    """That of the plan: `BATCH` samples at once on each of p ranks, in groups of two."""
    segments = SEGMENTS if strategy == "pipeline" else 1
    inner = 2 if "+" in strategy else 1
    replicas = Division(strategy, p, p * segments, inner, segments).replicas
    division = Division(strategy, p, BATCH * segments * replicas, inner, segments)
    return in_place_case(Point(SPEC, division, launch=p), "momentum")


def kept_steps() -> list[tuple[TrainingStep, list[Tensor]]]:
    """The steps that measure_in_place makes, each with a copy of the weights that it began with."""
    made: list[tuple[TrainingStep, list[Tensor]]] = []

    class Kept(TrainingStep):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            made.append((self, [p.detach().clone() for p in self.parameters]))

    modules: list[Any] = [in_place, overlap]
    for of in modules:
        of.TrainingStep, of.entry = Kept, lambda *_: ABOUT
    return made


def rows_of(result: Repetitions) -> dict[str, list[int]]:
    """Of each operation how many repetitions there are, and on how many ranks."""
    assert min(min(row) for of in result.ranks.values() for row in of) >= 0.0
    return {name: [len(of), *{len(row) for row in of}] for name, of in result.ranks.items()}


def moved(step: TrainingStep, begun: list[Tensor]) -> float:
    """How far the weights have moved since."""
    pairs = zip(step.parameters, begun, strict=True)
    return max(float((now.detach() - then).abs().max()) for now, then in pairs)


def of_overlap(control: MpiCommunicator, steps: list[tuple[TrainingStep, list[Tensor]]]) -> Any:
    """The case of overlap, measured."""
    steps.clear()
    case = case_of("data", RANKS).model_copy(update={"is_overlap": True})
    result = measure_in_place(control, case, 1, 0.0, 0.5)
    sums = [  # of the gradients of all iterations
        torch.cat([step.optimizer.state[p]["momentum_buffer"].flatten() for p in step.parameters])
        for step, _ in steps
    ]
    every = [torch.tensor(each) for each in control.allgather_object([g.tolist() for g in sums])]
    return {
        "rows": rows_of(result),
        "warmup": result.warmup,
        "moved": [moved(*step) for step in steps],
        "same": all(torch.allclose(g, every[0][0], atol=1e-5) for each in every for g in each),
        "some": float(every[0].abs().max()) > 0,
    }


def main() -> None:
    """Measure them all."""
    control = MpiCommunicator()
    in_place.SETTLE_S = 0.0  # how many iterations that are depends on the machine
    steps, found = kept_steps(), {}
    for strategy in STRATEGIES:
        result = measure_in_place(control, case_of(strategy, RANKS), 1, 0.0, 0.5)
        step, begun = steps.pop()
        # those of the layers' pass: nobody has taken them
        about = {
            "moved": moved(step, begun),
            "filled": FILLED.take() > 0.0,
            "momentum": len(step.optimizer.state),
        }
        found[strategy] = {
            "rows": rows_of(result),
            "warmup": result.warmup,
            "memory": bool(result.memory),
            "ranks": control.allgather_object(about),
        }
    found["overlap"] = of_overlap(control, steps)
    if control.rank == 0:
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
