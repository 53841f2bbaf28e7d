"""The layers of a model while it is traced: their names, shapes and edges."""

from __future__ import annotations

from collections.abc import Sequence, Set

from torch import nn

from calib.foundation.layers import LayerKind, LayerShape, Shape
from calib.foundation.operators import Operator
from calib.oracle.model.graph import INPUT, Memory, names_reaching, outputs_of
from calib.oracle.model.layer import Layer
from calib.oracle.trace.atens import Attributes

LOSS = "loss"


class LayerList:
    """Layers in the order in which they run, each with a name of its own.

    `module` has the parameters that layers name.
    """

    def __init__(self, module: nn.Module, input_shape: Shape, n_outputs: int = 1) -> None:
        self.n_outputs = n_outputs  # that the model returns: 2 with an auxiliary head
        self.layers: list[Layer] = []
        self.shape_of: dict[str, Shape] = {INPUT: input_shape}  # layer -> per-sample shape
        self._count_of: dict[str, int] = {}  # name -> the last number behind it
        self.weighted = {INPUT: False}  # whether the layer or one before it has parameters
        self.owner_of: dict[int, str] = {}  # id of a parameter -> its layer
        self._parameters = dict(module.named_parameters(remove_duplicate=False))
        self._memory = Memory()
        self._held: dict[str, Sequence[str]] = {}
        self.region = 0  # number of the checkpointed region of the next layers; 0: none
        self._regions: dict[int, str] = {}  # their first layers

    def unique(self, name: str) -> str:
        """`name`, or name#2, name#3 if it is taken."""
        candidate, count = name, self._count_of.get(name, 1)
        while candidate in self.shape_of or candidate in (INPUT, LOSS):
            count += 1
            candidate = f"{name}#{count}"
        self._count_of[name] = count
        return candidate

    def trains(self, name: str) -> bool:
        """Whether the parameter of that name is trained: it is not frozen."""
        return self._parameters[name].requires_grad

    def parameters(self, layer: str, names: Sequence[str]) -> tuple[Shape, ...]:
        """The shapes of a layer's parameters; those that an earlier layer has are shared with it."""
        self._held[layer] = names
        return tuple(tuple(self._parameters[name].shape) for name in names)

    def _shared(self, layer: str) -> dict[int, str]:
        """Which of a layer's parameters an earlier one has, and that one."""
        held = [self._parameters[name] for name in self._held.get(layer, ())]
        owners = [self.owner_of.setdefault(id(of), layer) for of in held]
        return {at: owner for at, owner in enumerate(owners) if owner != layer}

    def append(
        self,
        name: str,
        kind: LayerKind,
        inputs: tuple[str, ...],
        shape: Shape,
        parameters: tuple[Shape, ...] = (),
        attributes: Attributes | None = None,
        operator: Operator | None = None,
    ) -> None:
        """Append the layer `name`, which reads the layers `inputs`; shapes are per sample."""
        layer_shape = LayerShape(
            kind=kind,
            input_shapes=tuple(self.shape_of[source] for source in inputs),
            output_shape=shape,
            parameter_shapes=parameters,
            attributes=attributes or {},
            operator=operator,
        )
        needed = any(self.weighted[source] for source in inputs)
        layer = Layer(
            name=name,
            shape=layer_shape,
            inputs=inputs,
            needs_input_grad=needed and layer_shape.is_differentiable,
            shared_parameters=self._shared(name),
            recomputed=self._regions.setdefault(self.region, name) if self.region else "",
        )
        self.layers.append(layer)
        self.shape_of |= layer.outputs
        self.weighted |= layer.gradients
        self.weighted |= dict.fromkeys(self._memory.add(layer), True)

    def drop_unused(self, returned: Sequence[str]) -> None:
        """Leave out what never reaches the outputs."""
        reaching = names_reaching(returned, self.layers)
        self.owner_of.clear()  # an earlier one may be left out
        self.layers = [
            layer.model_copy(update={"shared_parameters": self._shared(layer.name)})
            if layer.name in self._held
            else layer
            for layer in self.layers
            if layer.name in reaching
        ]

    @property
    def classes(self) -> int:
        """Outputs of the last convolution or product with weights; 1 without any."""
        found = (outputs_of(layer.shape) for layer in reversed(self.layers))
        return next((outputs for outputs in found if outputs is not None), 1)

    @property
    def ends_in_rows(self) -> bool:
        """Whether that is a product of matrices, which has its outputs along the last dimension."""
        products = [layer.shape.name for layer in self.layers if outputs_of(layer.shape)]
        return bool(products) and not products[-1].startswith("conv")

    def unused(self) -> dict[str, Shape]:
        """The weights that are trained and no layer has, by name; after `drop_unused`."""
        return self._without({layer.name for layer in self.layers})

    def without_gradient(self, returned: Sequence[str]) -> dict[str, Shape]:
        """The same, and weights of layers to which no gradient comes back from the outputs."""
        return self._without(names_reaching(returned, self.layers, with_gradient=True))

    def _without(self, layers: Set[str]) -> dict[str, Shape]:
        """The weights that are trained and that none of these layers has."""
        held = {id(self._parameters[name]) for of in layers for name in self._held.get(of, ())}
        distinct = {id(of): name for name, of in reversed(self._parameters.items())}
        return {
            name: tuple(of.shape)
            for name, of in self._parameters.items()
            if distinct[id(of)] == name and self.trains(name) and id(of) not in held
        }
