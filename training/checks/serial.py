"""Serial gradients of the joint batch by plain torch: what every strategy must give.

Nothing here is of a strategy. The one thing in which the strategies are defined to differ from serial
training is batch normalisation that is not synchronised (ParaDL section 4.5.2): its statistics are
those of what a rank has, so that a reference normalises every piece of the joint tensor by itself. A
piece is a chunk of the batch (the samples of a replica, or a micro-batch of a pipeline) in a cell of
the grid that a spatial strategy cuts the images into; filter and channel parallelism have the whole
tensor on every rank. Synchronised, it is that of serial training, but for the micro-batches of a
pipeline, which come one after the other.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from calib.foundation.division import Division
from calib.foundation.layers import Shape
from calib.oracle.layout.shards import fitted, split_flags
from calib.oracle.layout.spatial import part_ranges
from calib.oracle.model.spec import ModelSpec
from calib.training.layer_program import LayerProgram

Slices = tuple[slice, ...]
# of (x, running mean, running variance, weight, bias, train, momentum, eps): F.batch_norm's
Normalize = Callable[..., Tensor]


def batch_chunks(division: Division) -> int:
    """Into how many pieces the batch is cut that are normalised apart."""
    return division.segments if division.traits.stages else division.replicas


def has_batch_norm(module: nn.Module) -> bool:
    """Whether statistics over the batch are part of a model."""
    return any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in module.modules())


def cells_of(spec: ModelSpec, layer: int, division: Division) -> list[Slices]:
    """The cells of the image that are normalised apart in a layer, as the planner cuts it."""
    shape: Shape = spec.layers[layer].shape.output_shape
    if division.traits.cuts != "image" or not split_flags(spec, division)[layer]:
        return [()]
    cuts = [part_ranges(shape[1 + d], parts) for d, parts in enumerate(division.cells)]
    return [tuple(slice(*part) for part in cell) for cell in itertools.product(*cuts)]


class PiecewiseNorm(nn.Module):
    """Batch normalisation of every piece by itself; the weights are those of `norm`.

    `running`, by (replica, cell): the running mean and variance of the rank that has them. The
    micro-batches of a pipeline update one and the same, in order.
    """

    def __init__(
        self, norm: nn.modules.batchnorm._BatchNorm, chunks: int, cells: list[Slices], in_turn: bool
    ) -> None:
        super().__init__()
        self.weight, self.bias = norm.weight, norm.bias
        self.normalize: Normalize = F.batch_norm
        self._chunks, self._cells, self._in_turn = chunks, cells, in_turn
        self._momentum, self._eps = norm.momentum, norm.eps
        self.running: dict[tuple[int, int], tuple[Tensor | None, Tensor | None]] = {}
        for key in itertools.product(range(1 if in_turn else chunks), range(len(cells))):
            mean, variance = norm.running_mean, norm.running_var
            self.running[key] = (
                None if mean is None else mean.clone(),
                None if variance is None else variance.clone(),
            )

    def forward(self, x: Tensor) -> Tensor:
        """Each piece by its own statistics."""
        each = x.shape[0] // self._chunks
        whole = torch.empty_like(x)
        for chunk, (cell, box) in itertools.product(range(self._chunks), enumerate(self._cells)):
            piece = slice(chunk * each, (chunk + 1) * each), slice(None), *box
            mean, variance = self.running[0 if self._in_turn else chunk, cell]
            whole[piece] = self.normalize(
                x[piece], mean, variance, self.weight, self.bias, True, self._momentum, self._eps
            )
        return whole


def define_norms(program: LayerProgram, division: Division, synchronized: bool) -> None:
    """Let the batch normalisation of a serial program be as a division defines it; in place."""
    division = fitted(program.spec, division)
    in_turn = division.traits.stages
    chunks = 1 if synchronized and not in_turn else batch_chunks(division)
    for index, layer in enumerate(program.spec.layers):
        if layer.shape.kind == "batch_norm":
            norm = program.graph.get_submodule(str(program.node_of(layer.name).target))
            assert isinstance(norm, nn.modules.batchnorm._BatchNorm)
            cells: list[Slices] = [()]
            if not synchronized:
                cells = cells_of(program.spec, index, division)
            program.replace_module(layer.name, PiecewiseNorm(norm, chunks, cells, in_turn))
    program.recompile()
