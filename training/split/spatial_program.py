"""A model whose first layers run on a rank's part of the image, the others whole.

Which layers are split, and where: oracle/layout/shards.py and oracle/layout/spatial.py, as for a
prediction.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, fx, nn
from torch.nn.modules.batchnorm import _BatchNorm

from calib.foundation.layers import Shape
from calib.oracle.layout.shards import split_layers
from calib.oracle.model.layer import Layer
from calib.oracle.trace.tracing import INPUT
from calib.training.gradients.flat import FlatAllreduce
from calib.training.gradients.groups import GroupedGradients
from calib.training.layer_program import LayerProgram
from calib.training.split.cell import ImageCell
from calib.training.split.gather import Gather
from calib.training.split.spatial_layers import part_of
from calib.training.split.synchronized_norm import synchronize
from calib.training.teams import place_of
from calib.training.worker import Exchange, Held, Task, Worker, whole_parameters

BFLOAT16 = "bfloat16"


class SpatialWorker(Worker):
    """Reads its part of its samples."""

    def __init__(
        self,
        task: Task,
        program: LayerProgram,
        held: list[Held],
        exchange: Exchange,
        cell: ImageCell,
    ) -> None:
        spec = program.spec
        shapes = {layer.name: layer.shape.output_shape for layer in spec.layers}
        split = [layer.name for layer in split_layers(spec, task.division)]
        shapes[INPUT] = spec.input_shape
        region = {name: cell.ranges(shapes[name]) for name in (INPUT, *split)}
        super().__init__(task, program, held, exchange, region)

    def take(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """This rank's part of the images: a copy, so that the whole ones can go."""
        where = (slice(None), *(slice(a, b) for a, b in self.region[INPUT]))
        return inputs[where].clone(memory_format=torch.contiguous_format), targets


def make(task: Task) -> Worker:
    """The worker of spatial and of data+spatial; collective over the ranks of a group."""
    teams, whole = task.teams, whole_parameters(task.module)
    program, division = task.program, task.division
    if teams.group is None:
        weights = [held.parameter for held in whole]
        exchange = FlatAllreduce(weights, teams.world) if division.p > 1 else None
        _synchronize(task, program, [])
        return Worker(task, program, whole, exchange)
    cell = ImageCell(
        division.cells, place_of(division, teams.world.rank).cell, teams.group, task.clock
    )
    split = split_layers(program.spec, division)
    layer_of = program.parameter_layers()
    _split(task, program, split, cell)
    _gather(program, {layer.name for layer in split}, cell)
    _synchronize(task, program, split)
    program.recompile()
    names = {layer.name for layer in split}
    held = [
        replace(of, gradient="partial" if layer_of[of.name] in names else "same") for of in whole
    ]
    grouped = GroupedGradients(held, teams, division)
    return SpatialWorker(task, program, held, grouped, cell)


def _split(task: Task, program: LayerProgram, split: list[Layer], cell: ImageCell) -> None:
    """Put the modules of parts in the place of those that cannot run on a part as they are."""
    dtype = torch.bfloat16 if task.options.dtype == BFLOAT16 else None
    for layer in split:
        node = program.node_of(layer.name)
        whole = None
        if layer.shape.kind == "conv":
            whole = program.graph.get_submodule(str(node.target))
        part = part_of(layer.shape, cell, whole, dtype)
        if part is not None and whole is not None:
            program.replace_module(layer.name, part)
        elif part is not None:
            _call(program, node, part)


def _call(program: LayerProgram, node: fx.Node, module: nn.Module) -> None:
    """Let a node call `module`, under a name of its own: several nodes may call one pooling."""
    name = f"calib_{node.name}"
    program.graph.add_module(name, module)
    node.op, node.target = "call_module", name
    node.args, node.kwargs = (node.all_input_nodes[0],), {}


def _gather(program: LayerProgram, split: set[str], cell: ImageCell) -> None:
    """Let whole layers, and who takes the model's output, read whole tensors of what is split."""
    shapes: dict[str, Shape] = {x.name: x.shape.output_shape for x in program.spec.layers}
    shapes[INPUT] = program.spec.input_shape
    parts, gathered = split | {INPUT}, dict[str, fx.Node]()
    graph = program.graph
    for reader in list(graph.graph.nodes):
        if reader.op != "output" and program.layer_of.get(reader.name, INPUT) in parts:
            continue
        for source in reader.all_input_nodes:
            layer = _read(program, source)
            if layer not in parts:
                continue
            if layer not in gathered:
                name = f"calib_gather_{len(gathered)}"
                graph.add_module(name, Gather(shapes[layer], cell))
                with graph.graph.inserting_before(reader):
                    gathered[layer] = graph.graph.call_module(name, (source,))
            program.read_from(reader, source, gathered[layer])


def _read(program: LayerProgram, node: fx.Node) -> str:
    """The layer whose output a node has; none of a size."""
    while node.op == "call_module" and node.name not in program.layer_of:
        node = node.all_input_nodes[0]  # an identity
    return program.layer_of.get(node.name, "")


def _synchronize(task: Task, program: LayerProgram, split: list[Layer]) -> None:
    """Let batch norms see all samples, and those of split layers all parts, where that is chosen."""
    if not task.options.synchronized_batch_norm:
        return
    parts, teams = {layer.name for layer in split}, task.teams
    for layer in program.spec.layers:
        team = teams.world if layer.name in parts or teams.group is None else teams.across
        if layer.shape.kind != "batch_norm" or team is None or team.size == 1:
            continue
        norm = program.graph.get_submodule(str(program.node_of(layer.name).target))
        assert isinstance(norm, _BatchNorm)
        holder = nn.Sequential(norm)
        synchronize(holder, team, task.clock)
        program.replace_module(layer.name, holder[0])
