"""One ATen operator as a model calls it: a layer of the kind "operator", which has no kind of its own.

It is what torch.export found: the operator's name and its arguments. Nothing of the user's code is
needed to run it again, and nothing here needs PyTorch.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cached_property, lru_cache
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Shape = tuple[int, ...]
Family = Literal["products", "norms", "arithmetic", "functions", "copies"]


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# kinds of layers and base names of ATen's operators that cost alike; the others are of no family
FAMILIES: dict[Family, frozenset[str]] = {
    "products": _names(
        "conv conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d convolution "
        "linear matmul bmm mm addmm baddbmm einsum bilinear scaled_dot_product_attention"
    ),
    "norms": _names("batch_norm layer_norm group_norm instance_norm rms_norm local_response_norm"),
    "arithmetic": _names(
        "add sub mul div neg abs square clamp clamp_min clamp_max where masked_fill reciprocal sqrt "
        "rsqrt addcmul addcdiv lerp eq ne lt gt le ge logical_not logical_and "
        "logical_or bitwise_not rsub to relu relu6 leaky_relu hardswish hardsigmoid hardtanh "
        "threshold"
    ),
    "functions": _names(
        "exp expm1 log log1p pow sin cos erf gelu silu mish elu selu celu sigmoid tanh softplus "
        "softsign log_sigmoid glu softmax log_softmax logsumexp remainder floor_divide"
    ),
    "copies": _names(
        "cat concat stack clone contiguous copy expand repeat pad roll slice select split chunk unbind "
        "index index_select gather split_with_sizes narrow constant_pad_nd reshape flip "
        "repeat_interleave tile pixel_shuffle pixel_unshuffle unfold"
    ),
}
# the same memory, in the forward and in the backward: no kernel runs
VIEWS = _names(
    "view permute transpose t unsqueeze squeeze flatten unflatten alias detach movedim swapaxes "
    "view_as numpy_T mT T reshape contiguous"
)
TENSORS = ("input", "parameter", "constant")
FLOATS = ("float16", "bfloat16", "float32", "float64")


@lru_cache(maxsize=1024)
def family_of(name: str) -> Family | Literal[""]:
    """The family of a kind of layer or of an operator's base name; "" for none."""
    return next((family for family, names in FAMILIES.items() if name in names), "")


class Saved(BaseModel):
    """What autograd keeps for the backward, found by running the operator on tensors without data."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    inputs: tuple[int, ...] = Field(default=(), description="which inputs")
    output: bool = Field(default=False, description="whether its output")
    sample_bytes: float = Field(default=0.0, description="of other tensors, per sample")
    fixed_bytes: float = Field(default=0.0, description="of other tensors, whatever the batch")


class Operator(BaseModel):
    """An ATen operator and its arguments.

    Shapes in its LayerShape are those of one sample, as of every layer: (batch, *shape). Where a tensor
    is not like that, `axes` has the dimension that the batch multiplies ((heads, 64) with axis 0 is
    (batch * heads, 64)), or -1 for a tensor without a batch.

    Arguments are JSON: numbers, texts, null and lists as they are; {"input": i}, {"parameter": i} and
    {"constant": i} for tensors, {"batch": k} for k times the batch, {"dtype": "int64"},
    {"memory_format": ...} and {"device": ""} for what those say. {"dtype": ""} is the model's item type.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    name: str = Field(
        description="name of the ATen operator with its overload, as aten.gelu.default"
    )
    arguments: str = Field(description="JSON: its positional arguments")
    options: str = Field(default="{}", description="JSON: its arguments by name")
    axes: tuple[int | None, ...] = Field(
        default=(),
        description="of every input, then every output: the dimension that the batch multiplies, "
        "null for one of its own in front, -1 for none; empty: all null",
    )
    types: tuple[str, ...] = Field(
        default=(),
        description="item types, likewise; an empty text for the model's; empty: all the model's",
    )
    orders: tuple[Shape, ...] = Field(
        default=(),
        description="of every input the dimensions (with the batch's) by falling stride; empty: "
        "contiguous",
    )
    fixed: tuple[int, ...] = Field(default=(), description="inputs that need no gradient")
    constants: tuple[tuple[Shape, str], ...] = Field(
        default=(), description="buffers of the model that it reads: whole shape and item type"
    )
    outputs: tuple[Shape, ...] = Field(
        default=(), description="of one sample: its outputs after the first"
    )
    flops: float = Field(
        default=0.0, description="of products of one forward per sample, by PyTorch's counter"
    )
    saved: Saved = Field(default=Saved(), description="what its backward needs")
    is_view: bool = Field(default=False, description="whether its output is its input's memory")

    @cached_property
    def base(self) -> str:
        """The name without namespace and overload, and without the mark of an in-place variant."""
        name = self.name.split(".")[1] if "." in self.name else self.name
        return name.rstrip("_") or name

    @property
    def family(self) -> Family | Literal[""]:
        """Whose law prices it where nothing of its name was measured; "" for that of all."""
        return family_of(self.base)

    @property
    def is_free(self) -> bool:
        """Whether no kernel runs, neither forward nor backward."""
        return self.is_view and self.base in VIEWS

    @property
    def is_differentiable(self) -> bool:
        """Whether an output is a floating-point tensor."""
        made = self.types[len(self.types) - 1 - len(self.outputs) :] if self.types else ("",)
        return any(each in ("", *FLOATS) for each in made)

    @cached_property
    def contents(self) -> tuple[object, ...]:
        """All that it says, quick to hash and compare: a deep model calls it ten thousand times."""
        own = self.__dict__  # which has cached properties, too
        said = [own[name] for name in type(self).model_fields if name != "saved"]
        return *said, *self.saved.__dict__.values()

    @cached_property
    def key(self) -> str:
        """What tells it from other operators of the same shapes, as JSON without blanks."""
        content = self.model_dump(mode="json", exclude={"saved", "is_view"}, exclude_defaults=True)
        return json.dumps(content, separators=(",", ":"), sort_keys=True)

    def axis(self, number: int) -> int | None:
        """Of an input, or of an output counted behind all inputs."""
        return self.axes[number] if self.axes else None

    def type(self, number: int) -> str:
        """Item type of an input or output, likewise; "" for the model's."""
        return self.types[number] if self.types else ""

    def size(self, number: int, shape: Shape, batch: int) -> Shape:
        """The whole size at `batch` samples."""
        return whole_size(shape, self.axis(number), batch)

    @cached_property
    def positional(self) -> list[Any]:
        """The positional arguments, decoded."""
        found: list[Any] = json.loads(self.arguments)
        return found

    @cached_property
    def named(self) -> dict[str, Any]:
        """The arguments by name, decoded."""
        found: dict[str, Any] = json.loads(self.options)
        return found


def whole_size(shape: Shape, axis: int | None, batch: int) -> Shape:
    """The size of a tensor at `batch` samples, from that of one (see Operator)."""
    if axis is None:
        return (batch, *shape)
    if axis < 0:
        return shape
    return (*shape[:axis], shape[axis] * batch, *shape[axis + 1 :])


def one_sample(size: Shape, batch: int) -> tuple[Shape, int | None]:
    """The shape of one sample and the batch's axis, of a tensor traced at `batch` (a large prime).

    Raises ValueError where the batch multiplies several dimensions.
    """
    places = [place for place, length in enumerate(size) if length and length % batch == 0]
    if len(places) > 1:
        raise ValueError("the batch multiplies several of its dimensions")
    if not places:
        return size, -1
    (at,) = places
    if at == 0 and size[0] == batch:
        return size[1:], None
    return (*size[:at], size[at] // batch, *size[at + 1 :]), at


def tensors_in(given: Any) -> Iterator[tuple[str, Any]]:
    """What decoded arguments say of tensors: ("input", 0), ..."""
    if isinstance(given, list):
        for each in given:
            yield from tensors_in(each)
    elif isinstance(given, dict):
        yield from ((what, at) for what, at in given.items() if what in TENSORS)
