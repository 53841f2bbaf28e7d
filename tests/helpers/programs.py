"""Models traced once for many trainings: torch.fx takes its time, and while it traces it patches
nn.Module for all threads of the process, so that ranks that are threads must not trace."""

from __future__ import annotations

import copy

from torch import fx, nn

import calib.training.checks.gradients
import calib.training.worker
from calib.training.layer_program import LayerProgram, layer_program
from calib.training.models import ModelEntry

_TRACED: dict[str, LayerProgram] = {}


def traced_once(module: nn.Module, about: ModelEntry) -> LayerProgram:
    """layer_program(module, about), traced at the first call for a model of this name."""
    if about.name not in _TRACED:
        _TRACED[about.name] = layer_program(copy.deepcopy(module), about)
    found = _TRACED[about.name]
    graph = fx.GraphModule(module.train(), copy.deepcopy(found.graph.graph))
    return LayerProgram(found.spec, graph, dict(found.layer_of))


def trace_once() -> None:
    """From now on, trainings of this process trace every model once."""
    calib.training.worker.layer_program = calib.training.checks.gradients.layer_program = (
        traced_once
    )
