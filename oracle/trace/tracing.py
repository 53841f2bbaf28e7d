"""Tracing a PyTorch module into a ModelSpec: its layers with shapes, attributes and edges.

torch.fx gives the graph (modules of torch.nn are leaves), a run on meta tensors the shapes, so that
CosmoFlow at 512^3 needs no memory. Only this folder of the oracle imports torch; a prediction from a
model.json does not need it.

Whatever a LayerShape cannot hold (a dilated convolution, an unknown module, broadcasting) is refused
by name, never left out. So are weights shared by two layers: weights, their exchange and their update
are counted per layer, so shared ones would count twice. A module without weights (one ReLU for the
whole model) may be used any number of times: name, name#2, name#3.

A model with an auxiliary head returns a pair in train mode. Its loss is still one layer: it reads both
outputs, and its attribute auxiliary_weight is the weight of the second. So the last layer is always
the loss, the loss has one cost key, and both heads reach it. PyTorch's cross_entropy wants the classes
at dimension 1; where a model's last weights are a linear layer's, they are at the last dimension
(classes_last), and the loss is over all places, as language models have it.
"""

from __future__ import annotations

import copy
import math
from typing import Any, Literal

import torch
from torch import Tensor, fx, nn

from calib.foundation.errors import InputError
from calib.foundation.layers import LayerKind, LayerShape, Shape
from calib.oracle.model.graph import INPUT
from calib.oracle.model.layer import Layer
from calib.oracle.model.spec import ModelSpec
from calib.oracle.trace.layers import (
    Attributes,
    check_function,
    function_attributes,
    function_kind,
    function_tensors,
    is_size,
    module_kind,
    require_channels,
)
from calib.oracle.trace.lines import PLACE, at, failed_at, line_of, traced

LOSS = "loss"
BATCH = 2  # samples of the meta tensors; batch norm in train mode refuses 1


class _Recorder(fx.Interpreter):
    """Runs a graph on meta tensors and records a Layer for each node."""

    def __init__(self, graph: fx.GraphModule, root: str, n_outputs: int) -> None:
        super().__init__(graph)
        self.n_outputs = n_outputs
        self.extra_traceback = False  # fx would append lines to the error
        self.root = root
        self.layers: list[Layer] = []
        self.source: dict[fx.Node, str] = {}  # node -> the layer whose output it is
        self.shape_of: dict[str, Shape] = {}  # layer or "input" -> per-sample shape
        self.weighted = {INPUT: False}  # whether the layer or one before it has parameters
        self.owner_of: dict[int, str] = {}  # id of a parameter -> its layer
        self.outputs: tuple[str, ...] = ()  # layers whose outputs the model returns

    def run_node(self, n: fx.Node) -> Any:
        """Run and record one node. Raises InputError with the node and its module."""
        try:
            self._refuse_unknown(n)
            result = super().run_node(n)
        except (Exception, SystemExit) as error:
            raise self._error(n, error) from None
        try:
            self._record(n, result)
        except InputError as error:
            raise self._error(n, error) from None
        return result

    def _refuse_unknown(self, node: fx.Node) -> None:
        """Raise InputError for an operation without a layer in calib, before it runs."""
        if node.op in ("call_function", "call_method") and not is_size(node):
            function_kind(node.target)
        elif node.op == "call_module":
            module = self.fetch_attr(str(node.target))
            if type(module) is not nn.Identity:
                module_kind(module)
            read = [self.source[source] for source in node.all_input_nodes]
            if type(module) is nn.Embedding and read != [INPUT]:
                raise InputError(f"an embedding must look up the model's input, not {read[0]!r}")
        elif node.op == "get_attr":
            raise InputError("a parameter or buffer used outside a layer is not supported")

    def _error(self, node: fx.Node, error: BaseException) -> InputError:
        """`error` in one line with the node and the module that calls it."""
        called = node.target if isinstance(node.target, str) else node.target.__name__
        where = self._where(node)
        place = at(node.meta.get(PLACE))
        return InputError(
            f"cannot trace {node.name!r} ({node.op} {called}) in {where}{place}: {line_of(error)}"
        )

    def _where(self, node: fx.Node) -> str:
        """Path and class of the node's innermost module."""
        path, kind = _innermost(node)
        return f"{path} ({kind})" if path else self.root

    def _record(self, node: fx.Node, result: Any) -> None:
        if node.op == "output":
            returned = node.args[0]
            several = returned if isinstance(returned, tuple) else (returned,)
            nodes = [x for x in several if isinstance(x, fx.Node)]
            if len(nodes) != self.n_outputs or nodes != list(several) or any(map(is_size, nodes)):
                wanted = "one tensor" if self.n_outputs == 1 else "the pair (main, auxiliary)"
                raise InputError(f"a model must return {wanted}")
            self.outputs = tuple(self.source[x] for x in nodes)
            return
        if is_size(node):
            return
        if not isinstance(result, Tensor) or result.dim() < 1 or result.shape[0] != BATCH:
            raise InputError("the result is not one tensor whose first dimension is the batch")
        if node.op != "placeholder" and result.dtype != torch.get_default_dtype():
            raise InputError(f"the result is of {result.dtype}, not of the model's item type")
        shape = tuple(result.shape[1:])
        if node.op == "placeholder":
            self.source[node] = INPUT
            self.shape_of[INPUT] = shape
        elif node.op == "call_module":
            self._record_module(node, self.fetch_attr(str(node.target)), shape)
        else:
            self._record_function(node, shape)

    def _record_module(self, node: fx.Node, module: nn.Module, shape: Shape) -> None:
        (source,) = (self.source[argument] for argument in node.all_input_nodes)
        if type(module) is nn.Identity:
            self.source[node] = source
            return
        kind, attributes = module_kind(module)
        self._check_module(module, kind, shape)
        name = self._unique(str(node.target))
        for parameter in module.parameters():
            owner = self.owner_of.setdefault(id(parameter), name)
            if owner != name:
                raise InputError(f"sharing weights with the layer {owner!r} is not supported")
        parameters = tuple(tuple(parameter.shape) for parameter in module.parameters())
        self.source[node] = name
        self.append(name, kind, (source,), shape, parameters, attributes)

    def _check_module(self, module: nn.Module, kind: LayerKind, shape: Shape) -> None:
        """Raise InputError for faults that depend on the shape of the module's result."""
        if isinstance(module, nn.Softmax):
            require_channels(kind, module.dim, 1 + len(shape))
        if isinstance(module, nn.LayerNorm) and len(module.normalized_shape) > len(shape):
            raise InputError("normalizing over the batch is not supported")

    def _record_function(self, node: fx.Node, shape: Shape) -> None:
        kind = function_kind(node.target)
        check_function(kind, node, 1 + len(shape))
        tensors = function_tensors(kind, node)
        if not all(tensor in self.source for tensor in tensors):
            raise InputError(f"{kind} of something that is not a tensor is not supported")
        inputs = tuple(self.source[tensor] for tensor in tensors)
        if kind == "add" and (
            len(inputs) != 2 or any(self.shape_of[source] != shape for source in inputs)
        ):
            raise InputError("only the sum of two tensors of one shape is supported")
        path, _ = _innermost(node)
        self.source[node] = name = self._unique(f"{path}.{kind}" if path else kind)
        args, kwargs = self.fetch_args_kwargs_from_env(node)
        attributes = function_attributes(node.target, kind, args, kwargs)
        self.append(name, kind, inputs, shape, attributes=attributes)

    def _unique(self, name: str) -> str:
        """`name`, or name#2, name#3 if it is taken."""
        candidate, count = name, 1
        while candidate in self.shape_of or candidate in (INPUT, LOSS):
            count += 1
            candidate = f"{name}#{count}"
        return candidate

    def append(
        self,
        name: str,
        kind: LayerKind,
        inputs: tuple[str, ...],
        shape: Shape,
        parameters: tuple[Shape, ...] = (),
        attributes: Attributes | None = None,
    ) -> None:
        """Append the layer `name`, which reads the layers `inputs`; shapes are per sample."""
        input_shapes = tuple(self.shape_of[source] for source in inputs)
        if kind == "flatten" and shape != (math.prod(input_shapes[0]),):
            raise InputError("only flattening everything but the batch is supported")
        layer_shape = LayerShape(
            kind=kind,
            input_shapes=input_shapes,
            output_shape=shape,
            parameter_shapes=parameters,
            attributes=attributes or {},
        )
        needed = any(self.weighted[source] for source in inputs)
        layer = Layer(name=name, shape=layer_shape, inputs=inputs, needs_input_grad=needed)
        self.layers.append(layer)
        self.shape_of[name] = shape
        self.weighted[name] = needed or bool(parameters)


def _input_dtype(graph: fx.GraphModule, name: str, root: str) -> torch.dtype:
    """int64 if embeddings look up the model's input, else the default float.

    Raises InputError if the input is both looked up and computed with.
    """
    (placeholder,) = (node for node in graph.graph.nodes if node.op == "placeholder")
    looked_up = {
        node.op == "call_module" and type(graph.get_submodule(str(node.target))) is nn.Embedding
        for node in placeholder.users
    }
    if looked_up == {True, False}:
        raise InputError(
            f"cannot trace the model {name} ({root}): its input is looked up by an embedding and "
            "used in another way, and cannot be integers and numbers at once"
        )
    return torch.int64 if looked_up == {True} else torch.get_default_dtype()


def _innermost(node: fx.Node) -> tuple[str, str]:
    """Path and class of the innermost module whose forward made the node; "" for the model."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    path, kind = stack[-1] if stack else ("", "")
    return path, getattr(kind, "__name__", str(kind))


def _meta_copy(module: nn.Module) -> nn.Module:
    """A copy of `module` in train mode with its tensors on the meta device; ties stay ties.

    Floats take torch's default item type, as shapes do not depend on it.
    """
    memo: dict[int, Any] = {}  # deepcopy takes these as copied, so it copies no weight
    for parameter in module.parameters():
        memo[id(parameter)] = nn.Parameter(_meta(parameter), parameter.requires_grad)
    for buffer in module.buffers():
        memo[id(buffer)] = _meta(buffer)
    return copy.deepcopy(module, memo).train()


def _meta(tensor: Tensor) -> Tensor:
    dtype = torch.get_default_dtype() if tensor.is_floating_point() else tensor.dtype
    return torch.empty_like(tensor, device="meta", dtype=dtype)


def trace(
    module: nn.Module,
    input_shape: Shape,
    name: str,
    loss: Literal["cross_entropy", "mse"],
    auxiliary_weight: float = 0.0,
    built_by: str = "",
) -> ModelSpec:
    """The ModelSpec of `trace_nodes`."""
    return trace_nodes(module, input_shape, name, loss, auxiliary_weight, built_by)[0]


def trace_nodes(
    module: nn.Module,
    input_shape: Shape,
    name: str,
    loss: Literal["cross_entropy", "mse"],
    auxiliary_weight: float = 0.0,
    built_by: str = "",
) -> tuple[ModelSpec, dict[str, str]]:
    """Trace a PyTorch module into a ModelSpec, and map the graph's nodes to its layers.

    Only shapes are computed; `module` is left as it was. Layers are in execution order. The last one,
    "loss", has output shape () and reads the model's output, or the pair (main, auxiliary).

    Parameters
    ----------
    module
        Traced by torch.fx.
    input_shape
        Of one sample, without the batch dimension.
    name
        Name of the ModelSpec.
    loss
        The loss on the output.
    auxiliary_weight
        Weight of the auxiliary output's loss; 0 if the model has none.
    built_by
        MODULE:FUNCTION of the user's code that builds the module.

    Returns
    -------
    ModelSpec
        The layers.
    dict
        Node of torch.fx's graph -> the layer whose output it is. "input" is the model's input; an
        identity has the layer before it.

    Raises
    ------
    InputError
        calib has no layer for an operation; the message gives the node, its module and its line.
    """
    root = type(module).__name__
    try:
        meta = _meta_copy(module)
        graph = traced(meta)
    except (Exception, SystemExit) as error:
        place = at(failed_at(error))
        message = f"cannot trace the model {name} ({root}) with torch.fx{place}: {line_of(error)}"
        raise InputError(message) from None
    if sum(node.op == "placeholder" for node in graph.graph.nodes) != 1:
        raise InputError(f"cannot trace the model {name} ({root}): it must have exactly one input")
    recorder = _Recorder(graph, root, n_outputs=2 if auxiliary_weight else 1)
    dtype = _input_dtype(graph, name, root)
    try:
        sample = torch.empty((BATCH, *input_shape), dtype=dtype, device="meta")
    except RuntimeError as error:
        raise InputError(f"an input of {input_shape} is not a tensor: {line_of(error)}") from None
    with torch.no_grad():
        recorder.run(sample)
    _require_every_parameter(recorder, module, meta, name)
    weighted = [layer.shape for layer in recorder.layers if layer.shape.kind in ("conv", "linear")]
    if not weighted:
        raise InputError(f"the model {name} ({root}) has no convolution and no linear layer")
    last, output = weighted[-1], recorder.shape_of[recorder.outputs[0]]
    attributes: Attributes = {"auxiliary_weight": auxiliary_weight} if auxiliary_weight else {}
    if loss == "cross_entropy" and last.kind == "linear" and len(output) > 1:
        attributes["classes_last"] = True  # tokens x vocabulary, as of every language model
    recorder.append(LOSS, loss, recorder.outputs, (), attributes=attributes)
    spec = ModelSpec(
        name=name,
        input_shape=input_shape,
        classes=last.parameter_shapes[0][0],
        layers=tuple(recorder.layers),
        built_by=built_by,
    )
    return spec, {node.name: layer for node, layer in recorder.source.items()}


def _require_every_parameter(
    recorder: _Recorder, module: nn.Module, meta: nn.Module, name: str
) -> None:
    """Raise InputError unless the layers together hold all parameters of `module`, all trained."""
    if frozen := [key for key, p in meta.named_parameters() if not p.requires_grad]:
        raise InputError(
            f"{name} ({recorder.root}) does not train {', '.join(frozen[:3])} (requires_grad is "
            "False), and calib's layers train all their weights"
        )
    unused = [key for key, p in meta.named_parameters() if id(p) not in recorder.owner_of]
    expected = sum(parameter.numel() for parameter in module.parameters())
    found = sum(layer.shape.parameter_items for layer in recorder.layers)
    if unused or found != expected:
        what = f"no layer that runs uses {', '.join(unused)}" if unused else "some are not used"
        raise InputError(
            f"{found} of {expected} parameters of {name} ({recorder.root}) are traced: {what}"
        )
