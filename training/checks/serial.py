"""Serial gradients of the joint batch by plain torch: what every strategy must give.

The one thing in which the strategies differ from serial training by definition is batch normalisation
that is not synchronised (ParaDL section 4.5.2): its statistics are of what a rank has. So a reference
normalises every piece of the joint tensor by itself. A piece is a chunk of the batch (the samples of a
replica, or a micro-batch) in a cell of the grid into which a spatial strategy cuts the
images, or a part of a plan's layer; under filter and channel every rank has the whole tensor.
Synchronised, it is that of serial training, but for the micro-batches of a pipeline, which run in turn.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from calib.foundation.division import Division
from calib.foundation.layers import Shape
from calib.oracle.layout.shards import fitted, split_flags
from calib.oracle.layout.spatial import part_ranges
from calib.training.layer_program import LayerProgram
from calib.training.plans.division import LayerwiseDivision

Slices = tuple[slice, ...]
# of (x, running mean, running variance, weight, bias, train, momentum, eps): F.batch_norm's
Normalize = Callable[..., Tensor]


def batch_chunks(division: Division) -> int:
    """Into how many pieces the batch is cut that are normalised separately."""
    if division.traits.stages:
        return division.segments
    return division.replicas * division.accumulation


def has_batch_norm(module: nn.Module) -> bool:
    """Whether a model takes statistics over the batch."""
    return any(isinstance(m, _BatchNorm) for m in module.modules())


def cells_of(shape: Shape, parts: Sequence[int]) -> list[Slices]:
    """The cells of an image of `shape` (channels, then sizes) that are normalised separately."""
    cuts = [part_ranges(n, count) for n, count in zip(shape[1:], parts, strict=False)]
    return [tuple(slice(*part) for part in cell) for cell in itertools.product(*cuts)]


class PiecewiseNorm(nn.Module):
    """Batch normalisation of every piece by itself; the weights are those of `norm`.

    `running`, by (replica, cell): the running mean and variance of the rank that has them. The
    micro-batches of a pipeline (`in_turn`) update the same ones, in order.
    """

    def __init__(self, norm: _BatchNorm, chunks: int, cells: list[Slices], in_turn: bool) -> None:
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
    """Let the batch norms of a serial program be as a division defines them; in place."""
    in_turn = division.traits.stages
    pieces: list[tuple[int, Sequence[int]]]  # of each layer: chunks of the batch, parts of an image
    if isinstance(division, LayerwiseDivision):
        pieces = [(of.sample, of.spatial) for of in division.configurations]
    else:
        division = fitted(program.spec, division)
        chunks = 1 if synchronized and not in_turn else batch_chunks(division)
        cut = division.traits.cuts == "image" and not synchronized
        flags = split_flags(program.spec, division)
        pieces = [(chunks, division.cells if cut and split else ()) for split in flags]
    for layer, (chunks, parts) in zip(program.spec.layers, pieces, strict=True):
        if layer.shape.kind == "batch_norm":
            norm = program.module_of(layer.name)
            assert isinstance(norm, _BatchNorm)
            cells = cells_of(layer.shape.output_shape, parts)
            program.replace_module(layer.name, PiecewiseNorm(norm, chunks, cells, in_turn))
    program.recompile()
