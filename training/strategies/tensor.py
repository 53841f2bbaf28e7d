"""Tensor: every rank has 1/p of the heads or features of each region between linear layers.

Nothing is exchanged after the backward: a rank's weights are its own, and all ranks have the same
gradients of the others (Shoeybi et al. 2019, section 3; oracle/strategies/tensor.py). With sequence
parallelism a rank has 1/p of the tokens between regions, and the gradients of weights there are summed.
"""

from __future__ import annotations

from torch import nn

from calib.oracle.layout.regions import regions
from calib.oracle.layout.shards import largest_parts, parts_of_tokens
from calib.training.checkpoints import checkpoint_regions
from calib.training.gradients.flat import GroupSums
from calib.training.split.moves import GroupLink
from calib.training.split.regions import RegionParts
from calib.training.worker import Gradient, Held, Task, Worker, whole_parameters


def make(task: Task) -> Worker:
    """This rank's parts of the regions."""
    division, group = task.division, task.teams.group
    if group is None:
        return Worker(task, task.module, whole_parameters(task.module))
    program = task.program
    # a weight that layers share has several names in a program
    names = {id(parameter): name for name, parameter in task.module.named_parameters()}
    parts = RegionParts(
        program,
        GroupLink(group, task.clock),
        largest_parts(program.spec, division),
        division.local_batch,
        parts_of_tokens(program.spec, division),
    )
    parts.divide(regions(program.spec))
    program.recompile()

    def whole(name: str, parameter: nn.Parameter) -> Held:
        gradient: Gradient = "partial" if name in parts.partial else "same"
        return Held(names[id(parameter)], parameter, gradient=gradient)

    held = [
        parts.held.get(name) or whole(name, parameter)
        for name, parameter in program.graph.named_parameters()
        if parameter.requires_grad
    ]
    checkpoint_regions(program)
    partial = [place for place, of in enumerate(held) if of.gradient == "partial"]
    exchange = GroupSums([of.parameter for of in held], [(partial, group)]) if partial else None
    return Worker(task, program, held, exchange, parts.region)
