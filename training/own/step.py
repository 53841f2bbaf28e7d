"""The module and the loss of a user's own model, and the one call of the user's training function."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from calib.foundation.errors import InputError
from calib.oracle.trace.lines import at, failed_at, line_of
from calib.oracle.trace.module import build_module, member
from calib.training.models import Loss

TrainFunction = Callable[[nn.Module, Tensor, Tensor, nn.Module], Tensor]


@dataclass(frozen=True)
class ModuleCall:
    """A module and its inputs, to be called by the user's function."""

    module: nn.Module
    inputs: Tensor


class ToCall(nn.Module):
    """A module that is not called until its loss is wanted: DDP around it still sees every gradient."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, inputs: Tensor) -> ModuleCall:
        """The call to be made."""
        return ModuleCall(self.module, inputs)


class OwnLoss(nn.Module):
    """The loss of a Call, by the user's function. Raises InputError for what is no loss."""

    def __init__(self, step: TrainFunction, loss: nn.Module, words: str) -> None:
        super().__init__()
        self._step, self._loss, self._words = step, loss, words

    def forward(self, call: ModuleCall, targets: Tensor) -> Tensor:
        """The mean loss over the samples."""
        try:
            loss: Any = self._step(call.module, call.inputs, targets, self._loss)
        except Exception as error:
            kind = f"{type(error).__name__}: {line_of(error)}"
            raise InputError(f"{self._words} failed{at(failed_at(error))}: {kind}") from error
        if not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.requires_grad:
            got = (
                f"a tensor {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
            )
            if isinstance(loss, Tensor) and loss.numel() == 1:
                got = "a number without a gradient: the backward is not to be called in it"
            raise InputError(f"{self._words} must return the loss, one number, not {got}")
        return loss.reshape(())


def build_own(words: str, by_function: bool) -> nn.Module:
    """The user's module, built anew; wrapped where a function of the user's calls it."""
    module = build_module(words)
    return ToCall(module) if by_function else module


def own_loss(loss: Loss, function: str) -> nn.Module:
    """The loss of an own model. Raises InputError."""
    plain = nn.CrossEntropyLoss() if loss == "cross_entropy" else nn.MSELoss()
    return OwnLoss(step_named(function), plain, function) if function else plain


def step_named(words: str) -> TrainFunction:
    """The function that `words` (MODULE:FUNCTION) name. Raises InputError where it is none for us."""
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


def digest(module: nn.Module) -> str:
    """Of the weights and buffers of a module: equal for equal ones."""
    found = hashlib.blake2b()
    for name, tensor in module.state_dict().items():
        if isinstance(tensor, Tensor):
            found.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
            found.update(tensor.detach().reshape(-1).contiguous().view(torch.uint8).numpy().data)
    return found.hexdigest()
