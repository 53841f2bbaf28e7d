"""Whether the layers of a ModelSpec are a model: every ModelSpec is checked, made or read.

Raises InputError with one line that names the layer and says what is wrong: a kind that calib does
not know, a name twice, an input that does not exist or comes later (so no order: a cycle), a layer
that the input does not reach or that does not reach the loss, sizes of 0, shapes that do not fit
along an edge or inside a layer, no loss at the end. Everything behind may rely on all of that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, get_args

from foundation.errors import InputError
from foundation.layers import LayerKind, LayerShape, Shape

if TYPE_CHECKING:
    from oracle.model import Layer

INPUT = "input"
LOSSES = ("cross_entropy", "mse")
KINDS = frozenset(get_args(LayerKind))
POOLS = ("max_pool", "avg_pool")
# what each kind has besides its shapes
ATTRIBUTES: dict[str, tuple[str, ...]] = {
    "conv": ("kernel", "stride", "padding", "groups"),
    "max_pool": ("kernel", "stride", "padding", "ceil_mode"),
    "avg_pool": ("kernel", "stride", "padding", "ceil_mode"),
    "dropout": ("probability",),
    "layer_norm": ("normalized_shape",),
}


def check_kinds(content: Any) -> None:
    """Raise InputError for a layer of an unknown kind in the content of a model.json.

    Before the record is read: a message of pydantic would give the layer's number and all kinds.
    """
    layers = content.get("layers") if isinstance(content, dict) else None
    for number, layer in enumerate(layers if isinstance(layers, list | tuple) else (), 1):
        shape = layer.get("shape") if isinstance(layer, dict) else None
        kind = shape.get("kind") if isinstance(shape, dict) else None
        if isinstance(kind, str) and kind not in KINDS:
            name = layer.get("name", f"number {number}")
            raise InputError(
                f"the layer {name!r} is of the unknown kind {kind!r}; calib has "
                f"{', '.join(sorted(KINDS))}"
            )


def check_graph(input_shape: Shape, layers: Sequence[Layer]) -> None:
    """Raise InputError unless `layers`, in the order in which they run, are a model with a loss."""
    if not input_shape or min(input_shape) < 1:
        raise InputError(f"the model's input is {_text(input_shape)}: a size must be at least 1")
    outputs: dict[str, Shape] = {INPUT: input_shape}
    possible: set[object] = set()  # a deep model has few distinct layers
    for layer in layers:
        _check_inputs(layer, outputs, layers)
        shape = layer.shape
        same = (shape.kind, shape.input_shapes, shape.output_shape, shape.parameter_shapes,
                tuple(shape.attributes.items()))  # fmt: skip
        why = "" if same in possible else why_impossible(shape)
        possible.add(same)
        if why:
            raise InputError(f"the layer {layer.name!r} ({shape.kind}) is impossible: {why}")
        outputs[layer.name] = shape.output_shape
    _check_loss(layers)


def _check_inputs(layer: Layer, outputs: dict[str, Shape], layers: Sequence[Layer]) -> None:
    """Name and edges of a layer, where `outputs` are the shapes of all that run before it."""
    if layer.name in outputs:
        what = "the name of the model's input" if layer.name == INPUT else "there twice"
        raise InputError(f"the layer name {layer.name!r} is {what}")
    if not layer.inputs:
        raise InputError(f"the layer {layer.name!r} reads nothing: the input does not reach it")
    for source in layer.inputs:
        if source in outputs:
            continue
        if any(source == later.name for later in layers):
            raise InputError(
                f"the layer {layer.name!r} reads {source!r}, which runs after it: the graph has a "
                "cycle, or its layers are not in the order in which they run"
            )
        raise InputError(f"the layer {layer.name!r} reads {source!r}, and no layer has that name")
    if len(layer.inputs) != len(layer.shape.input_shapes):
        raise InputError(
            f"the layer {layer.name!r} reads {len(layer.inputs)} layer(s) but has "
            f"{len(layer.shape.input_shapes)} input shape(s)"
        )
    for source, shape in zip(layer.inputs, layer.shape.input_shapes, strict=True):
        if outputs[source] != shape:
            raise InputError(
                f"the layer {layer.name!r} reads {_text(shape)} from {source!r}, which puts out "
                f"{_text(outputs[source])}"
            )


def _check_loss(layers: Sequence[Layer]) -> None:
    """The last layer is the only loss, and all others reach it."""
    last = layers[-1]
    if last.shape.kind not in LOSSES:
        raise InputError(
            f"the last layer, {last.name!r}, is of kind {last.shape.kind} and no loss "
            f"({' or '.join(LOSSES)})"
        )
    reached = {last.name}
    for layer in reversed(layers):
        if layer.name not in reached:
            raise InputError(f"the layer {layer.name!r} never reaches the loss, {last.name!r}")
        if layer.shape.kind in LOSSES and layer is not last:
            raise InputError(f"the layer {layer.name!r} is a loss but not the last layer")
        reached.update(layer.inputs)


def why_impossible(shape: LayerShape) -> str:
    """Why no layer has this shape; nothing where one may have."""
    for what, sizes in _sizes(shape):
        if sizes and min(sizes) < 1:
            return f"its {what} is {_text(sizes)}, and a size must be at least 1"
    missing = [name for name in ATTRIBUTES.get(shape.kind, ()) if name not in shape.attributes]
    if missing:
        return f"it has no attribute {missing[0]!r}"
    if shape.kind not in LOSSES and not (shape.output_shape and all(shape.input_shapes)):
        return "a shape without a dimension"
    check = _CHECKS.get(shape.kind)
    return check(shape) if check else ""


def _sizes(shape: LayerShape) -> list[tuple[str, Shape]]:
    found = [("input", size) for size in shape.input_shapes]
    found.append(("output", shape.output_shape))
    found += [("parameter", size) for size in shape.parameter_shapes]
    for name in ("kernel", "stride", "groups"):
        value = shape.attributes.get(name)
        if value is not None:
            found.append((name, value if isinstance(value, tuple) else (int(value),)))
    return found


def _pointwise(shape: LayerShape) -> str:
    wrong = [x for x in shape.input_shapes if x != shape.output_shape]
    return _unlike(shape, shape.input_shapes[0]) if wrong else ""


def _unlike(shape: LayerShape, expected: Shape) -> str:
    """A complaint about an output that is not `expected`."""
    if shape.output_shape == expected:
        return ""
    read = " and ".join(map(_text, shape.input_shapes))
    return f"it reads {read} and puts out {_text(shape.output_shape)}, not {_text(expected)}"


def _concat(shape: LayerShape) -> str:
    first = shape.input_shapes[0]
    return _unlike(shape, (sum(x[0] for x in shape.input_shapes), *first[1:])) or (
        "its inputs have unlike sizes"
        if any(x[1:] != first[1:] for x in shape.input_shapes)
        else ""
    )


def _flatten(shape: LayerShape) -> str:
    return _unlike(shape, (shape.input_items,))


def _loss(shape: LayerShape) -> str:
    count = 2 if "auxiliary_weight" in shape.attributes else 1
    if len(shape.input_shapes) != count:
        return f"a loss reads one output (or two, with auxiliary_weight), not {len(shape.input_shapes)}"
    return _unlike(shape, ())


def _linear(shape: LayerShape) -> str:
    whole = shape.input_shapes[0]
    weight = shape.parameter_shapes[0] if shape.parameter_shapes else ()
    if weight != (shape.output_shape[-1], whole[-1]):
        return f"its weight is {_text(weight)}, not {_text((shape.output_shape[-1], whole[-1]))}"
    return _unlike(shape, (*whole[:-1], weight[0]))


def _window(shape: LayerShape) -> str:
    """Convolutions and poolings: the output that kernel, stride and padding give."""
    whole, attributes = shape.input_shapes[0], shape.attributes
    kernel, stride, padding = (attributes[name] for name in ("kernel", "stride", "padding"))
    if not (isinstance(kernel, tuple) and isinstance(stride, tuple) and isinstance(padding, tuple)):
        return "kernel, stride and padding must have one number for each spatial dimension"
    if not len(kernel) == len(stride) == len(padding) == len(whole) - 1:
        return f"an image of {len(whole) - 1} dimensions and a kernel of {len(kernel)}"
    if min(padding, default=0) < 0:
        return f"its padding is {_text(padding)}"
    channels = shape.output_shape[0] if shape.kind == "conv" else whole[0]
    windows = zip(whole[1:], kernel, stride, padding, strict=True)
    ceil = bool(attributes.get("ceil_mode", False))
    return _unlike(shape, (channels, *(_outputs(*along, ceil) for along in windows)))


def _outputs(n: int, kernel: int, stride: int, padding: int, ceil: bool) -> int:
    """Windows along a dimension; rounded up, unless the last would begin beyond the image (torch)."""
    span = n + 2 * padding - kernel
    if not ceil:
        return span // stride + 1
    windows = -(-span // stride) + 1
    return windows - ((windows - 1) * stride >= n + padding)


def _convolution(shape: LayerShape) -> str:
    groups = int(math.prod(_as_tuple(shape.attributes["groups"])))
    weight = shape.parameter_shapes[0] if shape.parameter_shapes else ()
    kernel = _as_tuple(shape.attributes["kernel"])
    expected = (shape.output_shape[0], shape.input_shapes[0][0] // groups, *kernel)
    if weight != expected:
        return f"its weight is {_text(weight)}, not {_text(expected)}"
    return _window(shape)


def _as_tuple(value: Any) -> Shape:
    return value if isinstance(value, tuple) else (int(value),)


def _text(shape: Shape) -> str:
    return " x ".join(map(str, shape)) or "one number"


_CHECKS: dict[str, Callable[[LayerShape], str]] = {
    "conv": _convolution,
    "linear": _linear,
    "flatten": _flatten,
    "concat": _concat,
    **dict.fromkeys(POOLS, _window),
    **dict.fromkeys(LOSSES, _loss),
    **dict.fromkeys(("relu", "batch_norm", "layer_norm", "softmax", "dropout", "add"), _pointwise),
}
