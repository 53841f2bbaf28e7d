"""A graph of torch.export as one that trains: on the module's own weights, at a number of samples.

torch.export gives ATen calls at a batch of PRIME samples, with weights as inputs. Here weights are those
of the module, sizes are those of the samples that a rank has, and a module of torch.nn that is a layer is
called as one again, so that a strategy can put a part of it in its place.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx, nn

from calib.foundation.layers import LayerShape
from calib.oracle.model.spec import ModelSpec
from calib.oracle.trace.exported import CHECKS, PRIME, ExportedLayers, innermost, part_of

# modules that compute what one ATen operator does
LAYERS = (
    nn.Linear,
    nn.Conv1d,
    nn.Conv2d,
    nn.Conv3d,
    nn.BatchNorm1d,
    nn.BatchNorm2d,
    nn.BatchNorm3d,
    nn.LayerNorm,
    nn.Embedding,
)


def without_gradients(call: Callable[..., Any], *given: Any, **options: Any) -> Any:
    """`call(*given, **options)` under no_grad, as a node of a graph."""
    with torch.no_grad():
        return call(*given, **options)


def exported_graph(
    module: nn.Module, layers: ExportedLayers, spec: ModelSpec, batch: int
) -> tuple[fx.GraphModule, dict[str, str]]:
    """The graph on the parameters of `module`, for `batch` samples, and the layer of each node."""
    made = _Made(module, layers, {layer.name: layer.shape for layer in spec.layers}, batch)
    made.add(layers.graph)
    for name, constant in made.constants.items():
        module.register_buffer(name, constant, persistent=False)
    try:
        graph = fx.GraphModule(module, made.graph)
    finally:
        for name in made.constants:
            delattr(module, name)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return graph, made.layer_of


class _Made:
    """The graph while it is made, node by node."""

    def __init__(
        self, module: nn.Module, layers: ExportedLayers, shapes: dict[str, LayerShape], batch: int
    ) -> None:
        first = next(module.parameters())
        self.graph, self._root = fx.Graph(), module
        self.layer_of: dict[str, str] = {}  # node of the new graph -> layer whose output it is
        self._layers, self._shapes, self._batch = layers, shapes, batch
        self._device, self._dtype = first.device, first.dtype
        self._new: dict[fx.Node, Any] = {}
        self._called: set[str] = set()  # modules that are called as layers
        self._parts: dict[fx.Node, fx.GraphModule] = {}
        self._no_grad = False
        self.constants: dict[str, torch.Tensor] = {}  # of the forward, by name

    def add(self, part: fx.GraphModule, given: tuple[Any, ...] = ()) -> Any:
        """Add the calls of a part; what it returns."""
        values, returned = iter(given), None
        for node in part.graph.nodes:
            if node.op == "placeholder":
                self._new[node] = next(values) if given else self._input(node)
            elif node.op == "output":
                returned = self._returned(node, is_model=not given)
            elif node.op == "get_attr":
                self._parts[node] = part.get_submodule(str(node.target))
            else:
                self._new[node] = self._call(node)
        return returned

    def _input(self, node: fx.Node) -> fx.Node | None:
        held = self._layers.held(node)
        if held is None:
            return self.graph.placeholder(node.name)
        if isinstance(held, torch.Tensor):  # a constant of the forward
            name = f"calib_constant_{len(self.constants)}"
            self.constants[name] = held.to(self._device)
            return self.graph.get_attr(name)
        return self.graph.get_attr(held) if node.users else None

    def _returned(self, node: fx.Node, is_model: bool) -> Any:
        if not is_model:
            (returned,) = node.args
            several = isinstance(returned, list | tuple)
            return [*map(self._argument, returned)] if several else self._argument(returned)
        outputs = [self._new[each] for each in self._layers.returned(node)]
        return self.graph.output(outputs[0] if len(outputs) == 1 else tuple(outputs))

    def _call(self, node: fx.Node) -> Any:
        target: Any = node.target
        if (part := part_of(node)) is not None:
            before, self._no_grad = self._no_grad, self._no_grad or part.no_grad
            given = tuple(map(self._argument, part.given))
            returned = self.add(self._parts[part.graph], given)
            self._no_grad = before
            return returned
        if target is operator.getitem:
            source, place = node.args
            of = self._new[source]
            return of[place] if isinstance(of, list) else self._named(node, target, (of, place), {})
        if target._schema.name.split("::")[-1].startswith(CHECKS):
            return None
        path = innermost(node)[0].partition("@")[0]
        if self._layers.changes_buffer(node) and path in self._called:
            return None  # the module does so itself
        called = self._module(node, path)
        if called is not None:
            return called
        arguments = tuple(map(self._argument, node.args))
        options = {name: self._argument(each) for name, each in node.kwargs.items()}
        return self._named(node, target, arguments, options)

    def _named(self, node: fx.Node, target: Any, given: tuple[Any, ...], options: Any) -> fx.Node:
        """A call, with the layer whose output it is."""
        if self._no_grad:
            given, target = (target, *given), without_gradients
        new = self.graph.call_function(target, given, options)
        self._tell(node, new)
        return new

    def _module(self, node: fx.Node, path: str) -> fx.Node | None:
        """The call of the module of torch.nn that makes a layer; None where none does."""
        shape = self._shapes.get(self._layers.source_of(node))
        if shape is None or shape.kind == "operator" or not shape.parameter_shapes:
            return None
        module = self._root.get_submodule(path)
        if type(module) not in LAYERS:
            return None
        (value,) = (each for each in node.all_input_nodes if self._layers.source_of(each))
        self._called.add(path)
        new = self.graph.call_module(path, (self._new[value],))
        self._tell(node, new)
        return new

    def _tell(self, node: fx.Node, new: fx.Node) -> None:
        source = self._layers.source_of(node)
        if source.partition("[")[0] in self._shapes and source not in self.layer_of.values():
            self.layer_of[new.name] = source

    def _argument(self, given: Any) -> Any:
        if isinstance(given, fx.Node):
            return self._new[given]
        if isinstance(given, list | tuple):
            return [self._argument(each) for each in given]
        if type(given) is int and given and given % PRIME == 0:
            return given // PRIME * self._batch
        if isinstance(given, torch.dtype) and given == torch.get_default_dtype():
            return self._dtype
        return self._device if isinstance(given, torch.device) else given
