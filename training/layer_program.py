"""A model as a program of its layers: one node of a graph for each layer of its ModelSpec.

Strategies change this program (put a layer's part in its place, a gather where a split ends) by the
names that the oracle uses; an observer sees every layer's output while it runs.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, fx, nn

from calib.oracle.model.graph import INPUT
from calib.oracle.model.spec import ModelSpec
from calib.oracle.trace.exported import ExportedLayers
from calib.oracle.trace.tracing import export_in_own_types, trace_operators
from calib.training.exported_graph import exported_graph, module_called, operator_of
from calib.training.models import ModelEntry
from calib.training.models.pooling import identities_run

Observer = Callable[[str, Tensor], None]


class _Watched(fx.Interpreter):
    """Runs the graph node by node and shows every layer's output."""

    def __init__(self, program: LayerProgram, observer: Observer) -> None:
        super().__init__(program.graph)
        self._layer_of, self._observer = program.layer_of, observer

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        layer = self._layer_of.get(n.name)
        if layer is not None and layer != INPUT and isinstance(result, Tensor):
            self._observer(layer, result)
        return result


class LayerProgram(nn.Module):
    """Runs `graph`; `layer_of` maps a node's name to the layer whose output it is.

    `names`: the name in the model of each parameter that `graph` calls otherwise. `narrowed`: see
    TrainedGraph.

    An `observer` is called in each forward with the name and the output of every layer that runs (of
    this rank's part, where it has one). Nodes that are no layer (a gather that a strategy put in) have
    no entry.
    """

    def __init__(
        self,
        spec: ModelSpec,
        graph: fx.GraphModule,
        layer_of: dict[str, str],
        names: dict[str, str] | None = None,
        narrowed: str = "",
    ) -> None:
        super().__init__()
        self.narrowed = narrowed
        self.spec, self.layer_of, self.names = spec, layer_of, names or {}
        self.graph = graph
        self.observer: Observer | None = None

    def forward(self, *inputs: Tensor) -> Any:
        """What the model returns."""
        if self.observer is not None:
            for part in self.graph.modules():
                if isinstance(part, LayerProgram):  # a checkpointed region
                    part.observer = self.observer
            return _Watched(self, self.observer).run(*inputs)
        return self.graph(*inputs)

    def node_of(self, layer: str) -> fx.Node:
        """The node whose result is the output of `layer`."""
        nodes: list[fx.Node] = list(self.graph.graph.nodes)
        return next(node for node in nodes if self.layer_of.get(node.name) == layer)

    def calls(self) -> dict[str, fx.Node]:
        """The node that computes each layer: of several outputs the call, not those that take one."""
        found: dict[str, fx.Node] = {}
        for node in self.graph.graph.nodes:
            if node.name in self.layer_of:
                call = node.all_input_nodes[0] if node.target is operator.getitem else node
                found[self.layer_of[node.name].partition("[")[0]] = call
        return found

    def layer_behind(self, node: fx.Node) -> str:
        """The layer whose output a node has, or hands on; "" where there is none."""
        while node.name not in self.layer_of and node.all_input_nodes:
            if node.op != "call_module" and operator_of(node) is None:
                break
            node = node.all_input_nodes[0]
        return self.layer_of.get(node.name, INPUT if node.op == "placeholder" else "")

    def module_called(self, node: fx.Node) -> nn.Module | None:
        """The module that a node calls; None where it calls none."""
        return module_called(self.graph, node)

    def module_of(self, layer: str) -> nn.Module:
        """The module that computes `layer`. Raises where a function does."""
        return self.graph.get_submodule(str(self.node_of(layer).target))

    def replace_module(self, layer: str, by: nn.Module) -> None:
        """Let `by` compute a layer from its first input instead.

        `by` takes the name of the module that it replaces, so that parameters keep their names.
        """
        node = self.node_of(layer)
        if node.op == "call_module":
            self.graph.set_submodule(str(node.target), by)
        else:
            self.call_instead(node, by)

    def call_instead(self, node: fx.Node, by: nn.Module) -> None:
        """Let one node call `by` with its first input, whatever else uses the module it called."""
        name = f"calib_{node.name}"
        self.graph.add_module(name, by)
        node.op, node.target = "call_module", name
        node.args, node.kwargs = (node.all_input_nodes[0],), {}

    def recompile(self) -> None:
        """Make the changed graph run. Call it after the last change."""
        self.graph.graph.lint()
        self.graph.recompile()

    def trained(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Every parameter that is trained, with its name in the model."""
        for name, parameter in self.graph.named_parameters():
            if parameter.requires_grad:
                yield self.names.get(name, name), parameter

    def parameter_layers(self) -> dict[str, str]:
        """The first layer that has each parameter, by the parameter's name in the model."""
        found: dict[str, str] = {}
        for node in self.graph.graph.nodes:
            if node.op == "call_module" and node.name in self.layer_of:
                for name, _ in self.graph.get_submodule(str(node.target)).named_parameters():
                    known = f"{node.target}.{name}"
                    found.setdefault(self.names.get(known, known), self.layer_of[node.name])
            for read in node.all_input_nodes:
                if read.op == "get_attr" and node.name in self.layer_of:
                    found.setdefault(str(read.target), self.layer_of[node.name])
        return found


def layer_program(module: nn.Module, about: ModelEntry, batch: int) -> LayerProgram:
    """The program of `module`, with the same parameters, for `batch` samples at once.

    A process traces a model once, whatever the item type of `module`. Raises InputError as `trace` does.
    """
    key = about, torch.get_default_dtype()
    if key not in _TRACES:
        _TRACES[key] = _trace(module, about)
    spec, calls = _TRACES[key]
    types = _own_types(module, about, calls)
    return LayerProgram(spec, *exported_graph(module.train(), calls, spec, batch, types))


_TRACES: dict[tuple[ModelEntry, torch.dtype], tuple[ModelSpec, ExportedLayers]] = {}
_OWN_TYPES: dict[tuple[ModelEntry, torch.dtype, torch.dtype], fx.GraphModule | None] = {}


def _trace(module: nn.Module, about: ModelEntry) -> tuple[ModelSpec, ExportedLayers]:
    """Its layers and calls."""
    with identities_run(module):
        return trace_operators(
            module, about.input_shape, about.name, about.loss, about.auxiliary_weight
        )


def _own_types(
    module: nn.Module, about: ModelEntry, calls: ExportedLayers
) -> fx.GraphModule | None:
    """The calls in the module's own item types where these are others than torch's default."""
    dtype, default = next(module.parameters()).dtype, torch.get_default_dtype()
    if dtype == default or not calls.names_types:
        return None
    key = about, dtype, default
    if key not in _OWN_TYPES:
        with identities_run(module):
            _OWN_TYPES[key] = export_in_own_types(module, about.input_shape)
    return _OWN_TYPES[key]
