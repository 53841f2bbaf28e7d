"""How `calib train` names a user's module. No PyTorch here."""

from __future__ import annotations

from dataclasses import dataclass

from calib.training.models import Loss


@dataclass(frozen=True)
class Own:
    """The options of `calib train` for a user's module."""

    input_shape: tuple[int, ...]
    loss: Loss
    outputs: int
    function: str = ""


def own_name(words: str) -> str:
    """The name of a model in records and file names: MODULE.FUNCTION of a user's module.

    It never equals a registered model's, which keeps its name.
    """
    return words.replace(":", ".") if is_own(words) else words


def is_own(words: str) -> bool:
    """Whether --model names a user's module: MODULE:FUNCTION."""
    return ":" in words
