"""Variables: those that Parallax published, and those of a ModelSpec."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

from calib.foundation.layers import ITEM_BYTES
from calib.oracle.model.spec import ModelSpec
from calib.search.variables.bytes import fraction

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


@dataclass(frozen=True)
class Variable:
    """`rows` of `width` items; of a sparse one a worker uses the fraction `a` of the rows.

    `even`: a published sum of variables of which no more is known, taken as spread evenly. `parts`:
    its own number of partitions; 0: that of all.
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
        """w of formulas.md."""
        return float(ITEM_BYTES * self.items)


@dataclass(frozen=True)
class Variables:
    """The variables of a model, and what they rest on."""

    own_batch: ClassVar[bool] = True
    name: str
    variables: tuple[Variable, ...]
    notes: tuple[str, ...] = ()

    def with_a(self, a: float) -> Variables:
        """The same with this fraction for all sparse variables. Raises InputError."""
        fraction(a)
        changed = tuple(replace(of, a=a) if of.sparse else of for of in self.variables)
        notes = tuple(note for note in self.notes if not note.startswith(ABOUT_A))
        return Variables(self.name, changed, notes)

    def items(self, sparse: bool) -> int:
        """Elements of all sparse, or of all dense variables."""
        return sum(of.items for of in self.variables if of.sparse == sparse)

    @property
    def a(self) -> float:
        """Of the model: the mean of its variables' weighted by their elements (section 2.2)."""
        return sum(of.a * of.items for of in self.variables) / sum(
            of.items for of in self.variables
        )


def _with_model_a(name: str, a: float, variables: tuple[Variable, ...]) -> Variables:
    """With the fraction for all sparse variables that gives the model's `a`."""
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
        (
            Variable("embedding", WORDS, 512, True),
            Variable("softmax.weight", WORDS, 512, True),
            Variable("softmax.bias", WORDS, 1, True),
            Variable("dense", 9_400_000, 1, even=True),
        ),
    ),
    # 94.1M dense elements, 74.9M sparse ones: two embeddings of 1024
    "nmt": _with_model_a(
        "nmt",
        0.65,
        (
            Variable("embedding.encoder", round(74.9e6 / 2 / 1024), 1024, True),
            Variable("embedding.decoder", round(74.9e6 / 2 / 1024), 1024, True),
            Variable("dense", 94_100_000, 1, even=True),
        ),
    ),
    "resnet-50": Variables(
        "resnet-50", (Variable("dense", 23_800_000, 1, even=True),), (SIZES_SWAPPED,)
    ),
    "inception-v3": Variables(
        "inception-v3", (Variable("dense", 25_600_000, 1, even=True),), (SIZES_SWAPPED,)
    ),
}


def published(name: str) -> Variables | None:
    """A model of Table 1; None of another name."""
    return PUBLISHED.get(name)


def of_model(model: ModelSpec, samples: int) -> Variables:
    """The weights and biases of a model whose workers run `samples` each: embeddings are sparse."""
    found: list[Variable] = []
    bounded: list[str] = []
    for layer in model.layers:
        shape = layer.shape
        for part, of in zip(("weight", "bias"), shape.parameter_shapes, strict=False):
            rows, width = of[0], math.prod(of[1:])
            name = f"{layer.name}.{part}"
            if shape.kind == "embedding":
                bounded.append(name)
                a = uniform_a(rows, samples * shape.input_items)
                found.append(Variable(name, rows, width, sparse=True, a=a))
            else:
                found.append(Variable(name, rows, width))
    notes = (UNIFORM.format(", ".join(bounded)),) if bounded else ()
    return Variables(model.name, tuple(found), notes)


def uniform_a(rows: int, draws: int) -> float:
    """Expected fraction of distinct rows among so many uniform draws: 1 - (1 - 1/rows)^draws."""
    if rows == 1:
        return 1.0
    return -math.expm1(draws * math.log1p(-1.0 / rows))


def together(a: float, workers: int) -> float:
    """Expected fraction that so many workers use together, each a fraction `a` by itself.

    1 - (1 - a)^workers, of rows drawn without regard to each other; the more they are alike, the less.
    """
    return 1.0 if a >= 1 else -math.expm1(workers * math.log1p(-a))
