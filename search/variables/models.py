"""Variables: those that Parallax published, and those of a ModelSpec; bytes that they move.

Bytes are those of Parallax, Table 3: in and out of a machine in one iteration (formulas.md,
"Parallax"). w bytes of a variable on N machines with one worker each; a is the fraction of its elements
that a worker uses. Indices of rows are left out, as in the paper.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

from calib.foundation.errors import InputError
from calib.foundation.layers import ITEM_BYTES
from calib.oracle.model.spec import ModelSpec

ABOUT_A = "a of "
UNIFORM = (
    ABOUT_A + "{} is of rows drawn uniformly, an upper bound: words repeat more than that; "
    "give a measured one by a="
)
SIZES_SWAPPED = (
    "Table 1 has 23.8M elements for ResNet-50 and 25.6M for Inception-v3; section 6.3 has them the "
    "other way round"
)
OF_SUMS = (
    ABOUT_A + "the sparse variables follows from the model's, which weighs all variables by their "
    "elements (section 2.2)"
)


def server_bytes(w: float, machines: int, a: float = 1.0, balanced: bool = False) -> float:
    """By parameter server: 2 a w (N-1) at the owner; 4 a w (N-1)/N spread evenly. Dense: a = 1."""
    if balanced:
        return 4.0 * a * w * (machines - 1) / machines
    return 2.0 * a * w * (machines - 1)


def allreduce_bytes(w: float, machines: int) -> float:
    """By a ring allreduce, of a dense variable: 4 w (N-1)/N."""
    return 4.0 * w * (machines - 1) / machines


def allgatherv_bytes(w: float, machines: int, a: float) -> float:
    """By a ring allgatherv, of a sparse variable: 2 a w (N-1)."""
    return 2.0 * a * w * (machines - 1)


@dataclass(frozen=True)
class Variable:
    """`rows` of `width` items; a worker uses the fraction `a` of the rows of a sparse one.

    `even`: a published sum of variables of which no more is known, taken as spread evenly. `parts`:
    its own number of partitions; 0: that of all variables.
    """

    name: str
    rows: int
    width: int
    sparse: bool = False
    a: float = 1.0
    even: bool = False
    parts: int = 0

    @property
    def items(self) -> int:
        """Elements."""
        return self.rows * self.width

    @property
    def nbytes(self) -> float:
        """w of formulas.md, bytes."""
        return float(ITEM_BYTES * self.items)


@dataclass(frozen=True)
class Variables:
    """The variables of a model, and what they rest on."""

    own_batch: ClassVar[bool] = True
    name: str
    variables: tuple[Variable, ...]
    notes: tuple[str, ...] = ()

    def with_a(self, a: float) -> Variables:
        """The same with this fraction for all sparse variables. Raises InputError outside (0, 1]."""
        if not 0.0 < a <= 1.0:
            raise InputError(f"a={a:g} is no fraction of elements: give one above 0, 1 at most")
        changed = tuple(replace(of, a=a) if of.sparse else of for of in self.variables)
        notes = tuple(note for note in self.notes if not note.startswith(ABOUT_A))
        return Variables(self.name, changed, notes)

    def items(self, sparse: bool) -> int:
        """Elements of all sparse or all dense variables."""
        return sum(of.items for of in self.variables if of.sparse == sparse)

    @property
    def a(self) -> float:
        """Of the model: the mean of its variables' a, weighted by elements (section 2.2)."""
        items = sum(of.items for of in self.variables)
        return sum(of.a * of.items for of in self.variables) / items


def _with_model_a(name: str, a: float, *variables: Variable) -> Variables:
    """With the a of all sparse variables that gives the model's."""
    made = Variables(name, variables, (OF_SUMS,))
    dense, sparse = made.items(sparse=False), made.items(sparse=True)
    own = (a * (dense + sparse) - dense) / sparse
    return Variables(name, made.with_a(own).variables, made.notes)


WORDS = 793_470  # of the One Billion Word benchmark
PUBLISHED = {
    # sections 1 and 6.1: two embeddings of 512 and the bias of the softmax; 9.4M dense elements
    "lm": _with_model_a(
        "lm",
        0.02,
        Variable("embedding", WORDS, 512, True),
        Variable("softmax.weight", WORDS, 512, True),
        Variable("softmax.bias", WORDS, 1, True),
        Variable("dense", 9_400_000, 1, even=True),
    ),
    # 94.1M dense elements, 74.9M sparse ones: two embeddings of 1024
    "nmt": _with_model_a(
        "nmt",
        0.65,
        Variable("embedding.encoder", round(74.9e6 / 2 / 1024), 1024, True),
        Variable("embedding.decoder", round(74.9e6 / 2 / 1024), 1024, True),
        Variable("dense", 94_100_000, 1, even=True),
    ),
    "resnet-50": Variables(
        "resnet-50", (Variable("dense", 23_800_000, 1, even=True),), (SIZES_SWAPPED,)
    ),
    "inception-v3": Variables(
        "inception-v3", (Variable("dense", 25_600_000, 1, even=True),), (SIZES_SWAPPED,)
    ),
}


def of_model(model: ModelSpec, samples: int) -> Variables:
    """The weights and biases of a model whose workers run `samples` each: embeddings are sparse."""
    found: list[Variable] = []
    bounded: list[str] = []
    for layer in model.layers:
        shape = layer.shape
        for name, of in layer.named_parameters.items():
            variable = Variable(name, of[0] if of else 1, math.prod(of[1:]))
            if shape.kind == "embedding":
                bounded.append(variable.name)
                a = uniform_a(variable.rows, samples * shape.input_items)
                variable = replace(variable, sparse=True, a=a)
            found.append(variable)
    notes = (UNIFORM.format(", ".join(bounded)),) if bounded else ()
    return Variables(model.name, tuple(found), notes)


def uniform_a(rows: int, draws: int) -> float:
    """Expected fraction of the rows that so many uniform draws touch: 1 - (1 - 1/rows)^draws."""
    if rows == 1:
        return 1.0
    return -math.expm1(draws * math.log1p(-1.0 / rows))


def together(a: float, workers: int) -> float:
    """Expected fraction that so many workers use together, each a fraction `a`.

    1 - (1 - a)^workers for rows drawn independently; less, the more alike they are.
    """
    return 1.0 if a >= 1 else -math.expm1(workers * math.log1p(-a))
