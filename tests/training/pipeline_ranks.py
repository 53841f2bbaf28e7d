"""Pipelines on real ranks against serial training, value by value: mpiexec -n 3 python FILE.

Each case trains a small model for some steps on the first p ranks. A rank compares the layers and
weights of its stage with a serial run of its own, which takes the same micro-batches one by one, as
batch normalisation defines it. Rank 0 prints the largest relative difference of each case, as JSON.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from contextlib import nullcontext
from itertools import chain
from typing import Any, NamedTuple

import torch
from tests.training.pipeline_models import ENTRIES, WIDE, watch
from torch import Tensor

from calib.foundation.division import Division, Schedule
from calib.foundation.execution import execution_of
from calib.microbench.communicators.mpi import MpiCommunicator
from calib.microbench.item_types import weight_type
from calib.microbench.tensors import make_optimizer, update
from calib.microbench.timing.watchdog import PROGRESS
from calib.training.clock import PhaseClock
from calib.training.layer_program import layer_program
from calib.training.models import ModelEntry, built
from calib.training.step import TrainingStep, loss_function, synthetic_batch
from calib.training.teams import make_teams
from calib.training.worker import WorkerOptions

BATCH, STEPS, SEED = 8, 3, 0


MODELS = ENTRIES | {"wide": WIDE}


class Case(NamedTuple):
    """One division of one model."""

    model: str
    p: int
    segments: int
    schedule: Schedule
    boundaries: tuple[int, ...] = ()
    backend: str = "mpi"
    dtype: str = "float64"


CASES = (
    Case("resnet", 3, 4, "1f1b", (19, 32)),  # inside two residual blocks
    Case("two heads", 2, 2, "gpipe", (15,)),  # the last stage is the loss alone
    Case("two heads", 3, 1, "gpipe", (1, 5)),  # the first stage has no weights, nor gradients
    Case("two heads", 3, 4, "1f1b", (6, 13)),  # the second stage reads the model's input too
    Case("wide", 3, 4, "gpipe"),
    Case("wide", 3, 4, "1f1b", (3, 5)),
    Case("wide", 2, 2, "gpipe", (3,), dtype="bfloat16-mixed"),
    Case("wide", 3, 4, "1f1b", (1, 3), "gloo"),
)
RANKS = max(case.p for case in CASES)


class Largest:
    """The largest difference so far, in units of the expected tensor's largest value."""

    def __init__(self) -> None:
        self.found = 0.0

    def compare(self, found: Tensor | None, expected: Tensor | None) -> None:
        if found is None or expected is None:
            assert found is None and expected is None
            return
        assert found.shape == expected.shape and found.dtype == expected.dtype
        scale = float(expected.detach().abs().max()) or 1.0
        difference = float((found.detach() - expected.detach()).abs().max()) / scale
        self.found = max(self.found, float("inf") if math.isnan(difference) else difference)


class Serial:
    """The same training on one rank, micro-batch by micro-batch."""

    def __init__(self, about: ModelEntry, case: Case) -> None:
        dtype = weight_type(execution_of(case.dtype))
        self.program = layer_program(built(about, SEED).to(dtype), about, BATCH // case.segments)
        self.loss_of, self.segments = loss_function(about), case.segments
        self.parameters = dict(self.program.graph.named_parameters())
        self.optimizer = make_optimizer(list(self.parameters.values()))
        inputs, targets = synthetic_batch(about, BATCH, SEED + 1)
        self.pieces = list(
            zip(inputs.to(dtype).chunk(self.segments), targets.chunk(self.segments), strict=True)
        )
        self.cast: Any = nullcontext
        if case.dtype == "bfloat16-mixed":
            self.cast = lambda: torch.autocast("cpu", torch.bfloat16)

    def compute(self) -> float:
        """Forwards and backwards; the mean loss."""
        whole = 0.0
        for inputs, targets in self.pieces:
            with self.cast():
                loss = self.loss_of(self.program(inputs), targets) / self.segments
            loss.backward()
            whole += loss.item()
        return whole


def phases_of(clock: PhaseClock) -> list[str]:
    """The phases that the clock is put in, from now on."""
    seen: list[str] = []

    def switch(phase: str) -> str:
        seen.append(phase)
        return PhaseClock.switch(clock, phase)

    clock.switch = switch
    return seen


def run(case: Case, control: MpiCommunicator) -> float:
    """The largest difference on this rank."""
    about = MODELS[case.model]
    of = {name: getattr(case, name) for name in ("segments", "schedule", "boundaries")}
    division = Division("pipeline", case.p, BATCH, **of)
    teams = make_teams(control, division, case.backend)
    serial, largest = Serial(about, case), Largest()
    step = TrainingStep(about, division, SEED, teams, WorkerOptions(execution=case.dtype))
    expected, found = watch(serial.program), watch(step.worker.module)
    for _ in range(STEPS):
        expected.clear()
        found.clear()
        mean = serial.compute()
        step.clock.begin("forward")
        phases, beats = phases_of(step.clock), PROGRESS.count
        loss = step.worker.compute(step.inputs, step.targets)
        last = control.rank == case.p - 1
        assert (loss is not None) == last
        # every micro-batch's forward, loss and backward, and what is between them
        n = case.segments
        assert Counter(phases) == {
            "forward": n * (1 + last),
            "backward": n + 1,
            "layerwise": 1 + n * (2 + last),
        }
        assert phases[0] == "layerwise" and phases[-1] == "backward"
        assert PROGRESS.count - beats >= 2 * n
        if loss is not None:
            largest.compare(loss, torch.tensor(mean, dtype=loss.dtype))
        for layer, outputs in found.items():
            assert len(outputs) == case.segments
            largest.compare(torch.cat(outputs), torch.cat(expected[layer]))
            grads = [
                [x.grad for x in of if x.grad is not None] for of in (outputs, expected[layer])
            ]
            assert len(grads[0]) == len(grads[1])
            for mine, reference in zip(*grads, strict=True):
                largest.compare(mine, reference)
        for held in step.worker.held:
            largest.compare(held.parameter.grad, serial.parameters[held.name].grad)
        update(step.optimizer)
        update(serial.optimizer)
        for held in step.worker.held:
            largest.compare(held.parameter, serial.parameters[held.name])
    mine = [sorted(found), [held.name for held in step.worker.held]]
    layers, names = zip(*control.allgather_object(mine), strict=True)
    assert sorted(chain(*layers)) == sorted(expected), "every layer once"
    assert list(chain(*names)) == list(serial.parameters), "every weight once"
    step.close()
    del step
    teams.close()
    return largest.found


def main() -> None:
    """All cases."""
    torch.set_num_threads(1)
    world = MpiCommunicator()
    found = []
    for case in CASES:
        control = world.group(range(case.p) if world.rank < case.p else None)
        mine = 0.0 if control is None else run(case, control)
        if control is not None:
            control.close()
        found.append(max(world.allgather_object(mine)))
    if world.rank == 0:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
