"""Check one layer: its inputs, attributes, parameters and output.

The checks return half a sentence; oracle/model/graph.py puts the layer's name in front. The rules are
those of torch's modules, as microbench/layers/build.py makes them. Sizes are bounded so that their
products fit into floats.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from calib.foundation.layers import ITEM_TYPES, LOSSES, Attribute, LayerShape, Shape
from calib.foundation.operators import Operator, terms_in

POOLS = ("max_pool", "avg_pool")
MOST = 2**40  # along one dimension: beyond any machine's memory
MOST_ITEMS = 2**63  # of one tensor: beyond any address
MOST_DIMENSIONS = 3  # of an image: torch has no larger convolutions and poolings
PER_DIMENSION = ("kernel", "stride", "padding")
# the attributes of each kind; it has no others
ATTRIBUTES: dict[str, tuple[str, ...]] = {
    "conv": (*PER_DIMENSION, "groups"),
    "max_pool": (*PER_DIMENSION, "ceil_mode"),
    "avg_pool": (*PER_DIMENSION, "ceil_mode"),
    "dropout": ("probability",),
    "layer_norm": ("normalized_shape",),
}
INPUTS = {"add": 2}  # tensors that a kind reads; a concat any number, all others one


def why_impossible(shape: LayerShape) -> str:
    """Why no layer can have this shape; "" if one can."""
    if (shape.operator is None) != (shape.kind != "operator"):
        return "a layer of the kind operator calls an ATen operator, and no other does"
    if shape.operator is not None:
        return (
            _why_not_sizes(shape)
            or _why_not_counts(shape, shape.operator)
            or _why_not_operands(shape, shape.operator)
            or _why_not_arguments(shape, shape.operator)
        )
    return (
        _why_not_sizes(shape)
        or _why_not_inputs(shape)
        or _why_not_attributes(shape)
        or _CHECKS[shape.kind](shape)
        or _why_not_parameters(shape)
    )


def size_text(shape: Shape) -> str:
    """A size as 3 x 224 x 224; of a huge number only how many digits it has."""
    words = [str(n) if abs(n) <= MOST_ITEMS else f"({len(str(abs(n)))} digits)" for n in shape]
    return " x ".join(words) or "one number"


def why_no_tensor(size: Shape) -> str:
    """Why no tensor can have this size; "" if one can."""
    if size and min(size) < 1:
        return "a size must be at least 1"
    if max(size, default=1) > MOST:
        return f"a size may be at most 2^{MOST.bit_length() - 1}"
    if math.prod(size) > MOST_ITEMS:
        return f"a tensor may have at most 2^{MOST_ITEMS.bit_length() - 1} items"
    return ""


def _why_not_sizes(shape: LayerShape) -> str:
    """Sizes of tensors, kernels, strides and groups: at least 1 and not too large."""
    found = [("input", size) for size in shape.input_shapes]
    found.append(("output", shape.output_shape))
    found += [("output", size) for size in shape.more_outputs]
    if shape.operator is not None:
        # a cache of keys begins empty, as does what rotates none of a head's channels
        found += [("constant", size) for size, _ in shape.operator.constants]
        found = [(what, tuple(n or 1 for n in size)) for what, size in found]
    found += [("parameter", size) for size in shape.parameter_shapes]
    for name in ("kernel", "stride", "groups"):
        value = shape.attributes.get(name)
        if isinstance(value, tuple):
            found.append((name, value))
        elif isinstance(value, int):
            found.append((name, (value,)))
    for what, size in found:
        why = why_no_tensor(size)
        if why:
            return f"its {what} is {size_text(size)}, and {why}"
    return ""


def _why_not_counts(shape: LayerShape, of: Operator) -> str:
    """It says of each tensor what it says of one, and names inputs that it has."""
    if shape.attributes:
        return "an operator has arguments and no attributes"
    inputs = len(shape.input_shapes)
    tensors = inputs + 1 + len(of.outputs)
    for words, found, wanted in (
        ("axes", len(of.axes), tensors),
        ("item types", len(of.types), tensors),
        ("orders", len(of.orders), inputs),
    ):
        if found not in (0, wanted):
            return f"its {words} are {found}, and it has {wanted} such tensors"
    named = (*of.fixed, *of.saved.inputs, *of.saved.passed)
    wrong = [number for number in named if not 0 <= number < inputs]
    return f"it has no input {wrong[0]}" if wrong else ""


def _why_not_operands(shape: LayerShape, of: Operator) -> str:
    """What it says of its tensors fits them."""
    shapes = (*shape.input_shapes, shape.output_shape, *of.outputs)
    for size, axis in zip(shapes, of.axes, strict=False):
        if axis is not None and not -1 <= axis < len(size):
            return f"the batch is at dimension {axis} of {size_text(size)}"
    for number, order in enumerate(of.orders):
        rank = len(shapes[number]) + (of.axis(number) is None)
        if order and sorted(order) != [*range(rank)]:
            return f"its order {order} is not one of {rank} dimensions"
    for item in (*of.types, *(item for _, item in of.constants)):
        if item and item not in ITEM_TYPES:
            return f"the unknown item type {item!r}"
    return ""


def _why_not_arguments(shape: LayerShape, of: Operator) -> str:
    """Its arguments name tensors that it has, and known item types."""
    known = {
        "input": len(shape.input_shapes),
        "parameter": len(shape.parameter_shapes),
        "constant": len(of.constants),
    }
    for what, at in terms_in([*of.positional, *of.named.values()]):
        if what in known and not 0 <= at < known[what]:
            return f"its arguments name {what} {at}, and it has {known[what]}"
        if what == "batch" and not 1 <= at <= MOST:
            return f"its arguments have {at} times the batch"
        if what == "dtype" and at and at not in ITEM_TYPES:
            return f"the unknown item type {at!r}"
    return ""


def _why_not_inputs(shape: LayerShape) -> str:
    """The number of input tensors, and that each has a dimension."""
    count = len(shape.input_shapes)
    if shape.kind in LOSSES:
        if count != 1 + ("auxiliary_weight" in shape.attributes):
            return f"a loss reads one output (or two, with auxiliary_weight), not {count}"
        return ""
    wanted = INPUTS.get(shape.kind, 1)
    if count != wanted and (shape.kind != "concat" or not count):
        return f"its number of inputs is {count}, not {wanted}"
    return "" if shape.output_shape and all(shape.input_shapes) else "a shape without a dimension"


def _why_not_attributes(shape: LayerShape) -> str:
    """Attributes: none missing, none unknown, and each of the right type and range."""
    names = ATTRIBUTES.get(shape.kind, ())
    missing = [name for name in names if name not in shape.attributes]
    if missing:
        return f"it has no attribute {missing[0]!r}"
    if shape.kind in LOSSES:
        names = ("auxiliary_weight", "classes_last")
    for name, value in shape.attributes.items():
        if name not in names:
            return f"its kind has no attribute {name!r}"
        if name not in PER_DIMENSION and not _TYPES[name][0](value):
            return f"its {name} is not {_TYPES[name][1]}"
    return ""


def _is_number(value: Attribute, low: float, high: float) -> bool:
    """Whether low <= value <= high; works for NaN and for integers beyond any float."""
    return not isinstance(value, bool | tuple) and low <= value <= high


_TYPES: dict[str, tuple[Callable[[Attribute], bool], str]] = {
    "groups": (lambda x: type(x) is int, "a whole number"),
    "ceil_mode": (lambda x: isinstance(x, bool), "true or false"),
    "probability": (lambda x: _is_number(x, 0.0, 1.0), "a number from 0 to 1"),
    "normalized_shape": (lambda x: isinstance(x, tuple) and len(x) > 0, "a list of sizes"),
    "classes_last": (lambda x: x is True, "true"),
    "auxiliary_weight": (lambda x: _is_number(x, -1e6, 1e6), "a number from -10^6 to 10^6"),
}


def _why_not_parameters(shape: LayerShape) -> str:
    """Weight and bias: the sizes that the kind requires."""
    found, whole, made = shape.parameter_shapes, shape.input_shapes[0], shape.output_shape
    expected: Sequence[Shape] = ()
    needed = 0
    if shape.kind == "conv":
        groups, kernel = shape.attributes["groups"], shape.attributes["kernel"]
        assert isinstance(groups, int) and isinstance(kernel, tuple)
        expected, needed = ((made[0], whole[0] // groups, *kernel), made[:1]), 1
    elif shape.kind == "linear":
        expected, needed = ((made[-1], whole[-1]), made[-1:]), 1
    elif shape.kind == "embedding":
        expected, needed = ((found[0][0] if found and found[0] else 1, made[-1]),), 1
    elif shape.kind == "batch_norm":
        expected, needed = (whole[:1], whole[:1]), 2 if found else 0  # none: affine=False
    elif shape.kind == "layer_norm":
        over = shape.attributes["normalized_shape"]
        assert isinstance(over, tuple)
        expected = (over, over)
    for what, size, wanted in zip(("weight", "bias"), found, expected, strict=False):
        if size != wanted:
            return f"its {what} is {size_text(size)}, not {size_text(wanted)}"
    if len(found) < needed:
        return f"its {('weight', 'bias')[len(found)]} is missing"
    if len(found) > len(expected):
        return f"it has {len(found)} parameter tensors, and its kind at most {len(expected)}"
    return ""


def _unlike(shape: LayerShape, expected: Shape) -> str:
    """What to say if the output is not `expected`."""
    if shape.output_shape == expected:
        return ""
    read = " and ".join(map(size_text, shape.input_shapes))
    return (
        f"it reads {read} and puts out {size_text(shape.output_shape)}, not {size_text(expected)}"
    )


def _pointwise(shape: LayerShape) -> str:
    wrong = [x for x in shape.input_shapes if x != shape.output_shape]
    return _unlike(shape, wrong[0]) if wrong else ""


def _layer_norm(shape: LayerShape) -> str:
    over, whole = shape.attributes["normalized_shape"], shape.input_shapes[0]
    assert isinstance(over, tuple)
    if whole[-len(over) :] != over:
        return f"it normalizes over {size_text(over)}, and reads {size_text(whole)}"
    return _pointwise(shape)


def _concat(shape: LayerShape) -> str:
    first = shape.input_shapes[0]
    if any(x[1:] != first[1:] for x in shape.input_shapes):
        return "its inputs differ in size"
    return _unlike(shape, (sum(x[0] for x in shape.input_shapes), *first[1:]))


def _flatten(shape: LayerShape) -> str:
    return _unlike(shape, (shape.input_items,))


def _loss(shape: LayerShape) -> str:
    if "classes_last" in shape.attributes and (shape.kind == "mse" or not shape.places):
        return "classes_last is of a cross_entropy whose input has several dimensions"
    return _unlike(shape, ())


def _linear(shape: LayerShape) -> str:
    return _unlike(shape, (*shape.input_shapes[0][:-1], shape.output_shape[-1]))


def _embedding(shape: LayerShape) -> str:
    return _unlike(shape, (*shape.input_shapes[0], shape.output_shape[-1]))


def _adaptive(shape: LayerShape) -> str:
    """Channels stay; the image takes the requested size, which may be larger."""
    whole, made = shape.input_shapes[0], shape.output_shape
    if len(whole) - 1 not in range(1, MOST_DIMENSIONS + 1):
        return f"an image of {len(whole) - 1} dimensions"
    return _unlike(shape, (whole[0], *made[1:])) if len(made) == len(whole) else "another rank"


def _window(shape: LayerShape) -> str:
    """Convolutions and poolings: the output follows from kernel, stride and padding."""
    whole, attributes = shape.input_shapes[0], shape.attributes
    kernel, stride, padding = (attributes[name] for name in PER_DIMENSION)
    if not (isinstance(kernel, tuple) and isinstance(stride, tuple) and isinstance(padding, tuple)):
        return "kernel, stride and padding must have one number for each spatial dimension"
    for what, sizes in (("a kernel", kernel), ("a stride", stride), ("a padding", padding)):
        if len(sizes) != len(whole) - 1:
            return f"an image of {len(whole) - 1} dimensions and {what} of {len(sizes)}"
    if len(kernel) not in range(1, MOST_DIMENSIONS + 1):
        return f"an image of {len(kernel)} dimensions"
    if min(padding) < 0 or max(padding) > MOST:
        return f"its padding is {size_text(padding)}"
    if shape.kind in POOLS and any(2 * n > size for n, size in zip(padding, kernel, strict=True)):
        return f"its padding is {size_text(padding)}, more than half the kernel"
    channels = shape.output_shape[0] if shape.kind == "conv" else whole[0]
    windows = zip(whole[1:], kernel, stride, padding, strict=True)
    ceil = bool(attributes.get("ceil_mode", False))
    return _unlike(shape, (channels, *(_outputs(*along, ceil) for along in windows)))


def _outputs(n: int, kernel: int, stride: int, padding: int, ceil: bool) -> int:
    """Windows along a dimension; with `ceil` rounded up unless the last starts past the image."""
    span = n + 2 * padding - kernel
    if not ceil:
        return span // stride + 1
    windows = -(-span // stride) + 1
    return windows - ((windows - 1) * stride >= n + padding)


def _convolution(shape: LayerShape) -> str:
    groups, channels = shape.attributes["groups"], shape.input_shapes[0][0]
    filters = shape.output_shape[0]
    assert isinstance(groups, int)
    if channels % groups or filters % groups:
        return f"its {groups} groups do not divide {channels} channels and {filters} filters"
    return _window(shape)


_CHECKS: dict[str, Callable[[LayerShape], str]] = {
    "conv": _convolution,
    "linear": _linear,
    "embedding": _embedding,
    "layer_norm": _layer_norm,
    "flatten": _flatten,
    "concat": _concat,
    "adaptive_avg_pool": _adaptive,
    **dict.fromkeys(POOLS, _window),
    **dict.fromkeys(LOSSES, _loss),
    **dict.fromkeys(("relu", "batch_norm", "softmax", "dropout", "add"), _pointwise),
}
