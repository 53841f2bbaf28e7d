"""Models traced once for many trainings: torch.fx takes its time, and while it traces it patches
nn.Module for all threads of the process, so that ranks that are threads must not trace."""

from __future__ import annotations

import copy
from functools import cache

import torch
from torch import fx, nn

import calib.training.checks.gradients
import calib.training.worker
from calib.oracle.model.spec import ModelSpec
from calib.oracle.trace.tracing import trace
from calib.training.layer_program import LayerProgram, layer_program
from calib.training.models import ModelEntry, built, entry

_TRACED: dict[tuple[str, int], LayerProgram] = {}


def build(name: str, seed: int) -> nn.Module:
    """A registered model as ranks build it."""
    return built(entry(name), seed)


def quiet(module: nn.Module) -> nn.Module:
    """Without dropout, whose masks differ between ranks, stages and serial runs by definition."""
    for part in module.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
    return module


@cache
def registered(name: str) -> tuple[ModelSpec, nn.Module]:
    """A registered model on the meta device, and its trace; made once for all tests."""
    found = entry(name)
    with torch.device("meta"):
        module = found.build()
    return trace(module, found.input_shape, name, found.loss, found.auxiliary_weight), module


def traced_once(module: nn.Module, about: ModelEntry, batch: int = 1) -> LayerProgram:
    """layer_program, traced without weights at the first call for this name and batch, by torch.fx."""
    key = about.name, batch
    if key not in _TRACED:
        _TRACED[key] = layer_program(copy.deepcopy(module).to("meta"), about, batch)
    found = _TRACED[key]
    if any(layer.shape.operator for layer in found.spec.layers):
        return layer_program(module, about, batch)
    graph = fx.GraphModule(module.train(), copy.deepcopy(found.graph.graph))
    return LayerProgram(found.spec, graph, dict(found.layer_of))


def trace_once() -> None:
    """From now on, trainings of this process trace every model once."""
    calib.training.worker.layer_program = calib.training.checks.gradients.layer_program = (
        traced_once
    )
