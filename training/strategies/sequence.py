"""Sequence: every rank has 1/p of the tokens, and in attention 1/p of the heads.

All weights are on every rank; gradients are averaged after the backward as in data parallelism, here of
parts of the same samples (Jacobs et al. 2023, section 3; oracle/strategies/sequence.py).
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from calib.foundation.errors import InputError
from calib.oracle.layout.cuts import Cut
from calib.oracle.layout.sequence import loss_cut, sequence_parts
from calib.oracle.layout.shards import largest_parts
from calib.oracle.model.spec import ModelSpec
from calib.training.checkpoints import checkpoint_regions
from calib.training.gradients.flat import FlatAllreduce
from calib.training.split.moves import GroupLink
from calib.training.split.sequence import SequenceProgram
from calib.training.worker import Task, Worker, whole_parameters


class SequenceWorker(Worker):
    """Has the loss of its own tokens: `targets` is how their targets are cut; None: all are read."""

    link: GroupLink
    targets: Cut | None = None

    def take(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """The whole samples, and the targets of this rank's places."""
        if self.targets is not None:
            group = self.link.group
            mine = targets.chunk(group.size, self.targets.axis)[group.rank]
            targets = mine.clone(memory_format=torch.contiguous_format)
        return inputs, targets


def make(task: Task) -> Worker:
    """This rank's tokens and heads."""
    division, group, whole = task.division, task.teams.group, whole_parameters(task.module)
    if group is None:
        return Worker(task, task.module, whole)
    program, link = task.program, GroupLink(group, task.clock)
    spec = program.spec
    found = sequence_parts(spec)
    assert found is not None, "asked for a possible division only"
    loss = spec.layers[-1].shape
    if (
        loss_cut(spec) is not None
        and ("classes_last" in loss.attributes) != task.about.classes_last
    ):
        raise InputError(
            f"sequence parallelism of {spec.name}: its outputs have classes where the loss has places"
        )
    parts = SequenceProgram(program, link, largest_parts(spec, division), division.local_batch)
    parts.divide(found)
    program.recompile()
    checkpoint_regions(program)
    held = [replace(of, gradient="partial") for of in whole]
    exchange = FlatAllreduce([of.parameter for of in held], task.teams.world)
    worker = SequenceWorker(task, program, held, exchange, parts.region)
    worker.link, worker.targets = link, _targets(spec)
    return worker


def _targets(spec: ModelSpec) -> Cut | None:
    """Targets have the model's output's axes, but for that of the classes."""
    cut, loss = loss_cut(spec), spec.layers[-1].shape
    if cut is None or loss.kind == "mse" or "classes_last" in loss.attributes:
        return cut
    return Cut(cut.axis - 1)
