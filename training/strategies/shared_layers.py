"""Filter, channel and data+filter: the ranks of a group share the weighted layers.

Filter: a rank has 1/p of the filters of each convolution and fully connected layer, with their biases
(ParaDL section 3.2, A.1.4). Channel: 1/p of the input channels of each from the second one on (A.1.5).
Nothing is exchanged after the backward: a rank's weights are its own, and all ranks have the same
gradients of what is whole.

Data+filter: groups of p2 ranks share the filters, and p1 such groups have B/p1 samples each. The
segmented allreduce: every rank sums its own gradients with those of its place in the other groups, and
divides by p1 (section 4.5.1, A.1.6). One group is filter, groups of one rank are data. Synchronised
batch norms are over the ranks with the same place in their groups, which have all samples.
"""

from __future__ import annotations

from calib.oracle.layout.partitions import Range
from calib.oracle.layout.shards import split_layers
from calib.training.checkpoints import checkpoint_regions
from calib.training.gradients.flat import FlatAllreduce
from calib.training.split.moves import GroupLink
from calib.training.split.shared_layers import ChannelLayer, FilterLayer
from calib.training.split.synchronized_norm import synchronize
from calib.training.worker import Held, Task, Worker, whole_parameters


def make(task: Task) -> Worker:
    """This rank's parts of the layers."""
    module, held = task.module, whole_parameters(task.module)
    if task.teams.group is not None:
        module, held = task.program, _shared(task, GroupLink(task.teams.group, task.clock))
    across = task.teams.across
    if across is None:
        return Worker(task, module, held)
    worker = Worker(task, module, held, FlatAllreduce([h.parameter for h in held], across))
    if task.options.synchronized_batch_norm:
        synchronize(worker.module, across, task.clock)
    return worker


def _shared(task: Task, link: GroupLink) -> list[Held]:
    """Put parts in the place of the layers that are split; what this rank has then."""
    program, division = task.program, task.division
    make_part = ChannelLayer if division.traits.cuts == "channels" else FilterLayer
    ranges: dict[str, tuple[Range, ...]] = {}
    for layer in split_layers(program.spec, division):
        name = str(program.node_of(layer.name).target)
        part = make_part(program.graph.get_submodule(name), link, layer.needs_input_grad)
        program.replace_module(layer.name, part)
        of_layer = {f"{name}.{parameter}": of for parameter, of in part.ranges.items()}
        ranges |= {program.names.get(known, known): of for known, of in of_layer.items()}
    program.recompile()
    held = [
        Held(name, parameter, ranges[name], "own") if name in ranges else Held(name, parameter)
        for name, parameter in program.trained()
    ]
    checkpoint_regions(program)
    return held
