"""What serial training computes as a plan defines it, for the check of gradients before a run.

A plan differs from serial training in batch normalisation alone, whose statistics are those of a PE's
own samples and pixels: the reference normalises every part of such a layer by itself.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

from torch import nn

from calib.oracle.layout.partitions import Configuration
from calib.oracle.layout.spatial import part_ranges
from calib.training.checks.serial import PiecewiseNorm
from calib.training.layer_program import LayerProgram
from calib.training.plans.division import LayerwiseDivision


def smallest(division: LayerwiseDivision, samples: int) -> LayerwiseDivision:
    """The same parts of the fewest samples: at least `samples` for each part."""
    return replace(division, batch=samples * division.sample_degrees)


def define_norms(program: LayerProgram, division: LayerwiseDivision) -> None:
    """Let the batch normalisation of a serial program be that of the parts; in place."""
    for layer, of in zip(program.spec.layers, division.configurations, strict=True):
        if layer.shape.kind != "batch_norm":
            continue
        norm = program.graph.get_submodule(str(program.node_of(layer.name).target))
        assert isinstance(norm, nn.modules.batchnorm._BatchNorm)
        cells = cells_of(of, layer.shape.output_shape[1:])
        program.replace_module(layer.name, PiecewiseNorm(norm, of.sample, cells, in_turn=False))
    program.recompile()


def cells_of(of: Configuration, lengths: tuple[int, ...]) -> list[tuple[slice, ...]]:
    """The parts of an image of such lengths that are normalised apart."""
    cuts = [part_ranges(n, parts) for n, parts in zip(lengths, of.spatial, strict=False)]
    return [tuple(slice(*part) for part in cell) for cell in itertools.product(*cuts)]
