"""Which divisions training cannot run, and why. No PyTorch here.

The driver asks before it starts ranks, ranks before they build anything. What no model allows is in
`Division.faults`, what a model does not allow in `calib.oracle.layout.shards.why_impossible`; here is
what training adds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from calib.foundation.division import STRATEGIES, Division, StrategyTraits
from calib.foundation.execution import CUDA_GRAPH, MARKS, USUAL, Execution, execution_of
from calib.foundation.layers import LayerShape, Shape
from calib.oracle.layout.shards import split_flags, why_impossible
from calib.oracle.layout.spatial import part_sizes
from calib.oracle.layout.stages import crossings
from calib.oracle.model.recomputed import checkpointed
from calib.oracle.model.spec import ModelSpec
from calib.training.plans.division import LayerwiseDivision, why_not_cut


def _named(those: Callable[[StrategyTraits], bool]) -> str:
    """The strategies, in words."""
    *names, last = [name for name, traits in STRATEGIES.items() if those(traits)]
    return f"{', '.join(names)} and {last}"


# strategies in which every rank runs the model as it is, and those of them that send nothing inside it
WHOLE = _named(lambda of: of.whole)
SILENT = _named(lambda of: of.whole and not of.shards)
HALF_BYTES = 2
VOLUME = 4  # dimensions: channels, and three of space


def why_not_trained(
    division: Division,
    model: ModelSpec | None,
    execution: str = USUAL,
    synchronized: bool = False,
    ddp: bool = False,
    input_shape: Shape = (),
    device: str = "",
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
    input_shape, device
        Of one sample; the kind of device. Empty where they need not be known.
    """
    how = execution_of(execution)
    if isinstance(division, LayerwiseDivision):
        undivided = _of_operators(model) if model is not None and division.p > 1 else ""
        if undivided:
            return [undivided]
        found = division.faults if model is None else why_not_cut(model, division)
        if how.items.mixed or how.channels_last or how.cuda_graph or synchronized or ddp:
            found.append(
                "a plan per layer is trained in one item type, without channels_last, cuda_graph, "
                "synchronized batch norm and DistributedDataParallel"
            )
        return [*found, *_of_items(how, model, device)]
    found = division.faults if model is None else why_impossible(model, division)
    found += _of_settings(division, ddp)
    found += why_no_execution(division, how, model, input_shape, device, synchronized)
    if not found and model is not None:
        found += _of_borders(division, model)
        found += _of_batch_norms(division, model, synchronized)
    return found


def why_no_execution(
    division: Division,
    how: Execution,
    model: ModelSpec | None,
    input_shape: Shape = (),
    device: str = "",
    synchronized: bool = False,
) -> list[str]:
    """Why no rank of a division runs so; arguments as those of `why_not_trained`."""
    of_division = _of_execution(division, how, synchronized, input_shape)
    return [*of_division, *_of_items(how, model, device)]


def _of_operators(model: ModelSpec) -> str:
    """Why no plan per layer trains the model: it cuts each layer by the rules of its kind."""
    whole = f"{WHOLE} train it whole"
    if model.tied:
        return f"{model.tied}, which a plan per layer does not divide: {whole}"
    if checkpointed(model):
        return f"{checkpointed(model)}, which no plan per layer does: {whole}"
    for layer in model.layers:
        if layer.shape.operator is not None:
            what = f"{layer.name} of {model.name} ({layer.shape.operator.name})"
            return f"{what} is a layer that no plan per layer divides: {whole}"
    return ""


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


def _of_execution(
    division: Division, how: Execution, synchronized: bool, input_shape: Shape
) -> Iterator[str]:
    """Memory format and graphs: of strategies in which every rank runs the model as it is."""
    for mark in MARKS:
        traits, graph = division.traits, mark == CUDA_GRAPH
        able = traits.whole and not (graph and traits.shards)
        if getattr(how, mark) and traits.module and not able:
            yield f"{mark} is of {SILENT if graph else WHOLE}, not of {division.strategy}"
    if how.channels_last and input_shape and len(input_shape) - 1 not in (2, 3):
        sizes = "x".join(map(str, input_shape))
        yield f"channels_last is of images and volumes; a sample of this model is {sizes}"
    if how.cuda_graph and synchronized:
        yield "a CUDA graph holds no messages of synchronized batch norms: train without one of them"
    if how.cuda_graph and division.overlap:
        yield "a CUDA graph gives all gradients at its end, which leaves nothing to overlap with"


def _of_items(how: Execution, model: ModelSpec | None, device: str) -> Iterator[str]:
    """What PyTorch has no kernel for."""
    if model is None or device != "cpu" or how.items.weight_bytes != HALF_BYTES:
        return
    for layer in model.layers:
        if layer.shape.kind == "avg_pool" and len(layer.shape.output_shape) == VOLUME:
            yield (
                f"{layer.name} averages volumes, for which PyTorch has no {how.dtype} on a CPU; take "
                "bfloat16-mixed"
            )
            return


def _of_borders(division: Division, model: ModelSpec) -> Iterator[str]:
    """A stage that is sent nothing: those before it depend on no sample."""
    for border in division.boundaries:
        if not crossings(model)[border].forward:
            name = model.layers[border].name
            yield f"nothing is sent to the stage that begins with {name}: choose other boundaries"


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
