"""A user's own module as a model: how it is built, what it reads, what its output is compared with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from calib.foundation.layers import Shape

Loss = Literal["cross_entropy", "mse"]


@dataclass(frozen=True)
class Own:
    """What a rank must be told of a user's module.

    `built_by` is MODULE:FUNCTION. Its input is integers below `rows`, or normal numbers (0). Its
    output of one sample is (outputs, *places), or (*places, outputs) with `classes_last`: cross_entropy
    has a class below `outputs` for each place. `function` is MODULE:FUNCTION of a training step,
    step(module, inputs, targets, loss) -> loss.
    """

    built_by: str
    input_shape: Shape
    loss: Loss
    outputs: int
    places: Shape = ()
    classes_last: bool = False
    rows: int = 0
    function: str = ""


def own_name(words: str) -> str:
    """The name of a model in records and file names: MODULE.FUNCTION of a user's module.

    It never equals a registered model's, which keeps its name.
    """
    return words.replace(":", ".") if is_own(words) else words


def is_own(words: str) -> bool:
    """Whether --model names a user's module: MODULE:FUNCTION."""
    return ":" in words
