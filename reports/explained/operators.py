"""Traced operators beside the predicted times of the layers that call them, by the layer's kind."""

from __future__ import annotations

from collections import defaultdict

from pydantic import NonNegativeFloat

from calib.foundation.division import Division
from calib.foundation.layers import Direction
from calib.foundation.records import Record
from calib.oracle.cost import Cost, total
from calib.oracle.costs.machine import Machine
from calib.oracle.layout.workload import workload
from calib.oracle.model.layer import Layer
from calib.oracle.model.spec import ModelSpec
from calib.oracle.predict import costs_of
from calib.reports.explained.lines import ExplainedLine, line_of, plain, summed
from calib.training.traces.run import OperatorTime, TracedRun

# of each kind of layer, what PyTorch calls on a device: forward, backward
FORWARD = {
    "conv": ("conv1d", "conv2d", "conv3d", "convolution"),
    "linear": ("linear", "addmm"),
    "batch_norm": ("batch_norm",),
    "layer_norm": ("layer_norm",),
    "relu": ("relu", "relu_", "clamp_min"),
    "max_pool": ("max_pool1d", "max_pool2d", "max_pool3d"),
    "avg_pool": ("avg_pool1d", "avg_pool2d", "avg_pool3d"),
    "adaptive_avg_pool": ("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d"),
    "add": ("add", "add_"),
    "concat": ("cat",),
    "softmax": ("softmax",),
    "embedding": ("embedding",),
    "dropout": ("dropout", "dropout_"),
    "cross_entropy": ("cross_entropy_loss",),
    "mse": ("mse_loss",),
}
BACKWARD = {
    "conv": ("convolution_backward",),
    "linear": ("mm",),
    "batch_norm": (
        "native_batch_norm_backward",
        "cudnn_batch_norm_backward",
        "miopen_batch_norm_backward",
    ),
    "layer_norm": ("native_layer_norm_backward",),
    "relu": ("threshold_backward",),
    "max_pool": (
        "max_pool2d_with_indices_backward",
        "max_pool3d_with_indices_backward",
        "mkldnn_max_pool2d_backward",
    ),
    "avg_pool": ("avg_pool2d_backward", "avg_pool3d_backward"),
    "adaptive_avg_pool": ("_adaptive_avg_pool2d_backward", "_adaptive_avg_pool3d_backward"),
    "softmax": ("_softmax_backward_data",),
    "embedding": ("embedding_dense_backward", "embedding_backward"),
    "dropout": ("native_dropout_backward",),
    "cross_entropy": ("nll_loss_backward", "nll_loss2d_backward", "_log_softmax_backward_data"),
    "mse": ("mse_loss_backward",),
}
OTHERS = "others"
NAMES: dict[Direction, dict[str, str]] = {
    "forward": {name: kind for kind, names in FORWARD.items() for name in names},
    "backward": {name: kind for kind, names in BACKWARD.items() for name in names},
}


class ExplainedOperators(Record):
    """The operators of one kind of layer in one direction; the line's seconds are of a step."""

    kind: str
    direction: Direction
    calls: NonNegativeFloat
    line: ExplainedLine


def operators_beside(
    run: TracedRun, model: ModelSpec, division: Division, machine: Machine, optimizer: str
) -> list[ExplainedOperators]:
    """The kinds of layers that both have, the largest difference first; the rest is of OTHERS.

    Empty for a pipeline, whose ranks have other layers each.
    """
    if division.traits.stages:
        return []
    costs = costs_of(model, machine, division, optimizer)
    work = workload(model, division)
    found = []
    for direction in ("forward", "backward"):
        each = costs.layers.each(work, division.local_batch, direction)
        predicted: defaultdict[str, list[Cost]] = defaultdict(list)
        for layer, cost in zip(model.layers, each, strict=True):
            predicted[_kind(layer, direction)].append(cost.times(division.accumulation))
        traced: defaultdict[str, list[OperatorTime]] = defaultdict(list)
        for op in run.operators:
            if op.phase == direction:
                kind = NAMES[direction].get(op.name.removeprefix("aten::"), OTHERS)
                traced[kind if kind in predicted else OTHERS].append(op)
        for kind in sorted(predicted.keys() | traced.keys()):
            ops, cost = traced[kind], total(predicted[kind])
            line = line_of(kind, summed(op.seconds for op in ops), plain(cost.record()))
            calls = sum(op.calls for op in ops)
            found.append(ExplainedOperators(kind=kind, direction=direction, calls=calls, line=line))
    return sorted(found, key=lambda one: -abs(one.line.difference.value))


def _kind(layer: Layer, direction: Direction) -> str:
    kind = str(layer.shape.kind)
    known = FORWARD if direction == "forward" else BACKWARD
    return kind if kind in known else OTHERS
