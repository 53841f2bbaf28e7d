"""Check that the layers of a ModelSpec form a model.

An InputError names the layer and its fault: an unknown kind, a duplicate name, an input that does not
exist or comes later (a cycle), a layer that the input does not reach or that does not reach the loss,
shapes that do not match along an edge, an impossible layer (oracle/model/graph_layers.py), no loss at
the end, no weights, or a wrong needs_input_grad. The rest of the program relies on all of this.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any, get_args

from calib.foundation.errors import InputError
from calib.foundation.layers import LOSSES, LayerKind, LayerShape, Shape
from calib.oracle.model.graph_layers import size_text, why_impossible, why_no_tensor
from calib.oracle.model.layer import Layer

INPUT = "input"
KINDS = frozenset(get_args(LayerKind))


def check_kinds(content: Any) -> None:
    """Raise InputError for an unknown kind of layer in the content of a model.json.

    It runs before validation, as pydantic would give the layer's index in place of its name.
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
    """Raise InputError unless `layers`, in execution order, form a model with a loss."""
    why = why_no_tensor(input_shape) if input_shape else "a sample has at least one dimension"
    if why:
        raise InputError(f"the model's input is {size_text(input_shape)}: {why}")
    outputs: dict[str, Shape] = {INPUT: input_shape}
    owners = {owner for layer in layers for owner in layer.shared_parameters.values()}
    held: dict[str, tuple[Shape, ...]] = {}
    possible: set[int] = set()  # even a deep model has few distinct layers
    for layer in layers:
        _check_inputs(layer, outputs, layers)
        shape = layer.shape
        # reading makes equal shapes one object (oracle/model/spec.py)
        why = "" if id(shape) in possible else why_impossible(shape)
        possible.add(id(shape))
        if why:
            raise InputError(f"the layer {layer.name!r} ({shape.kind}) is impossible: {why}")
        for at, owner in layer.shared_parameters.items():
            if not 0 <= at < len(shape.parameter_shapes) or shape.parameter_shapes[at] not in (
                held.get(owner, ())
            ):
                raise InputError(
                    f"the layer {layer.name!r} shares its parameter {at} with {owner!r}: no layer "
                    "before it of that name has such a parameter"
                )
        if layer.name in owners:
            held[layer.name] = layer.own_parameters
        outputs |= layer.outputs
    _check_loss(layers)
    _check_gradients(layers)
    _check_regions(layers)


def _check_gradients(layers: Sequence[Layer]) -> None:
    """As in autograd, dL/dx is computed if and only if an earlier layer has weights."""
    weighted: set[str] = set()  # outputs of layers that have weights, or one before them has
    memory = Memory()
    for layer in layers:
        needed = layer.shape.is_differentiable and not weighted.isdisjoint(layer.inputs)
        if layer.needs_input_grad != needed:
            raise InputError(
                f"the layer {layer.name!r} has needs_input_grad {str(not needed).lower()}, and "
                f"{'a' if needed else 'no'} layer before it has weights"
            )
        weighted.update([name for name, has in layer.gradients.items() if has], memory.add(layer))


def _check_regions(layers: Sequence[Layer]) -> None:
    """A checkpointed region is of layers one after another, without the loss."""
    names = [name for name, _ in itertools.groupby(layer.recomputed for layer in layers) if name]
    for name, runs in Counter(names).items():
        if runs > 1 or layers[-1].recomputed:
            raise InputError(
                f"the region {name!r} that is run again must be of layers one after another, "
                "before the loss"
            )


def check_head(name: str, classes: int, layers: Sequence[Layer]) -> None:
    """Raise InputError unless a model has a name, weights, and its last weights give `classes`."""
    _check_name("the model's name", name)
    if not any(layer.shape.parameter_shapes for layer in layers):
        raise InputError("the model has no weights")
    for layer in reversed(layers):
        if (outputs := outputs_of(layer.shape)) is None:
            continue
        if classes != outputs:
            raise InputError(
                f"the model has {size_text((classes,))} classes, and its last layer with weights, "
                f"{layer.name!r}, has {outputs} outputs"
            )
        return


def outputs_of(shape: LayerShape) -> int | None:
    """Outputs of a convolution or a product with weights; None for another layer."""
    if not (shape.parameter_shapes and shape.is_product):
        return None
    if shape.operator is not None:
        place = 0 if shape.operator.base.startswith("conv") else -1
        return shape.output_shape[place] if shape.output_shape else 1
    return [*shape.parameter_shapes[0], 1][0]


def _check_name(what: str, name: str) -> None:
    if not name.strip() or not name.isprintable():
        raise InputError(f"{what}, {name!r}, is empty or cannot be printed")


def _check_inputs(layer: Layer, outputs: dict[str, Shape], layers: Sequence[Layer]) -> None:
    """Check a layer's name and edges; `outputs` are the shapes of all earlier layers."""
    _check_name("a layer's name", layer.name)
    if not outputs.keys().isdisjoint(layer.outputs):
        what = "the name of the model's input" if layer.name == INPUT else "used twice"
        raise InputError(f"the layer name {layer.name!r} is {what}")
    if not layer.inputs and layer.shape.operator is None:
        raise InputError(f"the layer {layer.name!r} reads nothing: the input does not reach it")
    if tuple([outputs.get(source) for source in layer.inputs]) == layer.shape.input_shapes:
        return
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
                f"the layer {layer.name!r} reads {size_text(shape)} from {source!r}, which puts out "
                f"{size_text(outputs[source])}"
            )


def _check_loss(layers: Sequence[Layer]) -> None:
    """Check that the last layer is the only loss and that all others reach it."""
    last = layers[-1]
    if last.shape.kind not in LOSSES:
        raise InputError(
            f"the last layer, {last.name!r}, is of kind {last.shape.kind} and not a loss "
            f"({' or '.join(LOSSES)})"
        )
    read = {source for layer in layers for source in layer.inputs}
    unread = [layer for layer in layers[:-1] if layer.name not in read]
    # what is read reaches the loss if its readers do
    reaching = names_reaching([last.name], layers) if unread else ()
    for layer in reversed(unread):
        if layer.name not in reaching:
            raise InputError(f"the layer {layer.name!r} never reaches the loss, {last.name!r}")
    for layer in layers[:-1]:
        if layer.shape.kind in LOSSES:
            raise InputError(f"the layer {layer.name!r} is a loss but not the last layer")


class Memory:
    """Which outputs of layers are the same memory: views, and what is written in place."""

    def __init__(self) -> None:
        self._of: dict[str, list[str]] = {}  # output -> all that are views of one memory
        self._given: dict[int, int] = {}  # memory -> how many of them were given a gradient

    def add(self, layer: Layer) -> Sequence[str]:
        """Know a layer's outputs; those before it that get a gradient as it writes into their memory."""
        shape = layer.shape
        if not layer.inputs or not (shape.is_in_place or shape.is_view):
            return ()
        shared, written = self.shared(layer.inputs[0]), []
        if shape.is_in_place and layer.has_gradient:
            written = shared[self._given.get(id(shared), 0) :]
            self._given[id(shared)] = len(shared)
        shared += layer.outputs
        self._of |= dict.fromkeys(layer.outputs, shared)
        return written

    def shared(self, output: str) -> list[str]:
        """All outputs so far that are of one memory with this one."""
        return self._of.setdefault(output, [output])


def names_reaching(
    returned: Sequence[str], layers: Sequence[Layer], with_gradient: bool = False
) -> set[str]:
    """The layers whose outputs reach those that are returned, or change in place what does.

    `with_gradient`: only those that a gradient comes back to.
    """
    memory = Memory()
    for layer in layers:
        memory.add(layer)
    reached, found = set(returned), set()
    for layer in reversed(layers):
        outputs: Collection[str] = layer.outputs
        if with_gradient:
            outputs = [name for name, has in layer.gradients.items() if has]
        changed = memory.shared(layer.name) if outputs and layer.shape.is_in_place else ()
        if reached.isdisjoint(outputs) and reached.isdisjoint(changed):
            continue
        reached.update(layer.inputs)
        found.add(layer.name)
    return found
