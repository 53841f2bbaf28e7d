"""How a program runs its layers, beside how training is divided: item types, memory format, launches.

Its name is an item type, then marks: "float32", "bfloat16+channels_last",
"bfloat16-mixed+cuda_graph". Times of one execution say nothing about another, so everything that is
measured of layers, passes over tensors and whole iterations has this name in it, as predictions and runs
have.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Annotated

from pydantic import AfterValidator, Field

from calib.foundation.errors import InputError


@dataclass(frozen=True)
class ItemType:
    """Bytes of an item, by what it is of; and the type of which the others are, where they differ.

    `mixed` is PyTorch's autocast: weights, their gradients and the optimizer's state stay in float32.
    """

    activation_bytes: int
    weight_bytes: int
    mixed: str = ""


DTYPES = {
    "float32": ItemType(4, 4),
    "tf32": ItemType(4, 4),  # float32 in memory; matrix products and convolutions in TensorFloat-32
    "float64": ItemType(8, 8),
    "float16": ItemType(2, 2),
    "bfloat16": ItemType(2, 2),
    "bfloat16-mixed": ItemType(2, 4, "bfloat16"),
}
CHANNELS_LAST, CUDA_GRAPH = "channels_last", "cuda_graph"
MARKS = (CHANNELS_LAST, CUDA_GRAPH)
USUAL, UNSAID = "float32", "unknown"


@dataclass(frozen=True)
class Execution:
    """How layers run.

    `dtype`: a key of DTYPES. `channels_last`: channels are the innermost dimension in memory.
    `cuda_graph`: forward and backward are one captured graph each, not kernels launched one by one.
    """

    dtype: str = USUAL
    channels_last: bool = False
    cuda_graph: bool = False

    @property
    def name(self) -> str:
        """Its canonical name: the item type, then the marks in their order."""
        return "+".join([self.dtype, *(mark for mark in MARKS if getattr(self, mark))])

    @property
    def items(self) -> ItemType:
        """Bytes of its items."""
        return DTYPES[self.dtype]

    @property
    def product_type(self) -> str:
        """The item type of its matrix products and convolutions."""
        return self.items.mixed or self.dtype

    def require_on(self, device: str) -> None:
        """Raise InputError where a CPU cannot run it."""
        if device == "cpu" and self.dtype == "tf32":
            raise InputError("tf32 is arithmetic of CUDA devices; on a CPU take float32")
        if device == "cpu" and self.cuda_graph:
            raise InputError("CUDA graphs are of GPUs; on a CPU leave +cuda_graph out")

    @property
    def kernels(self) -> Execution:
        """Itself without the graph: a layer alone is held on its stream, and runs the same kernels."""
        return replace(self, cuda_graph=False)


@lru_cache(maxsize=256)
def execution_of(name: str) -> Execution:
    """The execution of that name, with its marks in any order.

    Raises InputError, which names what there is.
    """
    dtype, *marks = name.strip().split("+")
    if dtype not in DTYPES:
        raise InputError(f"unknown item type {dtype!r}; known: {', '.join(DTYPES)}")
    unknown = [mark for mark in marks if mark not in MARKS]
    if unknown or len(set(marks)) < len(marks):
        what = f"unknown mark {unknown[0]!r}" if unknown else "a mark stands twice"
        raise InputError(
            f"{what} in {name!r}; behind an item type may stand +{' and +'.join(MARKS)}"
        )
    return Execution(dtype, **{mark: True for mark in marks})


def unusual(name: str) -> str:
    """The name for words and names of files; "" for float32, and for a run that does not say it."""
    return "" if name in (USUAL, UNSAID) else name


def _canonical(name: str) -> str:
    try:
        return execution_of(name).name
    except InputError as error:
        raise ValueError(str(error)) from error


ExecutionName = Annotated[
    str,
    AfterValidator(_canonical),
    Field(
        description="how layers run: item type, then +channels_last, +cuda_graph "
        "(foundation/execution.py)"
    ),
]
# of runs of other tools, whose item type calib may not know
ExecutionLabel = Annotated[str, Field(description="how layers ran, as calib names it; or unknown")]
