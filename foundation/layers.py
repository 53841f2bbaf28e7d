"""The shape of one layer, shared by measuring, fitting and predicting.

Shapes are those of ONE sample, without the batch dimension; `key` adds batch, execution and
whether the gradient of the input is needed, and measured times are found by it.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from calib.foundation import operators
from calib.foundation.execution import USUAL, execution_of
from calib.foundation.operators import DIFFERENTIABLE, Operator, family_of

Shape = operators.Shape
Direction = Literal["forward", "backward"]
Attribute = bool | int | float | tuple[int, ...]

LayerKind = Literal[
    "conv",
    "linear",
    "batch_norm",
    "layer_norm",
    "relu",
    "max_pool",
    "avg_pool",
    "adaptive_avg_pool",
    "add",
    "concat",
    "softmax",
    "embedding",
    "flatten",
    "dropout",
    "cross_entropy",
    "mse",
    "operator",
]
LOSSES = ("cross_entropy", "mse")
ITEM_BYTES = 4  # delta of the papers: float32
INDEX_BYTES = 8  # torch looks rows up by int64
# bytes of an item, by PyTorch's names; the model's own type is not among them
ITEM_TYPES = {
    **dict.fromkeys(("bool", "uint8", "int8"), 1),
    **dict.fromkeys(("int16", "float16", "bfloat16"), 2),
    **dict.fromkeys(("int32", "float32"), 4),
    **dict.fromkeys(("int64", "float64", "complex64"), 8),
    "complex128": 16,
}
# whose gradient does not depend on the input
LINEAR_KINDS = ("add", "concat", "avg_pool", "adaptive_avg_pool", "flatten")


def split_sizes(n: int, parts: int) -> list[int]:
    """n items in `parts` parts, as evenly as possible, the larger ones first (numpy.array_split)."""
    small, larger = divmod(n, parts)
    return [small + 1] * larger + [small] * (parts - larger)


@lru_cache(maxsize=256)
def _kernels(execution: str, images: bool) -> str:
    of = execution_of(execution).kernels
    return of.name if images else replace(of, channels_last=False).name


class LayerShape(BaseModel):
    """One layer as a device sees it, per sample.

    `attributes`: conv and pools: kernel, stride, padding (one item per spatial dimension), conv also
    groups, pools also ceil_mode; dropout: probability; layer_norm: normalized_shape, the trailing
    dimensions that it normalizes over. `parameter_shapes`: weight, then bias; an embedding's are one
    table (rows, width). Its input is the indices of one sample, its output (*input, width). concat
    joins its inputs along the first dimension (the channels), and softmax runs along it. cross_entropy
    has its classes along the first dimension of its input, with `classes_last` along the last.
    `operator` is what a layer of the kind "operator" calls.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    kind: LayerKind = Field(description="kind of layer")
    input_shapes: tuple[Shape, ...] = Field(
        description="of one sample, without the batch dimension"
    )
    output_shape: Shape = Field(description="of one sample, without the batch dimension")
    parameter_shapes: tuple[Shape, ...] = Field(default=(), description="weight, then bias")
    attributes: dict[str, Attribute] = Field(
        default_factory=dict,
        description="by kind of layer: kernel, stride, padding, groups, ceil_mode, probability, "
        "normalized_shape, auxiliary_weight, classes_last",
    )
    operator: Operator | None = Field(
        default=None, description='what a layer of the kind "operator" calls; else null'
    )

    @field_validator("attributes")
    @classmethod
    def _in_order(cls, attributes: dict[str, Attribute]) -> dict[str, Attribute]:
        return dict(sorted(attributes.items()))  # equal layers are equal text, whoever wrote them

    @property
    def input_items(self) -> int:
        """|x|: items of the inputs of one sample."""
        return sum(math.prod(shape) for shape in self.input_shapes)

    @property
    def output_items(self) -> int:
        """|y|: items of the output of one sample."""
        return math.prod(self.output_shape)

    @property
    def tensor_items(self) -> int:
        """|x| + |y|: items of the inputs and of all outputs of one sample."""
        return self.input_items + self.output_items + sum(map(math.prod, self.more_outputs))

    @property
    def parameter_items(self) -> int:
        """|w| + |bi|."""
        return sum(math.prod(shape) for shape in self.parameter_shapes)

    @property
    def more_outputs(self) -> tuple[Shape, ...]:
        """Of an operator with several outputs, those after the first."""
        return () if self.operator is None else self.operator.outputs

    @property
    def name(self) -> str:
        """What people call it: its kind, or the base name of its operator."""
        return self.kind if self.operator is None else self.operator.base

    @property
    def gradient_inputs(self) -> tuple[Shape, ...]:
        """The inputs that have a gradient, where a layer before has parameters: not indices."""
        of = self.operator
        if of is None:
            return () if self.kind == "embedding" else self.input_shapes
        return tuple(
            shape
            for at, shape in enumerate(self.input_shapes)
            if at not in of.fixed and of.type(at) in DIFFERENTIABLE
        )

    @property
    def kernel(self) -> str:
        """Its name; of a convolution what libraries have kernels of their own for.

        One of a single position is a matrix product, and one of a channel each has no product at all.
        """
        if self.kind != "conv":
            return self.name
        channels = self.input_shapes[0][0]
        if channels > 1 and self.attributes["groups"] == channels:
            return "depthwise_conv"
        return "pointwise_conv" if {*self.parameter_shapes[0][2:]} == {1} else "full_conv"

    def output_sizes(self, batch: int) -> list[Shape]:
        """Of every output for `batch` samples."""
        shapes, of = (self.output_shape, *self.more_outputs), self.operator
        if of is None:
            return [(batch, *shape) for shape in shapes]
        first = len(self.input_shapes)
        return [of.size(at, shape, batch) for at, shape in enumerate(shapes, first)]

    def output_type(self, place: int) -> str:
        """Item type of an output; "" for the model's."""
        of = self.operator
        return "" if of is None else of.type(len(self.input_shapes) + place)

    @property
    def is_differentiable(self) -> bool:
        """Whether its output has a gradient: indices and truths have none."""
        return self.operator is None or self.operator.is_differentiable

    @property
    def is_product(self) -> bool:
        """Whether it is bound by arithmetic: a convolution, or a product of matrices."""
        if self.operator is not None:
            return self.operator.flops > 0
        return self.kind in ("conv", "linear")

    @property
    def classes(self) -> int:
        """Of a loss: classes, or outputs (mse), along the dimension of its input that has them; 0 where
        its input is one number of each sample.
        """
        output = self.input_shapes[0]
        return output[-1 if "classes_last" in self.attributes else 0] if output else 0

    @property
    def places(self) -> Shape:
        """Of a loss: the other dimensions of its input, such as tokens or pixels."""
        output = self.input_shapes[0]
        return output[:-1] if "classes_last" in self.attributes else output[1:]

    @property
    def is_free(self) -> bool:
        """Whether no kernel runs: a change of view, or an adaptive pooling to the same size."""
        if self.operator is not None:
            return self.operator.is_free
        return self.kind == "flatten" or self.is_identity

    @property
    def is_view(self) -> bool:
        """Whether its forward runs no kernel: the output is the input's memory, and as it was."""
        if self.operator is None:
            return self.kind == "flatten"
        return self.operator.is_view and not self.is_in_place

    @property
    def is_in_place(self) -> bool:
        """Whether it writes its result into its first input."""
        return self.operator is not None and self.operator.is_in_place

    @property
    def is_identity(self) -> bool:
        """Whether it is an adaptive pooling to the same size, which training skips."""
        return self.kind == "adaptive_avg_pool" and self.input_shapes[0] == self.output_shape

    def forward_flops(self, batch: int) -> float:
        """Floating-point operations of one forward (a multiply-add is 2), for `batch` samples.

        A pass over items (norms, softmax, ReLU, losses, ...) counts one for each item of its larger
        side: how many it really makes is in the measured time of its kind. A copy counts none.
        """
        if self.name == "embedding" or family_of(self.name) == "copies":
            return 0.0
        if self.operator is not None and self.operator.flops:
            return batch * self.operator.flops
        if self.kind in ("conv", "linear"):
            weight = self.parameter_shapes[0]
            return 2.0 * batch * self.output_items * math.prod(weight[1:])
        if self.kind in ("max_pool", "avg_pool"):
            kernel = self.attributes["kernel"]
            assert isinstance(kernel, tuple)
            return float(batch * self.output_items * math.prod(kernel))
        return float(batch * max(self.input_items, self.output_items))

    def moved_bytes(self, batch: int, item_bytes: int = 4) -> float:
        """The fewest bytes that one forward can move: inputs, output and weights once.

        For an embedding: the indices, the rows that they name (not the whole table), the output.
        """
        if self.operator is not None:
            sizes = self.operand_bytes(batch, item_bytes)
            read = sizes[-1] if self.name == "embedding" else item_bytes * self.parameter_items
            return float(sum(sizes) + read)
        if self.kind == "embedding":
            rows_and_output = 2 * self.output_items
            return float(batch * (INDEX_BYTES * self.input_items + item_bytes * rows_and_output))
        items = batch * (self.input_items + self.output_items) + self.parameter_items
        return float(item_bytes * items)

    def backward_flops(self, batch: int, needs_input_grad: bool = True) -> float:
        """Operations of one backward, counted as those of the forward.

        A convolution or linear layer has two products of the forward's size, dL/dx and dL/dw (the
        second alone where the input needs no gradient); a pass over items counts as its forward.
        """
        products = 1 + needs_input_grad if self.is_product else 1
        return products * self.forward_flops(batch)

    def operand_bytes(self, batch: int, item_bytes: int = 4) -> list[int]:
        """Bytes of every input and then every output of an operator, for `batch` samples."""
        of = self.operator
        assert of is not None
        shapes = (*self.input_shapes, self.output_shape, *of.outputs)
        return [
            (ITEM_TYPES.get(of.type(number), item_bytes)) * math.prod(of.size(number, shape, batch))
            for number, shape in enumerate(shapes)
        ]

    def backward_bytes(
        self, batch: int, item_bytes: int = 4, needs_input_grad: bool = True
    ) -> float:
        """The fewest bytes that one backward can move.

        It reads dL/dy, the input (but for kinds whose gradient does not depend on it) and, for dL/dx,
        the weights; it writes dL/dx, where it is needed, and dL/dw (of an embedding the whole table).
        """
        inputs, weights = batch * self.input_items, self.parameter_items
        if self.operator is not None:
            return self.moved_bytes(batch, item_bytes) + item_bytes * weights
        if self.kind == "embedding":
            rows = item_bytes * (batch * self.output_items + weights)
            return float(INDEX_BYTES * inputs + rows)
        read = batch * self.output_items + (0 if self.kind in LINEAR_KINDS else inputs)
        for_inputs = inputs + weights if needs_input_grad else 0
        return float(item_bytes * (read + for_inputs + weights))

    def runs_as(self, execution: str) -> str:
        """The plainest execution under which it runs the same kernels as under this one.

        A layer alone is no CUDA graph, and channels last needs inputs of 2 or 3 spatial dimensions.
        Raises InputError for an unknown execution.
        """
        return _kernels(execution, self.has_images)

    @property
    def has_images(self) -> bool:
        """Whether its inputs are images or volumes; so may those of an operator in the usual order be.

        Heads and matrices are none.
        """
        of = self.operator
        if of is not None and (of.axes or of.orders or (self.is_product and "conv" not in of.base)):
            return False
        return all(len(shape) in (3, 4) for shape in self.input_shapes)

    def key(self, batch: int, execution: str = USUAL, needs_input_grad: bool = True) -> str:
        """Canonical name of this layer at this batch; equal keys run the same kernels.

        Raises InputError for an unknown execution.
        """

        def dims(shape: Shape) -> str:
            return "x".join(map(str, shape)) or ("1" if self.operator is None else "0")

        def word(value: object) -> str:
            return dims(value) if isinstance(value, tuple) else str(value)

        attributes = ",".join(f"{k}={word(v)}" for k, v in sorted(self.attributes.items()))
        if self.operator is not None:
            attributes = self.operator.key
        inputs = "+".join(map(dims, self.input_shapes)) or "-"  # an operator that makes a tensor
        parameters = "+".join(map(dims, self.parameter_shapes)) or "-"
        gradient = "" if needs_input_grad else "|no-input-grad"
        return (
            f"{self.kind}({attributes})|{batch}*{inputs}->{dims(self.output_shape)}"
            f"|{parameters}|{self.runs_as(execution)}{gradient}"
        )
