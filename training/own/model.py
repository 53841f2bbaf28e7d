"""A user's module, and the user's training function, as a model to train.

`words` are MODULE:FUNCTION, as `calib model trace` takes them. Serial and data-parallel training run any
module; the other strategies divide it layer by layer, and so need one that can be traced.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from calib.foundation.division import STRATEGIES
from calib.foundation.errors import InputError
from calib.oracle.model.spec import ModelSpec
from calib.oracle.trace.module import aside, build_module, member
from calib.oracle.trace.tracing import trace
from calib.training.models import Loss, ModelEntry, built
from calib.training.own.options import own_name
from calib.training.own.step import build_own, digest, own_loss

BATCH_PER_PE = 8  # where nothing is said
# strategies that leave a module whole
WHOLE = tuple(name for name, traits in STRATEGIES.items() if traits.whole)
LOSSES: tuple[Loss, ...] = ("cross_entropy", "mse")


@dataclass(frozen=True)
class OwnModel(ModelEntry):
    """An entry for a user's module. `function` names step(module, inputs, targets, loss) -> loss.

    It is called where else loss(module(inputs), targets) would be: forward only, the backward is ours.
    """

    words: str = ""
    function: str = ""

    def loss_module(self) -> nn.Module:
        """What calib.training.step.loss_function gives for it."""
        return own_loss(self.loss, self.function)


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
        return build_own(words, bool(function))

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
    member(about.words)  # what the import itself draws of the generator is no part of it
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


def own_layers(about: OwnModel, strategy: str = "this strategy") -> ModelSpec:
    """The layers of a user's module, which strategies other than WHOLE divide. Raises InputError."""
    if about.function:
        raise InputError(
            f"{strategy} divides the layers itself: a training function is of {' and '.join(WHOLE)}"
        )
    try:
        with aside():
            module = build_module(about.words)
            return trace(module, about.input_shape, about.name, about.loss)
    except InputError as error:
        raise InputError(
            f"{strategy} needs a module whose layers are known; {' and '.join(WHOLE)} train any: {error}"
        ) from error
