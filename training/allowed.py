"""Which divisions training cannot run, and why. No PyTorch here.

The driver asks before it starts ranks, ranks before they build anything. What no model allows is in
`Division.faults`, what a model does not allow in `calib.oracle.layout.shards.why_impossible`; here is
what training adds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from calib.foundation.division import Division
from calib.foundation.execution import USUAL, execution_of
from calib.foundation.layers import LayerShape
from calib.oracle.layout.shards import split_flags, why_impossible
from calib.oracle.layout.spatial import part_sizes
from calib.oracle.model.spec import ModelSpec
from calib.training.plans.division import LayerwiseDivision, why_not_cut


def why_not_trained(
    division: Division,
    model: ModelSpec | None,
    execution: str = USUAL,
    synchronized: bool = False,
    ddp: bool = False,
) -> list[str]:
    """Why training cannot run a division, the main reason first.

    Parameters
    ----------
    division
        With its grid, where it has one (`calib.oracle.layout.shards.fitted`).
    model
        Its layers; None where they need not be known.
    execution, synchronized, ddp
        As in Settings: how layers run, whether batch normalisation is synchronised, and whether data
        parallelism runs by DistributedDataParallel.
    """
    if isinstance(division, LayerwiseDivision):
        found = division.faults if model is None else why_not_cut(model, division)
        if execution_of(execution).items.mixed or synchronized or ddp:
            found.append(
                "a plan per layer is trained in float32, tf32 or float64, without synchronized batch "
                "norm and DistributedDataParallel"
            )
        return found
    found = division.faults if model is None else why_impossible(model, division)
    found += _of_settings(division, ddp)
    if not found and model is not None:
        found += _of_batch_norms(division, model, synchronized)
    return found


def _of_settings(division: Division, ddp: bool) -> Iterator[str]:
    if ddp and "overlap" not in division.traits.options:
        yield f"DistributedDataParallel is for data parallelism, not for {division.strategy}"
    if division.sharded_optimizer and (division.overlap or ddp):
        yield (
            "a sharded optimizer takes its gradients after the backward: train it without overlap and "
            "DistributedDataParallel"
        )
    if division.schedule == "1f1b" and division.segments < division.p:
        yield (
            f"1F1B needs a segment for each stage: p = {division.p}, but there are "
            f"{division.segments} segments"
        )


def _of_batch_norms(division: Division, model: ModelSpec, synchronized: bool) -> Iterator[str]:
    """Norms over a single value, which torch refuses, and synchronised ones over micro-batches."""
    in_turn = division.traits.stages and division.p > 1 and division.segments > 1
    for layer, split in zip(model.layers, split_flags(model, division), strict=True):
        if layer.shape.kind != "batch_norm":
            continue
        if synchronized and in_turn:
            yield (
                f"{layer.name} normalises one micro-batch after the other, which cannot be synchronised"
            )
        if not synchronized and _values(layer.shape, division, split) == 1:
            yield (
                f"{layer.name} would normalise over one value of each channel: take a larger batch, "
                "fewer parts or segments, or end the split before it (split_until)"
            )


def _values(shape: LayerShape, division: Division, split: bool) -> int:
    """Values per channel in the smallest part of a layer."""
    cells = division.cells if split else ()
    smallest = [min(sizes) for sizes in part_sizes(shape, cells)] if cells else []
    return division.local_batch * math.prod([*smallest, *shape.output_shape[1 + len(cells) :]])
