"""How `calib train` names a user's module. No PyTorch here."""

from __future__ import annotations

from dataclasses import dataclass

from calib.training.models import Loss


@dataclass(frozen=True)
class Own:
    """What the options of `calib train` say of a user's module, beside its words."""

    input_shape: tuple[int, ...]
    loss: Loss
    outputs: int
    function: str = ""


def own_name(words: str) -> str:
    """What a user's module is called, in a record and a file's name: MODULE.FUNCTION, no other's name.

    A registered model's name is as it is.
    """
    return words.replace(":", ".") if is_own(words) else words


def is_own(words: str) -> bool:
    """Whether --model names a module of the user's: MODULE:FUNCTION."""
    return ":" in words
