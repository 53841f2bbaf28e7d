"""Parameters and models made by hand: every number is chosen, so that every cost has a closed form."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import Any

import pytest

from calib.fitting.parameters.collectives import CollectiveFit, CollectivePoint
from calib.fitting.parameters.file import Composition, LayerTime, Parameters, TensorLoop, WorkModel
from calib.fitting.parameters.provenance import Provenance
from calib.foundation.layers import LayerShape
from calib.foundation.records import Estimate
from calib.oracle.cost import Cost
from calib.oracle.layout.workload import FREE, LayerPiece, Select, Workload, tensors
from calib.oracle.model.layer import Layer
from calib.oracle.model.spec import ModelSpec
from calib.oracle.terms import Term, by_phase

EXACT = 1e-12  # relative, of closed forms
ALPHA_S, BETA_S_PER_BYTE = 3e-6, 2e-10
INTERPOLATION_FACTOR, LINE_FACTOR, WORK_FACTOR, LOOP_FACTOR = 1.25, 1.5, 1.2, 1.1
# (bytes, seconds) of the measured allreduce on 2 ranks; a parabola's worth off the line on purpose
POINTS = ((8, 4e-6), (1024, 5e-6), (65536, 40e-6), (1048576, 500e-6))
# seconds = call + flops * per_flop + bytes * per_byte, up to max_flops and max_bytes
CALL_S, S_PER_FLOP, S_PER_BYTE = 2e-6, 1e-9, 3e-10
MAX_FLOPS, MAX_BYTES = 1e4, 1e5
LOOP_CALL_S, LOOP_TENSOR_S, LOOP_BYTE_S, LOOP_MAX_BYTES = 1e-6, 5e-7, 1e-10, 1e4


def estimate(value: float, margin: float = 0.1) -> Estimate:
    """`value` +- `margin` of it."""
    return Estimate(value=value, low=value * (1 - margin), high=value * (1 + margin))


def linear(name: str, source: str, inputs: int, outputs: int, first: bool = False) -> Layer:
    """A fully connected layer with bias."""
    shape = LayerShape(
        kind="linear",
        input_shapes=((inputs,),),
        output_shape=(outputs,),
        parameter_shapes=((outputs, inputs), (outputs,)),
    )
    return Layer(name=name, shape=shape, inputs=(source,), needs_input_grad=not first)


def relu(name: str, source: str, items: int, needs_input_grad: bool = True) -> Layer:
    """A ReLU on `items` items."""
    shape = LayerShape(kind="relu", input_shapes=((items,),), output_shape=(items,))
    return Layer(name=name, shape=shape, inputs=(source,), needs_input_grad=needs_input_grad)


def mlp(widths: Sequence[int], name: str = "hand") -> ModelSpec:
    """Linear layers of `widths` with ReLU between them, and the loss."""
    layers: list[Layer] = []
    source = "input"
    for number, (inputs, outputs) in enumerate(pairwise(widths), 1):
        if number > 1:
            layers.append(relu(f"relu{number - 1}", source, inputs))
            source = layers[-1].name
        layers.append(linear(f"fc{number}", source, inputs, outputs, first=number == 1))
        source = layers[-1].name
    loss = LayerShape(kind="cross_entropy", input_shapes=((widths[-1],),), output_shape=())
    layers.append(Layer(name="loss", shape=loss, inputs=(source,), needs_input_grad=True))
    return ModelSpec(name=name, input_shape=(widths[0],), classes=widths[-1], layers=tuple(layers))


def words(rows: int, width: int, tokens: int = 20, name: str = "words") -> ModelSpec:
    """An embedding of `rows` x `width`, a linear layer on all `tokens`, and the loss."""
    table = LayerShape(
        kind="embedding",
        input_shapes=((tokens,),),
        output_shape=(tokens, width),
        parameter_shapes=((rows, width),),
    )
    items = tokens * width
    flat = LayerShape(kind="flatten", input_shapes=((tokens, width),), output_shape=(items,))
    loss = LayerShape(kind="cross_entropy", input_shapes=((width,),), output_shape=())
    return ModelSpec(
        name=name,
        input_shape=(tokens,),
        classes=width,
        layers=(
            Layer(name="embedding", shape=table, inputs=("input",), needs_input_grad=False),
            Layer(name="flat", shape=flat, inputs=("embedding",), needs_input_grad=True),
            linear("fc", "flat", items, width),
            Layer(name="loss", shape=loss, inputs=("fc",), needs_input_grad=True),
        ),
    )


def allreduce_fit(
    ranks: int = 2,
    level: str = "node",
    alpha_s: float = ALPHA_S,
    beta_s_per_byte: float = BETA_S_PER_BYTE,
    points: Sequence[tuple[int, float]] = POINTS,
) -> CollectiveFit:
    """A fit whose line is that of the ring: intercept 2 (p-1) alpha, slope 2 (p-1)/p beta."""
    return CollectiveFit(
        operation="allreduce",
        library="mpi",
        level=level,
        ranks=ranks,
        intercept_s=estimate(2 * (ranks - 1) * alpha_s),
        slope_s_per_byte=estimate(2 * (ranks - 1) / ranks * beta_s_per_byte),
        mean_relative_error=0.1,
        line_error_factor=LINE_FACTOR,
        interpolation_error_factor=INTERPOLATION_FACTOR,
        points=[CollectivePoint(nbytes=m, seconds=estimate(t), n=10) for m, t in points],
    )


def operations(*names: str, ranks: Sequence[int] = (2,)) -> list[CollectiveFit]:
    """The allreduce of 2 ranks under other names and on other numbers of ranks."""
    return [
        allreduce_fit().model_copy(update={"operation": name, "ranks": p})
        for name in names
        for p in ranks
    ]


def layer_time(
    layer: Layer, batch: int, active_ranks: int, forward_s: float, backward_s: float
) -> LayerTime:
    """A measured layer."""
    return LayerTime(
        key=layer.shape.key(batch, "float32", layer.needs_input_grad),
        kind=layer.shape.kind,
        batch=batch,
        active_ranks=active_ranks,
        forward_s=estimate(forward_s),
        backward_s=estimate(backward_s),
        n=10,
    )


def work_model(kind: str, direction: str, active_ranks: int) -> WorkModel:
    """Backward costs twice the forward in every term."""
    scale = 1.0 if direction == "forward" else 2.0
    return WorkModel(
        kind=kind,
        direction=direction,
        active_ranks=active_ranks,
        call_s=scale * CALL_S,
        s_per_flop=scale * S_PER_FLOP,
        s_per_byte=scale * S_PER_BYTE,
        error_factor=WORK_FACTOR,
        max_flops=MAX_FLOPS,
        max_bytes=MAX_BYTES,
        n_layers=9,
    )


def tensor_loop(
    operation: str, active_ranks: int, measured: dict[str, Estimate] | None = None
) -> TensorLoop:
    """One of update, pack, unpack; all three cost the same."""
    return TensorLoop(
        operation=operation,
        active_ranks=active_ranks,
        call_s=LOOP_CALL_S,
        s_per_tensor=LOOP_TENSOR_S,
        s_per_byte=LOOP_BYTE_S,
        error_factor=LOOP_FACTOR,
        max_bytes=LOOP_MAX_BYTES,
        measured=measured or {},
    )


def tensor_loops(*names: str, active: Sequence[int] = (1, 2)) -> list[TensorLoop]:
    """Loops without measured lists."""
    return [tensor_loop(name, ranks) for ranks in active for name in names]


def law(
    phase: str,
    active_ranks: int,
    s_per_layer: float = 0.0,
    s_per_byte: float = 0.0,
    error_factor: float = 1.3,
    max_bytes: float = 1e5,
) -> Composition:
    """What a sum leaves out of one phase."""
    return Composition(
        phase=phase,
        active_ranks=active_ranks,
        s_per_layer=s_per_layer,
        s_per_byte=s_per_byte,
        error_factor=error_factor,
        sum_error_factor=2.0,
        max_bytes=max_bytes,
        models=["hand x 4"],
    )


def machine(**changes: Any) -> Parameters:
    """A node of 2 ranks with an allreduce, work models of linear and any kind, and tensor loops.

    `changes` replaces fields of the record.
    """
    content: dict[str, Any] = {
        "provenance": Provenance(
            program_version="0",
            cluster_name="hand",
            cluster_fingerprint="0123456789abcdef",
            samples_sha256=["0" * 64],
            measured_from="2026-11-21T00:00:00+00:00",
            measured_until="2026-11-21T00:01:00+00:00",
            seed=0,
        ),
        "device": "hand-made",
        "device_memory_bytes": 0,
        "ranks_per_node": 2,
        "collectives": [allreduce_fit()],
        "work": [
            work_model(kind, direction, active)
            for kind in ("linear", "conv", "any")
            for direction in ("forward", "backward")
            for active in (1, 2)
        ],
        "tensor_loops": tensor_loops("update", "pack", "unpack"),
    }
    return Parameters(**(content | changes))


def conv(
    name: str,
    source: str,
    channels: int,
    filters: int,
    size: int,
    kernel: int = 3,
    needs_input_grad: bool = True,
) -> Layer:
    """A square 2-D convolution with bias, stride 1, whose output is as large as its input."""
    shape = LayerShape(
        kind="conv",
        input_shapes=((channels, size, size),),
        output_shape=(filters, size, size),
        parameter_shapes=((filters, channels, kernel, kernel), (filters,)),
        attributes={
            "kernel": (kernel, kernel),
            "stride": (1, 1),
            "padding": (kernel // 2, kernel // 2),
            "groups": 1,
        },
    )
    return Layer(name=name, shape=shape, inputs=(source,), needs_input_grad=needs_input_grad)


def flatten(name: str = "flatten", source: str = "input") -> Layer:
    """A view of 2 x 3 items: no kernel runs."""
    shape = LayerShape(kind="flatten", input_shapes=((2, 3),), output_shape=(6,))
    return Layer(name=name, shape=shape, inputs=(source,), needs_input_grad=True)


def seconds(terms: Sequence[Term]) -> dict[str, float]:
    """What terms come to, by phase."""
    return {str(phase): cost.seconds for phase, cost in by_phase(terms).items()}


def close(cost: Cost, seconds: float, low: float, high: float) -> bool:
    """Whether a cost is what was computed by hand."""
    found = (cost.seconds, cost.low, cost.high)
    return found == pytest.approx((seconds, low, high), rel=EXACT, abs=0)


def rank_of(layers: Sequence[Layer], split: Collection[str] = ()) -> Workload:
    """A rank that runs these layers, those named `split` as parts; no need that they be a model."""
    distinct: list[LayerPiece] = []
    index: list[int] = []
    counts: dict[Select, dict[int, int]] = {"all": {}, "split": {}, "whole": {}}
    for layer in layers:
        if layer.shape.is_free:
            index.append(FREE)
            continue
        same = [
            number
            for number, piece in enumerate(distinct)
            if (piece.shape, piece.needs_input_grad) == (layer.shape, layer.needs_input_grad)
        ]
        if not same:
            same = [len(distinct)]
            distinct.append(LayerPiece(layer.shape, layer.needs_input_grad))
        index += same
        for select in ("all", "split" if layer.name in split else "whole"):
            of = counts[select]
            of[same[0]] = of.get(same[0], 0) + 1
    weights = [shape for layer in layers for shape in layer.shape.parameter_shapes]
    running = [layer for layer in layers if not layer.shape.is_free]
    return Workload(
        pieces=tuple(distinct),
        index=tuple(index),
        split=tuple(layer.name in split for layer in layers),
        counts=counts,
        weights=tensors(tuple(weights)),
        layers=len(running),
        output_items=sum(layer.shape.output_items for layer in running),
    )
