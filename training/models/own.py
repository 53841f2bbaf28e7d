"""A user's training function: step(module, inputs, targets, loss) -> loss, in place of plain calls."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from calib.foundation.errors import InputError
from calib.oracle.trace.lines import at, failed_at, line_of
from calib.oracle.trace.user_module import member

TrainFunction = Callable[[nn.Module, Tensor, Tensor, nn.Module], Tensor]


@dataclass(frozen=True)
class ModuleCall:
    """A module and its inputs, to be called by the user's function."""

    module: nn.Module
    inputs: Tensor


class ToCall(nn.Module):
    """Delays the call of a module until its loss is wanted; DDP around it still sees every gradient."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, inputs: Tensor) -> ModuleCall:
        """The call to be made."""
        return ModuleCall(self.module, inputs)


class OwnLoss(nn.Module):
    """The loss of a ModuleCall, by the user's function. Raises InputError where it returns no loss."""

    def __init__(self, loss: nn.Module, words: str) -> None:
        super().__init__()
        self._step, self._loss, self._words = step_named(words), loss, words

    def forward(self, call: ModuleCall, targets: Tensor) -> Tensor:
        """The mean loss over the samples."""
        try:
            loss: Any = self._step(call.module, call.inputs, targets, self._loss)
        except Exception as error:
            kind = f"{type(error).__name__}: {line_of(error)}"
            raise InputError(f"{self._words} failed{at(failed_at(error))}: {kind}") from error
        if isinstance(loss, Tensor) and loss.numel() == 1 and loss.requires_grad:
            return loss.reshape(())
        got = type(loss).__name__
        if isinstance(loss, Tensor):
            got = f"a tensor {tuple(loss.shape)}"
            if loss.numel() == 1:
                got = "a number without a gradient: the backward is not to be called in it"
        raise InputError(f"{self._words} must return the loss, one number, not {got}")


def step_named(words: str) -> TrainFunction:
    """The function that `words` (MODULE:FUNCTION) name. Raises InputError where it does not fit."""
    found = member(words)
    if not callable(found):
        raise InputError(f"{words} is {type(found).__name__}, not a function")
    try:
        inspect.signature(found).bind(*("module", "inputs", "targets", "loss"))
    except TypeError as error:
        raise InputError(
            f"{words} is called as step(module, inputs, targets, loss): {error}"
        ) from error
    except ValueError:  # written in C; calling it will tell
        pass
    step: TrainFunction = found
    return step
