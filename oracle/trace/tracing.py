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
from typing import Any

import torch
from torch import Tensor, fx, nn

from calib.foundation.errors import InputError
from calib.foundation.layers import LayerKind, Shape
from calib.foundation.operators import PRIME
from calib.foundation.own import Loss
from calib.oracle.model.graph import INPUT
from calib.oracle.model.spec import ModelSpec
from calib.oracle.trace.checkpoints import region_of
from calib.oracle.trace.exported import ExportedLayers, exported, made_tensors
from calib.oracle.trace.layer_list import LOSS, LayerList
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

DATA = "data-dependent"  # in what torch.export says of a branch on the items of a tensor
BATCH = 2  # samples of the meta tensors; batch norm in train mode refuses 1


class NotByFx(InputError):
    """torch.fx cannot follow the module, or calib has no kind of layer for what it calls.

    `unknown`: the latter; torch.export may do both.
    """

    unknown = False


class Advice(InputError):
    """What a user must change in the model."""


class UnknownLayer(NotByFx):
    """calib has no kind of layer for it."""

    unknown = True


class _Recorder(fx.Interpreter):
    """Runs a graph on meta tensors and records a Layer for each node."""

    def __init__(self, graph: fx.GraphModule, root: str, layers: LayerList) -> None:
        super().__init__(graph)
        self.extra_traceback = False  # fx would append lines to the error
        self.root = root
        self.layers = layers
        self.source: dict[fx.Node, str] = {}  # node -> the layer whose output it is
        self.outputs: tuple[str, ...] = ()  # layers whose outputs the model returns

    def run_node(self, n: fx.Node) -> Any:
        """Run and record one node. Raises InputError with the node and its module."""
        try:
            self._refuse_unknown(n)
        except InputError as error:
            raise UnknownLayer(self._words(n, error)) from None
        try:
            result = super().run_node(n)
        except (Exception, SystemExit) as error:  # the module itself fails, or wants indices
            kind = UnknownLayer if "indices" in line_of(error) else InputError
            raise kind(self._words(n, error)) from None
        try:
            self._record(n, result)
        except InputError as error:
            raise UnknownLayer(self._words(n, error)) from None
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

    def _words(self, node: fx.Node, error: BaseException) -> str:
        """`error` in one line with the node and the module that calls it."""
        called = node.target if isinstance(node.target, str) else node.target.__name__
        where = self._where(node)
        place = at(node.meta.get(PLACE))
        return (
            f"cannot trace {node.name!r} ({node.op} {called}) in {where}{place}: {line_of(error)}"
        )

    def _where(self, node: fx.Node) -> str:
        """Path and class of the node's innermost module."""
        path, kind = _innermost(node)
        return f"{path} ({kind})" if path else self.root

    def _record(self, node: fx.Node, result: Any) -> None:
        self.layers.region = region_of(node)
        if node.op == "output":
            returned = node.args[0]
            several = returned if isinstance(returned, tuple) else (returned,)
            nodes = [x for x in several if isinstance(x, fx.Node)]
            if (
                len(nodes) != self.layers.n_outputs
                or nodes != list(several)
                or any(map(is_size, nodes))
            ):
                wanted = (
                    "one tensor" if self.layers.n_outputs == 1 else "the pair (main, auxiliary)"
                )
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
        name = self.layers.unique(str(node.target))
        for parameter in module.parameters():
            owner = self.layers.owner_of.setdefault(id(parameter), name)
            if owner != name:
                raise InputError(f"sharing weights with the layer {owner!r} is not supported")
        parameters = tuple(tuple(parameter.shape) for parameter in module.parameters())
        if kind == "flatten" and shape != (math.prod(self.layers.shape_of[source]),):
            raise InputError("only flattening everything but the batch is supported")
        self.source[node] = name
        self.layers.append(name, kind, (source,), shape, parameters, attributes)

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
            len(inputs) != 2 or any(self.layers.shape_of[source] != shape for source in inputs)
        ):
            raise InputError("only the sum of two tensors of one shape is supported")
        path, _ = _innermost(node)
        self.source[node] = name = self.layers.unique(f"{path}.{kind}" if path else kind)
        args, kwargs = self.fetch_args_kwargs_from_env(node)
        attributes = function_attributes(node.target, kind, args, kwargs)
        if kind == "flatten" and shape != (math.prod(self.layers.shape_of[inputs[0]]),):
            raise InputError("only flattening everything but the batch is supported")
        self.layers.append(name, kind, inputs, shape, attributes=attributes)


def _input_dtype(graph: fx.GraphModule, name: str, root: str) -> torch.dtype:
    """int64 if embeddings look up the model's input, else the default float.

    Raises UnknownLayer if the input is both looked up and used in another way, as for its length.
    """
    (placeholder,) = (node for node in graph.graph.nodes if node.op == "placeholder")
    looked_up = {
        node.op == "call_module" and type(graph.get_submodule(str(node.target))) is nn.Embedding
        for node in placeholder.users
    }
    if looked_up == {True, False}:
        raise UnknownLayer(
            f"cannot trace the model {name} ({root}): its input is looked up by an embedding and "
            "used in another way, and cannot be integers and numbers at once"
        )
    return torch.int64 if looked_up == {True} else torch.get_default_dtype()


def _innermost(node: fx.Node) -> tuple[str, str]:
    """Path and class of the innermost module whose forward made the node; "" for the model."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    path, kind = stack[-1] if stack else ("", "")
    return path, getattr(kind, "__name__", str(kind))


def _meta_copy(module: nn.Module, about: str, in_own_types: bool = False) -> nn.Module:
    """A copy of `module` in train mode with its tensors on the meta device; ties stay ties.

    Floats take torch's default item type, as shapes do not depend on it, or keep their own.
    """
    memo: dict[int, Any] = {}  # deepcopy takes these as copied, so it copies no weight
    for parameter in module.parameters():
        memo[id(parameter)] = nn.Parameter(_meta(parameter, in_own_types), parameter.requires_grad)
    for buffer in module.buffers():
        memo[id(buffer)] = _meta(buffer, in_own_types)
    for tensor in made_tensors(module):
        memo[id(tensor)] = _meta(tensor, in_own_types)
    try:
        return copy.deepcopy(module, memo).train()
    except Exception as error:
        raise InputError(f"{about} cannot be copied: {line_of(error)}") from error


def _meta(tensor: Tensor, in_own_type: bool) -> Tensor:
    keeps = in_own_type or not tensor.is_floating_point()
    dtype = tensor.dtype if keeps else torch.get_default_dtype()
    return torch.empty_like(tensor, device="meta", dtype=dtype)


def trace(
    module: nn.Module,
    input_shape: Shape,
    name: str,
    loss: Loss,
    auxiliary_weight: float = 0.0,
    built_by: str = "",
) -> ModelSpec:
    """Trace a PyTorch module into a ModelSpec.

    Only shapes are computed; `module` is left as it was. Layers are in execution order. The last one,
    "loss", has output shape () and reads the model's output, or the pair (main, auxiliary).

    Parameters
    ----------
    module
        Traced by torch.fx where calib knows each of its modules and functions, else by torch.export.
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

    Raises
    ------
    InputError
        Neither can follow the module; the message gives the operator or the line.
    """
    if is_compiled(module):
        raise NotByFx(
            f"the model {name} is compiled (torch.compile), and runs no operators one by one"
        )
    try:
        found = trace_nodes(module, input_shape, name, loss, auxiliary_weight)[0]
    except NotByFx as refused:
        try:
            found = trace_operators(module, input_shape, name, loss, auxiliary_weight)[0]
        except InputError as error:
            told = refused.unknown or isinstance(error, Advice)
            raise (error if told else NotByFx(str(error))) from None
    return found.model_copy(update={"built_by": built_by})


def is_compiled(module: nn.Module) -> bool:
    """Whether torch.compile or Module.compile was called on it, or on a part of it."""
    return any(
        type(part).__name__ == "OptimizedModule" or part._compiled_call_impl is not None
        for part in module.modules()
    )


def trace_operators(
    module: nn.Module, input_shape: Shape, name: str, loss: Loss, auxiliary_weight: float = 0.0
) -> tuple[ModelSpec, ExportedLayers]:
    """Trace a module by torch.export (see `trace`), and keep its graph. Raises InputError."""
    about = f"the model {name} ({type(module).__name__})"
    _require_size(input_shape)
    meta = _meta_copy(module, about)
    program, layers = (
        _exported(meta, input_shape, about),
        _list(meta, input_shape, auxiliary_weight),
    )
    graph = ExportedLayers(program, layers)
    try:
        outputs = graph.record()
    except InputError as error:
        raise InputError(f"{about}: {error}") from None
    layers.drop_unused(outputs)
    layers.require_every_parameter(f"{name} ({type(module).__name__})")
    spec = _spec(layers, outputs, name, input_shape, loss, auxiliary_weight, about)
    return spec, graph


def export_in_own_types(module: nn.Module, input_shape: Shape) -> fx.GraphModule | None:
    """The graph of torch.export on the item types that the module has; None where there is none.

    A ModelSpec is of torch's default type, in which `x.float()` and `x.to(y.dtype)` are the same.
    """
    try:
        meta = _meta_copy(module, "the model", in_own_types=True)
        found: fx.GraphModule = _exported(meta, input_shape, "the model").graph_module
    except InputError:
        return None
    return found


def _exported(meta: nn.Module, input_shape: Shape, about: str) -> Any:
    """The exported program, for numbers or, where these cannot be looked up, for indices."""
    errors: list[BaseException] = []
    for dtype in (next(meta.parameters()).dtype, torch.int64):
        sample = torch.empty((PRIME, *input_shape), dtype=dtype, device="meta")
        try:
            return exported(meta, [sample])
        except InputError as error:
            raise Advice(f"{about}: {error}") from None
        except (Exception, SystemExit) as error:
            errors.append(error)
    first, second = errors
    told = second if "indices" in line_of(first) or "Long" in str(first) else first
    why = "its control flow depends on data" if DATA in str(told) else line_of(told)
    raise InputError(f"cannot trace {about} with torch.export{at(failed_at(told))}: {why}")


def _spec(
    layers: LayerList,
    outputs: tuple[str, ...],
    name: str,
    input_shape: Shape,
    loss: Loss,
    auxiliary_weight: float,
    about: str,
) -> ModelSpec:
    """The layers with the loss behind them. Raises InputError for a model without weights."""
    if not any(layer.shape.parameter_shapes for layer in layers.layers):
        raise InputError(f"{about} has no weights")
    attributes: Attributes = {"auxiliary_weight": auxiliary_weight} if auxiliary_weight else {}
    places = len(layers.shape_of[outputs[0]]) - 1
    if loss == "cross_entropy" and places and layers.ends_in_rows:
        attributes["classes_last"] = True  # tokens x vocabulary, as of every language model
    layers.region = 0
    layers.append(LOSS, loss, outputs, (), attributes=attributes)
    return ModelSpec(
        name=name, input_shape=input_shape, classes=layers.classes, layers=tuple(layers.layers)
    )


def trace_nodes(
    module: nn.Module, input_shape: Shape, name: str, loss: Loss, auxiliary_weight: float = 0.0
) -> tuple[ModelSpec, dict[str, str]]:
    """Trace a module by torch.fx, and map the graph's nodes to its layers (see `trace`).

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
    about = f"the model {name} ({root})"
    _require_size(input_shape)
    try:
        meta = _meta_copy(module, about)
        graph = traced(meta)
    except (Exception, SystemExit) as error:
        place = at(failed_at(error))
        raise NotByFx(f"cannot trace {about} with torch.fx{place}: {line_of(error)}") from None
    if sum(node.op == "placeholder" for node in graph.graph.nodes) != 1:
        raise NotByFx(f"cannot trace {about}: it must have exactly one input")
    if not all(parameter.requires_grad for parameter in meta.parameters()):
        raise NotByFx(f"cannot trace {about} with torch.fx: it has frozen weights")
    layers = _list(meta, input_shape, auxiliary_weight)
    recorder = _Recorder(graph, root, layers)
    dtype = _input_dtype(graph, name, root)
    with torch.no_grad():
        recorder.run(torch.empty((BATCH, *input_shape), dtype=dtype, device="meta"))
    layers.require_every_parameter(f"{name} ({root})")
    spec = _spec(layers, recorder.outputs, name, input_shape, loss, auxiliary_weight, about)
    return spec, {node.name: layer for node, layer in recorder.source.items()}


def _list(meta: nn.Module, input_shape: Shape, auxiliary_weight: float) -> LayerList:
    return LayerList(meta, input_shape, n_outputs=2 if auxiliary_weight else 1)


def _require_size(input_shape: Shape) -> None:
    try:
        torch.empty((BATCH, *input_shape), device="meta")
    except RuntimeError as error:
        raise InputError(f"an input of {input_shape} is not a tensor: {line_of(error)}") from None
