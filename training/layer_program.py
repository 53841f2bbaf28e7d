"""A model as a program of its layers: one torch.fx node for each layer of its ModelSpec.

Strategies change this program (a layer by its part, a gather where a split ends) by the names that the
oracle uses; the tensors of every layer can be looked at while it runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, fx, nn

from calib.oracle.model.spec import ModelSpec
from calib.oracle.trace.lines import traced
from calib.oracle.trace.tracing import INPUT, trace_nodes
from calib.training.models import ModelEntry

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
    """Runs `graph`; `layer_of` has the layer whose output a node's result is, by the node's name.

    With an `observer`, it is called with the name and the output of every layer that runs (a part of
    it, where this rank has a part), forward by forward. A node that stands for no layer (a gather that
    a strategy put in, an identity) has no entry.
    """

    def __init__(self, spec: ModelSpec, graph: fx.GraphModule, layer_of: dict[str, str]) -> None:
        super().__init__()
        self.spec, self.layer_of = spec, layer_of
        self.graph = graph
        self.observer: Observer | None = None

    def forward(self, *inputs: Tensor) -> Any:
        """What the model returns."""
        if self.observer is not None:
            return _Watched(self, self.observer).run(*inputs)
        return self.graph(*inputs)

    def node_of(self, layer: str) -> fx.Node:
        """The node whose result is the output of `layer`."""
        nodes: list[fx.Node] = list(self.graph.graph.nodes)
        return next(node for node in nodes if self.layer_of.get(node.name) == layer)

    def replace_module(self, layer: str, by: nn.Module) -> fx.Node:
        """Let `by` compute a layer from its first input instead; returns the node.

        `by` stands at the layer's own name where that is a module's, so that parameters keep their
        names; a function's node becomes a call of a module of the layer's name.
        """
        node = self.node_of(layer)
        if node.op == "call_module":
            _set(self.graph, str(node.target), by)
            return node
        name = "calib_" + node.name
        self.graph.add_module(name, by)
        node.op, node.target = "call_module", name
        node.args, node.kwargs = (node.all_input_nodes[0],), {}
        return node

    def read_from(self, reader: fx.Node, old: fx.Node, new: fx.Node) -> None:
        """Let `reader` read `new` where it read `old`."""
        reader.replace_input_with(old, new)

    def recompile(self) -> None:
        """Make the changed graph run. Call it after the last change."""
        self.graph.graph.lint()
        self.graph.recompile()

    def parameter_layers(self) -> dict[str, str]:
        """By a parameter's name in the model: the layer that has it."""
        found: dict[str, str] = {}
        for node in self.graph.graph.nodes:
            if node.op == "call_module" and node.name in self.layer_of:
                of = self.graph.get_submodule(str(node.target)).named_parameters()
                found |= {f"{node.target}.{name}": self.layer_of[node.name] for name, _ in of}
        return found


def layer_program(module: nn.Module, about: ModelEntry) -> LayerProgram:
    """The program of `module`, which it shares the parameters of. Raises InputError as trace does."""
    spec, layers = trace_nodes(
        module, about.input_shape, about.name, about.loss, about.auxiliary_weight
    )
    graph = traced(module.train())
    first: dict[str, str] = {}
    for node in graph.graph.nodes:  # of an identity's node, the layer stands before it
        layer = layers.get(node.name)
        if layer is not None and layer not in first.values():
            first[node.name] = layer
    return LayerProgram(spec, graph, first)


def _set(root: nn.Module, path: str, module: nn.Module) -> None:
    parent, _, name = path.rpartition(".")
    setattr(root.get_submodule(parent), name, module)
