"""Pipeline: stages of contiguous layers, S micro-batches, GPipe or 1F1B (torch.distributed.pipelining).

Stages are the oracle's (training/stages.py). The loss is the last layer, in the last stage. A
micro-batch's loss is its mean divided by S, so that gradients add up to those of the mean over the batch
(torch's scale_grads would take another pass over all gradients). Batch norms are over a micro-batch, and
their running statistics move S times an iteration. A weight that layers of several stages share is on
all of them, which add up its gradients (Megatron-LM's tied embeddings).

A stage tells torch the sizes and types of what crosses its borders: otherwise torch would send them as
pickles. torch posts sends without waiting, and waits for them later.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from calib.microbench.communicator import TorchGroup
from calib.microbench.timing.watchdog import beat
from calib.training.checkpoints import checkpoint_regions
from calib.training.clock import PhaseClock
from calib.training.gradients.flat import GroupSums
from calib.training.layer_program import LayerProgram
from calib.training.stages import border_tensors, cut
from calib.training.strategies import serial
from calib.training.worker import Held, Task, Worker

INPUT = "model_input"
Cast = Callable[[], AbstractContextManager[object]]


class _Module(nn.Module):
    """A stage's program as torch calls it: what was received by position, the model's input by name."""

    def __init__(self, program: LayerProgram) -> None:
        super().__init__()
        self.program = program

    def forward(self, *received: Tensor, model_input: Tensor | None = None) -> Any:
        """What the program returns."""
        more = () if model_input is None else (model_input,)
        return self.program(*received, *more)


class _TimedStage(PipelineStage):
    """A PipelineStage whose chunks are timed as forward and backward."""

    clock: PhaseClock
    cast: Cast

    def forward_one_chunk(self, *args: Any, **kwargs: Any) -> Any:
        """torch's, of one micro-batch."""
        with self.clock.of("forward"), self.cast():
            outputs = super().forward_one_chunk(*args, **kwargs)
        beat()
        return outputs

    def backward_one_chunk(self, *args: Any, **kwargs: Any) -> Any:
        """torch's, of one micro-batch."""
        with self.clock.of("backward"):
            gradients = super().backward_one_chunk(*args, **kwargs)
        beat()
        return gradients


class PipelineWorker(Worker):
    """One stage of a division that has all boundaries."""

    def __init__(self, task: Task) -> None:
        program, division = task.program, task.division
        number = task.teams.place.stage
        stage = cut(program, division.boundaries, number)
        held = [Held(name, p, gradient="own") for name, p in stage.program.trained()]
        checkpoint_regions(stage.program)
        self._tied = _tied(task, held)
        sums = GroupSums([of.parameter for of in held], self._tied) if self._tied else None
        super().__init__(task, stage.program, held, sums)
        self._reads_input = stage.reads_input
        first = next(task.module.parameters())
        kind = torch.int64 if task.about.rows else first.dtype
        sample = torch.empty(
            (division.local_batch, *task.about.input_shape), dtype=kind, device="meta"
        )
        received, sent = border_tensors(
            program, division.boundaries, number, sample, first.device, self._cast()
        )
        self._stage: Any = _TimedStage(
            _Module(stage.program),
            number,
            division.p,
            first.device,
            input_args=received,
            output_args=sent,
            group=task.teams.world.process_group,
        )
        self._stage.clock, self._stage.cast = self.clock, self._cast
        schedule = Schedule1F1B if division.schedule == "1f1b" else ScheduleGPipe
        self._schedule: Any = schedule(
            self._stage, division.segments, loss_fn=self._mean_loss, scale_grads=False
        )

    def _mean_loss(self, outputs: Any, targets: Tensor) -> Tensor:
        """A micro-batch's part of the mean loss over the batch."""
        with self.clock.of("forward"), self._cast():
            loss: Tensor = self._loss(outputs, targets)
            return loss / self.division.segments

    def take(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """The inputs where this stage reads them, the targets on the last stage."""
        nothing = inputs.new_empty(0)
        return (
            inputs if self._reads_input else nothing,
            targets if self._stage.is_last else nothing,
        )

    def compute(self, inputs: Tensor, targets: Tensor) -> Tensor | None:
        """Run the schedule; the loss on the last stage.

        All but the forwards and backwards of micro-batches (sending, receiving, waiting, torch's own
        work in between) is in "layerwise".
        """
        stage, losses = self._stage, list[Tensor]()
        arguments = (inputs,) if stage.is_first else ()
        more: dict[str, Any] = {INPUT: inputs} if self._reads_input and not stage.is_first else {}
        if stage.is_last:
            more |= {"target": targets, "losses": losses}
        self.clock.switch("layerwise")
        self._schedule.step(*arguments, return_outputs=False, **more)
        self.clock.switch("backward")
        return torch.stack(losses).detach().sum() if stage.is_last else None

    def close(self) -> None:
        """Release the process groups."""
        for _, group in self._tied:
            group.close()
        self._stage.group = None
        self._stage = self._schedule = None


def _tied(task: Task, held: list[Held]) -> list[tuple[list[int], TorchGroup]]:
    """Places of weights that several stages hold, and those stages; collective over all stages."""
    program, boundaries, world = task.program, task.division.boundaries, task.teams.world
    stages: dict[str, list[int]] = {}
    if program.spec.tied_layers:
        for stage in range(task.division.p):
            for name, _ in cut(program, boundaries, stage).program.trained():
                stages.setdefault(name, []).append(stage)
    names, groups = [of.name for of in held], list[tuple[list[int], TorchGroup]]()
    for name, holders in stages.items():
        if len(holders) > 1:
            group = world.group(holders if world.rank in holders else None)
            if group is not None:
                groups.append(([names.index(name)], group))
    return groups


def make(task: Task) -> Worker:
    """This rank's stage; on one rank it is serial training, the whole batch at once."""
    return serial.make(task) if task.division.p == 1 else PipelineWorker(task)
