"""Tracing a PyTorch module into a ModelSpec: its layers with shapes, attributes and edges.

torch.export gives the graph of ATen calls (exported.py), on tensors without memory, so that CosmoFlow at
512^3 needs none. Only this folder of the oracle imports torch; a prediction from a model.json does not
need it.

A module (one ReLU for the whole model) may be used any number of times: name, name#2, name#3. Weights
that several layers share count once, at the first of them.

A model with an auxiliary head returns a pair in train mode. Its loss is still one layer: it reads both
outputs, and its attribute auxiliary_weight is the weight of the second. So the last layer is always
the loss, the loss has one cost key, and both heads reach it. PyTorch's cross_entropy wants the classes
at dimension 1; where a model's last weights are a linear layer's, they are at the last dimension
(classes_last), and the loss is over all places, as language models have it.
"""

from __future__ import annotations

import copy
import inspect
import re
from typing import Any

import torch
from torch import Tensor, fx, nn

from calib.foundation.errors import InputError
from calib.foundation.layers import Shape
from calib.foundation.operators import PRIME
from calib.foundation.own import Loss
from calib.oracle.model.spec import ModelSpec
from calib.oracle.trace.atens import Attributes
from calib.oracle.trace.exported import LEAVES, ExportedLayers, Untraceable
from calib.oracle.trace.layer_list import LOSS, LayerList
from calib.oracle.trace.lines import at, failed_at, failed_in, failure_of, line_of
from calib.oracle.trace.program import exported, first_item_type, made_tensors

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
DATA = "data-dependent"  # in what torch.export says of a branch on the items of a tensor


class NotTraced(InputError):
    """torch.export cannot follow the module, which may run all the same."""


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
        copied = copy.deepcopy(module, memo).train()
    except Exception as error:
        raise InputError(f"{about} cannot be copied: {line_of(error)}") from error
    for part in copied.modules():
        if type(part) in NORMS and part.momentum is None:
            part.momentum = 0.0  # of a count, which has no value here; no layer has it
    return copied


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
        Traced by torch.export, in train mode.
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
    NotTraced
        torch.export cannot follow the module; the message gives the module and the line.
    InputError
        The module is wrong, or is none that calib predicts; the message gives the operator and the line.
    """
    found = trace_operators(module, input_shape, name, loss, auxiliary_weight)[0]
    return found.model_copy(update={"built_by": built_by})


def compiled_parts(module: nn.Module) -> list[str]:
    """The paths of those parts on which torch.compile or Module.compile was called; "" for it all."""
    return [
        path
        for path, part in module.named_modules()
        if type(part).__name__ == "OptimizedModule" or part._compiled_call_impl is not None
    ]


def trace_operators(
    module: nn.Module, input_shape: Shape, name: str, loss: Loss, auxiliary_weight: float = 0.0
) -> tuple[ModelSpec, ExportedLayers]:
    """Trace a module (see `trace`), and keep the graph of its calls. Raises as `trace` does."""
    about = f"the model {name} ({type(module).__name__})"
    if compiled := compiled_parts(module):
        which = f"{compiled[0]} of {about}" if compiled[0] else about
        raise NotTraced(f"{which} is compiled (torch.compile), and runs no operators one by one")
    _require_size(input_shape)
    meta = _meta_copy(module, about)
    if next(meta.parameters(), None) is None:
        raise InputError(f"{about} has no weights")
    n_outputs = 2 if auxiliary_weight else 1
    layers, graph, outputs = _recorded(meta, input_shape, about, n_outputs)
    unused = layers.unused()
    without = layers.without_gradient(outputs)
    stopped = {weight: shape for weight, shape in without.items() if weight not in unused}
    if stopped:  # their layers have no backward, as frozen ones
        weights = dict(meta.named_parameters())
        for weight in stopped:
            weights[weight].requires_grad_(False)
        layers, graph, outputs = _recorded(meta, input_shape, about, n_outputs)
    spec = _spec(layers, outputs, name, input_shape, loss, auxiliary_weight)
    return spec.model_copy(update={"unused": unused, "stopped": stopped}), graph


def _recorded(
    meta: nn.Module, input_shape: Shape, about: str, n_outputs: int
) -> tuple[LayerList, ExportedLayers, tuple[str, ...]]:
    """The layers that reach the outputs, the graph of the calls, and the layers that are returned."""
    types: tuple[torch.dtype, ...] = first_item_type(meta), torch.int64
    while True:
        layers = LayerList(meta, input_shape, n_outputs)
        graph = ExportedLayers(_exported(meta, input_shape, about, types), layers)
        try:
            outputs = graph.record()
            break
        except InputError as error:
            if types[1:] and _wants_indices(error):  # which torch.export does not see of one_hot
                types = types[1:]
                continue
            kind = NotTraced if isinstance(error, Untraceable) else InputError
            raise kind(f"{about}: {error}") from None
    layers.drop_unused(outputs)
    if not all(layers.weighted[output] for output in outputs):
        raise InputError(
            f"{about}: a model must return a tensor with a gradient: a no_grad or detach is in it"
        )
    return layers, graph, outputs


def export_in_own_types(module: nn.Module, input_shape: Shape) -> fx.GraphModule | None:
    """The graph of torch.export on the item types that the module has; None where there is none.

    A ModelSpec is of torch's default type, in which `x.float()` and `x.to(y.dtype)` are the same.
    """
    try:
        meta = _meta_copy(module, "the model", in_own_types=True)
        types = first_item_type(meta), torch.int64
        found: fx.GraphModule = _exported(meta, input_shape, "the model", types).graph_module
    except InputError:
        return None
    return found


def _wants_indices(error: BaseException) -> bool:
    return "indices" in line_of(error) or "Long" in str(error)


def _exported(
    meta: nn.Module, input_shape: Shape, about: str, types: tuple[torch.dtype, ...]
) -> Any:
    """The exported program, for inputs of the first of `types` that the module takes.

    That is numbers or, where these cannot be looked up, indices.
    """
    _require_one_input(meta, about)
    errors: list[BaseException] = []
    for dtype in types:
        sample = torch.empty((PRIME, *input_shape), dtype=dtype, device="meta")
        try:
            return exported(meta, [sample])
        except InputError as error:
            raise InputError(f"{about}: {error}") from None
        except (Exception, SystemExit) as error:
            errors.append(error)
    told = errors[-1] if _wants_indices(errors[0]) else errors[0]
    why = "its control flow depends on data" if DATA in str(told) else _of_batch(failure_of(told))
    path, kind = failed_in(told, meta)
    where = f" in {path} ({kind.__name__})" if path else ""
    by_torch = kind.__module__.startswith(LEAVES)  # a layer that does not fit what it reads
    runs = not (by_torch or isinstance(told, SystemExit))
    raise (NotTraced if runs else InputError)(
        f"cannot trace {about} with torch.export{where}{at(failed_at(told))}: {why}"
    )


def _require_one_input(module: nn.Module, about: str) -> None:
    try:
        inspect.signature(module.forward).bind(None)
    except TypeError as error:
        raise InputError(f"cannot trace {about}: it must have exactly one input: {error}") from None
    except ValueError:  # torch.jit's have no signature
        pass


def _of_batch(text: str) -> str:
    """`text` with the batch of the trace in words."""

    def word(found: re.Match[str]) -> str:
        each, rest = divmod(int(found[0]), PRIME)
        return found[0] if rest or not each else "batch" if each == 1 else f"{each} x batch"

    return re.sub(r"\d+", word, text)


def _spec(
    layers: LayerList,
    outputs: tuple[str, ...],
    name: str,
    input_shape: Shape,
    loss: Loss,
    auxiliary_weight: float,
) -> ModelSpec:
    """The layers with the loss behind them."""
    attributes: Attributes = {"auxiliary_weight": auxiliary_weight} if auxiliary_weight else {}
    output = layers.shape_of[outputs[0]]
    if loss == "cross_entropy" and not output:
        raise InputError("it returns one number of each sample, which is no class: its loss is mse")
    if loss == "cross_entropy" and len(output) > 1 and layers.ends_in_rows:
        attributes["classes_last"] = True  # tokens x vocabulary, as of every language model
    layers.region = 0
    layers.append(LOSS, loss, outputs, (), attributes=attributes)
    return ModelSpec(
        name=name, input_shape=input_shape, classes=layers.classes, layers=tuple(layers.layers)
    )


def _require_size(input_shape: Shape) -> None:
    try:
        torch.empty((PRIME, *input_shape), device="meta")
    except RuntimeError as error:
        raise InputError(f"an input of {input_shape} is not a tensor: {line_of(error)}") from None
