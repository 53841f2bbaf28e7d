"""Spatial: p parts of every image, in a grid of one, two or three dimensions (ParaDL section 3.2).

The first layers run on this rank's part, with halos of x in the forward and of dL/dy in the backward;
where the split ends y is gathered, and each rank takes its part of dL/dy. Batch norms are local
(section 4.5.2) unless they are synchronised. All weights are on every rank; one allreduce sums their
gradients. Which layers are split, and where: oracle/layout/shards.py and oracle/layout/spatial.py, as
for a prediction.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, fx, nn
from torch.nn.modules.batchnorm import _BatchNorm

from calib.foundation.execution import execution_of
from calib.foundation.layers import Shape
from calib.microbench.item_types import activation_type
from calib.oracle.layout.shards import split_layers
from calib.oracle.model.graph import INPUT
from calib.oracle.model.layer import Layer
from calib.training.checkpoints import checkpoint_regions
from calib.training.gradients.flat import FlatAllreduce, GroupedGradients
from calib.training.layer_program import LayerProgram
from calib.training.split.cell import ImageCell, slices
from calib.training.split.spatial_layers import Gather, part_of
from calib.training.split.synchronized_norm import synchronize
from calib.training.teams import place_of
from calib.training.worker import Task, Worker, whole_parameters


class SpatialWorker(Worker):
    """Reads its part of its samples."""

    def take(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """This rank's part of the images: a copy, so that the whole ones can be freed."""
        mine = inputs[slices(self.region[INPUT])]
        return mine.clone(memory_format=torch.contiguous_format), targets


def make(task: Task) -> Worker:
    """The worker of spatial and of data+spatial; collective over the ranks of a group.

    Raises InputError where the model cannot be cut so.
    """
    teams, whole = task.teams, whole_parameters(task.module)
    program, division = task.program, task.division
    if teams.group is None:
        weights = [held.parameter for held in whole]
        exchange = FlatAllreduce(weights, teams.world) if division.p > 1 else None
        _synchronize(task, program, set())
        checkpoint_regions(program)
        return Worker(task, program, whole, exchange)
    # the teams may have been made before the division had its grid
    at = place_of(division, teams.world.rank).cell
    cell = ImageCell(division.cells, at, teams.group, task.clock)
    split = split_layers(program.spec, division)
    names, layer_of = {layer.name for layer in split}, program.parameter_layers()
    _split(task, program, split, cell)
    _gather(program, names, cell)
    _synchronize(task, program, names)
    program.recompile()
    checkpoint_regions(program)
    held = [
        replace(of, gradient="partial" if layer_of.get(of.name) in names else "same")
        for of in whole
    ]
    region = {layer.name: cell.ranges(layer.shape.output_shape) for layer in split}
    region[INPUT] = cell.ranges(program.spec.input_shape)
    return SpatialWorker(task, program, held, GroupedGradients(held, teams, division), region)


def _split(task: Task, program: LayerProgram, split: list[Layer], cell: ImageCell) -> None:
    """Put parts in the place of the layers that cannot run on a part as they are."""
    execution = execution_of(task.options.execution)
    dtype = activation_type(execution) if execution.items.mixed else None
    for layer in split:
        if layer.shape.kind == "conv":
            part = part_of(layer.shape, cell, program.module_of(layer.name), dtype)
            if part is not None:
                program.replace_module(layer.name, part)
        elif (part := part_of(layer.shape, cell, None, dtype)) is not None:
            # several layers may use one pooling
            program.call_instead(program.node_of(layer.name), part)


def _gather(program: LayerProgram, split: set[str], cell: ImageCell) -> None:
    """Let whole layers, and the model's output, read whole tensors of what is split."""
    shapes: dict[str, Shape] = {x.name: x.shape.output_shape for x in program.spec.layers}
    shapes[INPUT] = program.spec.input_shape
    parts, gathered = split | {INPUT}, dict[str, fx.Node]()
    graph, layer_of = program.graph, {node: layer for layer, node in program.calls().items()}
    for reader in list(graph.graph.nodes):
        if reader.op != "output" and layer_of.get(reader, INPUT) in parts:
            continue
        for source in reader.all_input_nodes:
            layer = program.layer_behind(source)
            if layer not in parts:
                continue
            if layer not in gathered:
                name = f"calib_gather_{len(gathered)}"
                graph.add_module(name, Gather(shapes[layer], cell))
                with graph.graph.inserting_before(reader):
                    gathered[layer] = graph.graph.call_module(name, (source,))
            reader.replace_input_with(source, gathered[layer])


def _synchronize(task: Task, program: LayerProgram, split: set[str]) -> None:
    """With that option, let batch norms see all samples, and those of split layers all parts."""
    if not task.options.synchronized_batch_norm:
        return
    teams = task.teams
    for layer in program.spec.layers:
        team = teams.world if layer.name in split or teams.group is None else teams.across
        if layer.shape.kind != "batch_norm" or team is None or team.size == 1:
            continue
        norm = program.module_of(layer.name)
        assert isinstance(norm, _BatchNorm)
        holder = nn.Sequential(norm)
        synchronize(holder, team, task.clock)
        program.replace_module(layer.name, holder[0])
