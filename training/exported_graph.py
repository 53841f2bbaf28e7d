"""A graph of torch.export as one that trains: on the module's own weights, at a number of samples.

torch.export gives ATen calls at a batch of PRIME samples, with weights as inputs. Here weights are those
of the module, sizes are those of the samples that a rank has, and a module of torch.nn that is one call
is called again, so that its hooks run and a strategy can put a part of it in its place.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, fx, nn

from calib.foundation.execution import DTYPES
from calib.foundation.layers import ITEM_BYTES, LayerShape
from calib.foundation.operators import PRIME
from calib.oracle.layout.item_bytes import item_bytes
from calib.oracle.model.layer import Layer
from calib.oracle.model.spec import ModelSpec
from calib.oracle.trace.atens import Call
from calib.oracle.trace.exported import CHECKS, ExportedLayers, innermost, part_of
from calib.oracle.trace.program import first_item_type

CONVOLUTIONS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}  # by dimensions of an image
NORMS = {1: nn.BatchNorm1d, 2: nn.BatchNorm1d, 3: nn.BatchNorm2d, 4: nn.BatchNorm3d}  # of a sample
PRODUCTS = ("conv", "linear", "embedding")  # with weights that strategies divide
# modules that compute what one ATen operator does
LAYERS = (
    *CONVOLUTIONS.values(),
    *NORMS.values(),
    *(nn.Linear, nn.LayerNorm, nn.Embedding),
    *(nn.ReLU, nn.Dropout, nn.Flatten, nn.Softmax),
    *(nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d),
    *(nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d),
    *(nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d),
)

AUTOCAST = next(name for name, items in DTYPES.items() if items.mixed)
# operators that take only size and type of a tensor, and what they fill it with; None: their argument
FILLED = {
    **dict.fromkeys(("new_zeros", "zeros_like", "new_empty", "empty_like"), 0.0),
    **dict.fromkeys(("new_ones", "ones_like"), 1.0),
    **dict.fromkeys(("new_full", "full_like"), None),
}


class TrainedGraph(NamedTuple):
    """The graph on a module's parameters, and the layer of each node.

    `names`: of parameters that a module of the graph calls otherwise, the name in the whole model.
    `narrowed`: a tensor that is narrow under autocast, or a weight, and read where the model turns it
    off: the graph is then not the model's under autocast. "" for none.
    """

    graph: fx.GraphModule
    layer_of: dict[str, str]
    names: dict[str, str]
    narrowed: str


def without_gradients(call: Callable[..., Any], *given: Any, **options: Any) -> Any:
    """`call(*given, **options)` under no_grad, as a node of a graph."""
    with torch.no_grad():
        return call(*given, **options)


def without_autocast(device: str, call: Callable[..., Any], *given: Any, **options: Any) -> Any:
    """`call(*given, **options)` with autocast off on a kind of device, as a node of a graph."""
    with torch.autocast(device, enabled=False):
        return call(*given, **options)


def operator_of(node: fx.Node) -> torch._ops.OpOverload | None:
    """The ATen operator that a node calls, through the functions above or not; None for no operator."""
    called, given = cast(Any, node.target), iter(node.args)
    while called in (without_gradients, without_autocast):
        called = next(each for each in given if callable(each))
    return called if isinstance(called, torch._ops.OpOverload) else None


def writes(node: fx.Node, module: nn.Module | None) -> bool:
    """Whether a node writes into a tensor that it is given; `module` is the one that it calls."""
    called = operator_of(node)
    mutable = called is not None and called._schema.is_mutable
    return bool(mutable or getattr(module, "inplace", False))


def module_called(root: nn.Module, node: fx.Node) -> nn.Module | None:
    """The module inside `root` that a node calls; None where it calls none."""
    return root.get_submodule(str(node.target)) if node.op == "call_module" else None


def exported_graph(
    module: nn.Module,
    layers: ExportedLayers,
    spec: ModelSpec,
    batch: int,
    types: fx.GraphModule | None = None,
) -> TrainedGraph:
    """The graph of a module for `batch` samples; the module is left as it is.

    `types` is the same graph in the module's own item types. Without it, torch's default type is taken
    for the module's.
    """
    made = _Made(module, layers, spec, batch, types)
    made.add(layers.graph)
    made.drop_what_modules_do()
    root = nn.Module()  # beside the module's own parts, those that are made here
    root._modules = {**module._modules, **made.modules}
    root._parameters = dict(module._parameters)
    root._buffers = {**module._buffers, **made.constants}
    made.graph.eliminate_dead_code(
        lambda node: (
            writes(node, module_called(root, node))
            or (node.op != "call_module" and node.is_impure())
        )
    )
    graph = fx.GraphModule(root, made.graph)
    return TrainedGraph(graph, made.layer_of, made.names, made.narrowed)


class _Made:
    """The graph while it is made, node by node."""

    def __init__(
        self,
        module: nn.Module,
        layers: ExportedLayers,
        spec: ModelSpec,
        batch: int,
        types: fx.GraphModule | None,
    ) -> None:
        first = next(module.parameters())
        self.graph, self._root = fx.Graph(), module
        self.layer_of: dict[str, str] = {}  # node of the new graph -> layer whose output it is
        self.names: dict[str, str] = {}  # see TrainedGraph
        self.modules: dict[str, nn.Module] = {}  # made here, by name
        self.constants: dict[str, Tensor] = {}  # of the forward, by name
        self._types = {} if types is None else _pairs(layers.graph, types)
        self._untyped = {of: node for node, of in self._types.items()}
        self._layers, self._batch = layers, batch
        self._of = {layer.name: layer for layer in spec.layers}
        self._tied = spec.tied_layers
        self._device, self._dtype = first.device, first_item_type(module)
        # a tied parameter has several names, of which the first is that of the model
        self._weights = dict(module.named_parameters())
        self._buffers = dict(module.named_buffers())
        self._name_of = {weight: name for name, weight in self._weights.items()}
        self._alias = dict(module.named_parameters(remove_duplicate=False))
        self._new: dict[fx.Node, Any] = {}
        self._told: set[str] = set()  # layers in `layer_of`
        self._called: set[str] = set()  # modules that are called as layers
        self._counted: list[tuple[str, fx.Node]] = []  # changes of buffers, and their modules
        self._parts: dict[fx.Node, fx.GraphModule] = {}
        self._no_grad, self._uncast = False, ""
        self.narrowed = ""  # see TrainedGraph
        self._item_bytes = item_bytes(spec.run_as(AUTOCAST))

    def add(self, part: fx.GraphModule, given: tuple[Any, ...] = ()) -> Any:
        """Add the calls of a part; what it returns."""
        values, returned = iter(given), None
        for node in part.graph.nodes:
            if node.op == "placeholder":
                self._new[node] = next(values) if given else self._input(node)
            elif node.op == "output":
                returned = self._returned(node, is_model=not given)
            elif node.op == "get_attr":
                self._parts[node] = cast(fx.GraphModule, part.get_submodule(str(node.target)))
            else:
                self._new[node] = self._call(node)
        return returned

    def drop_what_modules_do(self) -> None:
        """Leave out changes of buffers that modules make themselves, as counts of batches."""
        for path, node in self._counted:
            if path in self._called:
                self.graph.erase_node(node)

    def _typed(self, node: fx.Node) -> fx.Node:
        """The same call in the module's own item types.

        In torch's default type `x.float()` is x itself, and its graph may have one for the other.
        """
        return self._types.get(node, node)

    def _input(self, node: fx.Node) -> fx.Node:
        held = self._layers.held(node)
        if held is None:
            return self.graph.placeholder(node.name)
        if isinstance(held, Tensor):  # a constant of the forward
            name = f"calib_constant_{len(self.constants)}"
            self.constants[name] = held.to(self._device)
            return self.graph.get_attr(name)
        return self.graph.get_attr(
            self._name_of[self._alias[held]] if held in self._alias else held
        )

    def _returned(self, node: fx.Node, is_model: bool) -> Any:
        if not is_model:
            returned: Any = node.args[0]
            several = isinstance(returned, list | tuple)
            return [*map(self._argument, returned)] if several else self._argument(returned)
        outputs = [self._new[each] for each in self._layers.returned(node)]
        return self.graph.output(outputs[0] if len(outputs) == 1 else tuple(outputs))

    def _call(self, node: fx.Node) -> Any:
        target: Any = node.target
        typed = self._typed(node)
        arguments: tuple[Any, ...] = typed.args
        if (part := part_of(typed)) is not None:
            before = self._no_grad, self._uncast
            self._no_grad = self._no_grad or part.no_grad
            if part.uncast:
                # a trace is as on a CPU: of the device that a tensor is on
                self._uncast = self._device.type if part.uncast == "cpu" else part.uncast
                self.narrowed = self.narrowed or self._narrowed(part.given)
            graph = self._parts[self._untyped.get(part.graph, part.graph)]
            returned = self.add(graph, tuple(map(self._argument, part.given)))
            self._no_grad, self._uncast = before
            return returned
        if target is operator.getitem:
            source, place = arguments
            of = self._argument(source)
            return of[place] if isinstance(of, list) else self._named(node, target, (of, place), {})
        if target._schema.name.split("::")[-1].startswith(CHECKS):
            return None
        if (made := self._module(node) or self._filled(node)) is not None:
            return made
        given = tuple(map(self._argument, arguments))
        options = {name: self._argument(each) for name, each in typed.kwargs.items()}
        new = self._named(node, target, given, options)
        if not self._layers.changes_buffer(node):
            return new
        if not self._no_grad:
            self._counted.append((_path(node), new))
        return new.all_input_nodes[0]

    def _named(self, node: fx.Node, target: Any, given: tuple[Any, ...], options: Any) -> fx.Node:
        """A call, with the layer whose output it is."""
        if self._uncast and target is not operator.getitem:
            given, target = (self._uncast, target, *given), without_autocast
        if self._no_grad and target is not operator.getitem:
            given, target = (target, *given), without_gradients
        new = self.graph.call_function(target, given, options)
        self._tell(node, new)
        return new

    def _narrowed(self, given: Iterable[Any]) -> str:
        """The first of some tensors that is narrow under autocast, or a weight; "" for none."""
        for each in given:
            node = self._untyped.get(each, each)
            name, new = self._layers.source_of(node), self._new.get(node)
            if isinstance(new, fx.Node) and new.target in self._weights:
                return str(new.target)
            if name and _is_float(node) and self._item_bytes[name] < ITEM_BYTES:
                return name
        return ""

    def _module(self, node: fx.Node) -> fx.Node | None:
        """The call of the module that makes a layer of a kind of its own; None for all others."""
        source = self._layers.source_of(node)
        layer = self._of.get(source)
        if layer is None or layer.shape.operator is not None or source in self._told:
            return None
        path, held = _path(node), [*self._held(node)]
        if self._layers.is_alone(node) and _is_layer(self._root.get_submodule(path), path, held):
            self._called.add(path)
        elif (made := self._like(layer, node, held)) is not None:
            path = f"calib_layer_{len(self.modules)}"
            self.modules[path] = made
            parts = dict(made.named_parameters())
            self.names |= {f"{path}.{name}": self._name_of[of] for name, of in parts.items()}
        else:
            return None
        read = [self._untyped.get(each, each) for each in self._typed(node).all_input_nodes]
        (value,) = (each for each in read if self._layers.source_of(each))
        new = self.graph.call_module(path, (self._new[value],))
        self._tell(node, new)
        return new

    def _filled(self, node: fx.Node) -> fx.Node | None:
        """A constant "like" a tensor, without the tensor, where it has no batch; None for all others.

        So that a stage of a pipeline that reads a mask need not have that tensor.
        """
        base = str(node.target).split(".")[1]
        found = node.meta.get("val")
        if base not in FILLED or not isinstance(found, Tensor):
            return None
        if any(size and size % PRIME == 0 for size in found.shape) or self._no_grad:
            return None
        value = self._typed(node).args[-1] if FILLED[base] is None else FILLED[base]
        dtype = self._typed(node).meta["val"].dtype
        options = {"dtype": self._argument(dtype), "device": self._device}
        given = ([*found.shape], self._argument(value))
        new = self.graph.call_function(torch.ops.aten.full.default, given, options)
        self._tell(node, new)
        return new

    def _held(self, node: fx.Node) -> Iterator[str]:
        """The names of the parameters that a node reads, in the order of its arguments."""
        for each in map(self._new.get, node.all_input_nodes):
            if isinstance(each, fx.Node) and each.target in self._weights:
                yield str(each.target)

    def _like(self, layer: Layer, node: fx.Node, held: list[str]) -> nn.Module | None:
        """A module of torch.nn for a call on the weights `held`, where a strategy may want one.

        As in multi-head attention, or in a subclass of a batch norm. A tied weight is not divided.
        """
        if layer.shape.kind == "batch_norm":
            made: nn.Module = self._norm(layer.shape, node)
        elif layer.shape.kind in PRODUCTS and layer.name not in self._tied:
            made = _product(layer.shape)
        else:
            return None
        for name, of in zip(("weight", "bias"), held, strict=False):
            setattr(made, name, self._weights[of])
        return made.train()

    def _norm(self, shape: LayerShape, node: fx.Node) -> nn.Module:
        """A batch norm with the buffers of a call; what counts batches is a call of its own."""
        given = Call(node, self._argument, PRIME)
        norm = NORMS[len(shape.output_shape)](
            shape.output_shape[0],
            given["eps"],
            given["momentum"],
            affine=bool(shape.parameter_shapes),
            device="meta",
        )
        norm.track_running_stats = given["running_mean"] is not None
        for name in ("running_mean", "running_var"):
            buffer = given[name]
            setattr(norm, name, None if buffer is None else self._buffers[str(buffer.target)])
        norm.num_batches_tracked = None
        return norm

    def _tell(self, node: fx.Node, new: fx.Node) -> None:
        source = self._layers.source_of(node)
        if source.partition("[")[0] in self._of and source not in self._told:
            self.layer_of[new.name] = source
            self._told.add(source)

    def _argument(self, given: Any) -> Any:
        if isinstance(given, fx.Node):
            return self._new[self._untyped.get(given, given)]
        if isinstance(given, list | tuple):
            return [self._argument(each) for each in given]
        if type(given) in (int, float) and given and given % PRIME == 0:
            return given // PRIME * self._batch
        if isinstance(given, torch.dtype) and given == torch.get_default_dtype():
            return given if self._types else self._dtype
        return self._device if isinstance(given, torch.device) else given


def _pairs(graph: fx.GraphModule, other: fx.GraphModule) -> dict[fx.Node, fx.Node]:
    """The nodes of a graph with those of another that makes the same calls; empty where it does not."""
    nodes, others = list(graph.graph.nodes), list(other.graph.nodes)
    if [str(of.target) for of in nodes] != [str(of.target) for of in others]:
        return {}
    found = dict(zip(nodes, others, strict=True))
    for node in nodes:
        if node.op == "get_attr":
            name = str(node.target)
            parts = graph.get_submodule(name), other.get_submodule(name)
            found |= _pairs(*cast(tuple[fx.GraphModule, fx.GraphModule], parts))
    return found


def _is_float(node: fx.Node) -> bool:
    """Whether a call makes a tensor in torch's default item type."""
    made = node.meta.get("val")
    return isinstance(made, Tensor) and made.dtype == torch.get_default_dtype()


def _path(node: fx.Node) -> str:
    """The path of the module whose forward makes a call, also where it is called again."""
    return innermost(node)[0].partition("@")[0]


def _is_layer(module: nn.Module, path: str, held: list[str]) -> bool:
    """Whether a call of a module is one operator on the parameters `held`, and nothing else."""
    own = [f"{path}.{name}" for name, _ in module.named_parameters()]
    hooks = module._forward_hooks or module._forward_pre_hooks
    padded = getattr(module, "padding_mode", "zeros") != "zeros"
    return type(module) in LAYERS and bool(path) and held == own and not (hooks or padded)


def _product(shape: LayerShape) -> nn.Module:
    """A convolution, linear layer or table of a shape, whose weights have no memory yet."""
    weight, *bias = shape.parameter_shapes
    of: dict[str, Any] = dict(shape.attributes)
    if shape.kind == "embedding":
        return nn.Embedding(weight[0], weight[1], device="meta")
    if shape.kind == "linear":
        return nn.Linear(weight[1], weight[0], bias=bool(bias), device="meta")
    return CONVOLUTIONS[len(weight) - 2](
        of["groups"] * weight[1],
        weight[0],
        of["kernel"],
        of["stride"],
        of["padding"],
        groups=of["groups"],
        bias=bool(bias),
        device="meta",
    )
