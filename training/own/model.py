"""A user's own module, and optionally the user's training function, as a model to train.

`words` are MODULE:FUNCTION, as `calib model trace` takes them. Serial and data-parallel training run any
module; the other strategies divide it layer by layer, so it must be traceable.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from calib.foundation.errors import InputError
from calib.oracle.model.spec import ModelSpec
from calib.oracle.trace.lines import at, failed_at, line_of
from calib.oracle.trace.tracing import trace
from calib.oracle.trace.user_module import aside, build_module, member
from calib.training.allowed import WHOLE
from calib.training.models import Loss, ModelEntry, built
from calib.training.own.options import own_name

BATCH_PER_PE = 8  # the default
LOSSES: tuple[Loss, ...] = ("cross_entropy", "mse")
TrainFunction = Callable[[nn.Module, Tensor, Tensor, nn.Module], Tensor]


@dataclass(frozen=True)
class OwnModel(ModelEntry):
    """An entry for a user's module. `function` names step(module, inputs, targets, loss) -> loss.

    It is called in place of loss(module(inputs), targets), forward alone: calib runs the backward.
    """

    words: str = ""
    function: str = ""

    def loss_module(self) -> nn.Module:
        """The loss, by the user's function where there is one. Raises InputError."""
        plain = nn.CrossEntropyLoss() if self.loss == "cross_entropy" else nn.MSELoss()
        if not self.function:
            return plain
        return OwnLoss(step_named(self.function), plain, self.function)


def own_entry(
    words: str,
    input_shape: tuple[int, ...],
    loss: Loss,
    outputs: int,
    batch_per_rank: int = BATCH_PER_PE,
    function: str = "",
) -> OwnModel:
    """Make the entry of a user's own model. A seed gives every rank the same weights.

    Parameters
    ----------
    words
        MODULE:FUNCTION, such as my_pkg.net:build; the function returns a new module.
    input_shape
        Of one sample.
    loss
        cross_entropy or mse.
    outputs
        Classes or outputs, as in ModelEntry.
    batch_per_rank
        Samples per rank where none are asked for.
    function
        MODULE:FUNCTION of a training step, step(module, inputs, targets, loss) -> loss.

    Raises
    ------
    InputError
        One line: what cannot be imported or called, and where; a module that is not made anew, or
        whose weights no seed determines; an unknown loss.
    """
    if loss not in LOSSES:
        raise InputError(f"unknown loss {loss!r}; known: {', '.join(LOSSES)}")
    if not input_shape or min(*input_shape, outputs, batch_per_rank) < 1:
        raise InputError("the input's shape, the outputs and the batch are numbers of at least 1")

    def build() -> nn.Module:
        module = build_module(words)
        return ToCall(module) if function else module

    about = OwnModel(
        own_name(words),
        build,
        input_shape,
        loss,
        outputs,
        batch_per_rank,
        words=words,
        function=function,
    )
    check_seeded(about)
    if function:
        about.loss_module()
    return about


def check_seeded(about: OwnModel) -> None:
    """Raise InputError unless the same seed gives another module with the same weights."""
    member(about.words)  # imported first, as an import may draw random numbers
    first = built(about, 0)
    again = built(about, 0)
    if {id(p) for p in first.parameters()} & {id(p) for p in again.parameters()}:
        raise InputError(
            f"{about.words} is one module, not built anew: give a function that builds it, so that "
            "every rank has the same weights"
        )
    if not list(first.parameters()):
        raise InputError(f"{about.words} has no weights to train")
    if not any(weight.requires_grad for weight in first.parameters()):
        raise InputError(f"{about.words} has no weights to train: requires_grad is False for all")
    if digest(first) != digest(again):
        raise InputError(
            f"{about.words} has other weights each time: make them by torch's own generator, which "
            "the seed sets (no numpy, no random, no time)"
        )


def digest(module: nn.Module) -> str:
    """A hash of the weights and buffers of a module."""
    found = hashlib.blake2b()
    for name, tensor in module.state_dict().items():
        if isinstance(tensor, Tensor):
            found.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
            found.update(tensor.detach().reshape(-1).contiguous().view(torch.uint8).numpy().data)
    return found.hexdigest()


def own_layers(about: OwnModel, strategy: str = "this strategy") -> ModelSpec:
    """The layers of a user's module, for strategies that divide them. Raises InputError."""
    if about.function:
        raise InputError(
            f"{strategy} divides the layers itself: a training function works with {WHOLE} only"
        )
    try:
        with aside():
            module = build_module(about.words)
            return trace(module, about.input_shape, about.name, about.loss)
    except InputError as error:
        raise InputError(
            f"{strategy} needs a module whose layers are known; {WHOLE} train any: {error}"
        ) from error


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
