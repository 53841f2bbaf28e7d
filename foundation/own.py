"""A user's own module as a model: how it is built, what it reads, what its output is compared with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from calib.foundation.layers import Shape
from calib.foundation.quantities import CountOrNone

Loss = Literal["cross_entropy", "mse"]


@dataclass(frozen=True)
class Own:
    """What a rank must be told of a user's module.

    Its input is integers below `rows`, or normal numbers (0). Its output of one sample is (outputs,
    *places), (*places, outputs) with `classes_last`, or () where `outputs` is 0: cross_entropy has a
    class below `outputs` for each place. The training step `function` is step(module, inputs, targets,
    loss) -> loss. `untrained` weights have no gradient in it, and are trained as frozen ones are.
    """

    built_by: Annotated[str, Field(description="MODULE:FUNCTION of the user's code")]
    input_shape: Annotated[Shape, Field(description="of one sample")]
    loss: Annotated[Loss, Field(description="what the output is compared by")]
    outputs: Annotated[
        CountOrNone, Field(description="classes of cross_entropy, or outputs; 0: one number")
    ]
    places: Annotated[
        Shape, Field(description="of one sample, each with a target: tokens, pixels")
    ] = ()
    classes_last: Annotated[
        bool, Field(description="whether outputs are the last dimension, not the first")
    ] = False
    rows: Annotated[CountOrNone, Field(description="inputs are integers below it; 0: numbers")] = 0
    function: Annotated[
        str, Field(description="MODULE:FUNCTION of a training step; empty: loss(module(inputs))")
    ] = ""
    untrained: Annotated[
        tuple[str, ...], Field(description="weights that no gradient reaches, by name")
    ] = ()


def own_name(words: str) -> str:
    """The name of a model in records and file names: MODULE.FUNCTION of a user's module.

    It never equals a registered model's, which keeps its name.
    """
    return words.replace(":", ".") if is_own(words) else words


def is_own(words: str) -> bool:
    """Whether --model names a user's module: MODULE:FUNCTION."""
    return ":" in words
