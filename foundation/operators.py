"""One ATen operator as a model calls it: a layer of the kind "operator", which has no kind of its own.

It is what torch.export found: the operator's name and its arguments. Nothing of the user's code is
needed to run it again, and nothing here needs PyTorch.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cached_property, lru_cache
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from calib.foundation.records import Record

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
# of which each item depends on items in the same place alone, if all shapes are equal
POINTWISE = (FAMILIES["arithmetic"] | FAMILIES["functions"]) - _names(
    "glu softmax log_softmax logsumexp"
)
RANDOM = _names(
    "rand randn randint randperm rand_like randn_like randint_like bernoulli normal uniform "
    "exponential log_normal cauchy geometric multinomial poisson dropout native_dropout alpha_dropout "
    "feature_dropout rrelu"
)
# kinds of which the kernels may be told apart (LayerShape.kernel)
KERNELS = {"conv": ("depthwise_conv", "full_conv", "pointwise_conv")}
# the same memory, in the forward and in the backward: no kernel runs
VIEWS = _names(
    "view permute transpose t unsqueeze squeeze flatten unflatten alias detach movedim swapaxes "
    "view_as numpy_T mT T reshape contiguous"
)
# the name of a whole module whose operators are not known: it cannot be run again by its name
WHOLE = "module"
# fields that follow from the others, by running it
FOUND = {"saved", "is_view", "has_gradient"}
PRIME = 10_007  # samples at which sizes say what the batch multiplies: no size of a model has it
TENSORS = ("input", "parameter", "constant")
MEMORY_FORMATS = ("contiguous_format", "preserve_format", "channels_last", "channels_last_3d")
MOST_TEXT, MOST_NESTED = 2**16, 8  # of arguments
NAMED = re.compile(r"[A-Za-z]\w*\.\w+\.\w+")
# what does more than to compute tensors from tensors
FOREIGN = _names("from_file")
# item types that have gradients; an empty text is the model's
DIFFERENTIABLE = ("", "float16", "bfloat16", "float32", "float64", "complex64", "complex128")


# numbers that JSON and the arithmetic behind it can hold
Amount = Annotated[float, Field(ge=0.0, le=1e30, allow_inf_nan=False)]
Line = tuple[Amount, Amount]
Argument = Annotated[str, Field(max_length=MOST_TEXT)]


@lru_cache(maxsize=1024)
def family_of(name: str) -> Family | Literal[""]:
    """The family of a kind of layer or of an operator's base name; "" for none."""
    return next((family for family, names in FAMILIES.items() if name in names), "")


class Saved(Record):
    """What an operator keeps for its backward, and what both make, found by running them.

    Bytes are in float32: of each sample, and whatever the batch.
    """

    inputs: tuple[int, ...] = Field(default=(), description="which inputs")
    output: bool = Field(default=False, description="whether its output")
    beside: Line = Field(default=(0.0, 0.0), description="bytes of other tensors that are kept")
    forward: Line = Field(default=(0.0, 0.0), description="bytes of temporaries of the forward")
    backward: Line = Field(
        default=(0.0, 0.0), description="bytes of those of the backward, beside gradients"
    )
    passed: tuple[int, ...] = Field(
        default=(), description="inputs whose gradient is that of the output, or a view of it"
    )


class Operator(Record):
    """An ATen operator and its arguments.

    Shapes in its LayerShape are those of one sample, as of every layer: (batch, *shape). Where a tensor
    is not like that, `axes` has the dimension that the batch multiplies ((heads, 64) with axis 0 is
    (batch * heads, 64)), or -1 for a tensor without a batch.

    Arguments are JSON: numbers, texts, null and lists as they are; {"input": i}, {"parameter": i} and
    {"constant": i} for tensors, {"batch": k} for k times the batch, {"dtype": "int64"},
    {"memory_format": ...} and {"device": ""} for what those say. {"dtype": ""} is the model's item type.
    """

    name: str = Field(
        description="name of the ATen operator with its overload, as aten.gelu.default"
    )
    arguments: Argument = Field(description="JSON: its positional arguments")
    options: Argument = Field(default="{}", description="JSON: its arguments by name")
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
    no_grad: bool = Field(default=False, description="whether the model runs it under no_grad")
    flops: Amount = Field(
        default=0.0, description="of products of one forward per sample, by PyTorch's counter"
    )
    saved: Saved = Field(default=Saved(), description="what its backward needs")
    is_view: bool = Field(default=False, description="whether its output is its input's memory")
    has_gradient: bool = Field(
        default=True, description="whether its output has a gradient where an input has one"
    )

    @field_validator("name")
    @classmethod
    def _is_name(cls, name: str) -> str:
        if name == WHOLE:
            return name
        if not NAMED.fullmatch(name) or name.split(".")[1] in FOREIGN:
            raise ValueError("is no name of an operator on tensors, as aten.gelu.default is")
        return name

    @field_validator("arguments", "options")
    @classmethod
    def _are_arguments(cls, text: str, info: ValidationInfo) -> str:
        kind, what = (list, "list") if info.field_name == "arguments" else (dict, "object")
        try:
            given = json.loads(text)
            known = isinstance(given, kind) and all(
                map(_is_argument, given if isinstance(given, list) else given.values())
            )
        except (ValueError, RecursionError):
            known = False
        if not known:
            raise ValueError(f"is no JSON {what} of an operator's arguments")
        return text

    @cached_property
    def base(self) -> str:
        """The name without namespace and overload, and without the mark of an in-place variant."""
        name = self.name.split(".")[1] if "." in self.name else self.name
        return name.rstrip("_") or name

    @property
    def is_whole(self) -> bool:
        """Whether it is a module that was not traced: measured in place, and only so."""
        return self.name == WHOLE

    @cached_property
    def is_in_place(self) -> bool:
        """Whether it writes its result into its first input."""
        base = self.name.split(".")[1] if "." in self.name else ""
        return base.endswith("_") and not base.startswith("_")

    @property
    def is_free(self) -> bool:
        """Whether no kernel runs, neither forward nor backward."""
        return self.is_view and self.base in VIEWS

    @property
    def is_constant(self) -> bool:
        """Whether it makes the same of equal inputs: it draws no random numbers."""
        return self.base not in RANDOM

    @property
    def is_pointwise(self) -> bool:
        """Whether it maps samples item by item, where its inputs have the shape of its output."""
        plain = not (self.axes or self.types or self.orders or self.outputs or self.constants)
        return plain and self.base in POINTWISE

    @cached_property
    def is_differentiable(self) -> bool:
        """Whether an output is of floats or complex numbers."""
        if self.no_grad or not self.has_gradient:
            return False
        return any(self.differentiable_outputs)

    @cached_property
    def differentiable_outputs(self) -> tuple[bool, ...]:
        """Of each output."""
        count = 1 + len(self.outputs)
        made = self.types[len(self.types) - count :] if self.types else ("",) * count
        return tuple([each in DIFFERENTIABLE for each in made])

    @cached_property
    def contents(self) -> tuple[object, ...]:
        """All that it says, quick to hash and compare: a deep model calls it ten thousand times."""
        own = self.__dict__  # which has cached properties, too
        said = [own[name] for name in type(self).model_fields if name != "saved"]
        return *said, *self.saved.__dict__.values()

    @cached_property
    def key(self) -> str:
        """What tells it from other operators of the same shapes, as JSON without blanks."""
        content = self.model_dump(mode="json", exclude=FOUND, exclude_defaults=True)
        text = json.dumps(content, separators=(",", ":"), sort_keys=True)
        return text.replace("|", "\\u007c")  # which divides the parts of a layer's key

    def axis(self, number: int) -> int | None:
        """Of an input, or of an output counted behind all inputs."""
        return self.axes[number] if self.axes else None

    def type(self, number: int) -> str:
        """Item type of an input or output, likewise; "" for the model's."""
        return self.types[number] if self.types else ""

    def on_share(self, share: float) -> Operator:
        """The same of a share of each sample, for one that is pointwise."""
        saved = {
            name: (getattr(self.saved, name)[0] * share, getattr(self.saved, name)[1])
            for name in ("beside", "forward", "backward")
        }
        return self.model_copy(update={"saved": self.saved.model_copy(update=saved)})

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


def _is_argument(given: Any, depth: int = 0) -> bool:
    """Whether it is what the record says of arguments."""
    if isinstance(given, list):
        return depth < MOST_NESTED and all(_is_argument(each, depth + 1) for each in given)
    if not isinstance(given, dict):
        return not isinstance(given, int) or abs(given) < 2**63
    if len(given) != 1:
        return False
    ((what, value),) = given.items()
    if what in (*TENSORS, "batch"):
        return type(value) is int
    if what == "dtype":
        return isinstance(value, str)
    return value in (
        ("",) if what == "device" else MEMORY_FORMATS if what == "memory_format" else ()
    )


def terms_in(given: Any) -> Iterator[tuple[str, Any]]:
    """What decoded arguments name: ("input", 0), ("batch", 1), ..."""
    if isinstance(given, list):
        for each in given:
            yield from terms_in(each)
    elif isinstance(given, dict):
        yield from given.items()
