"""Whether a user's own module can be trained, before ranks are started; its layers.

MODULE:FUNCTION is as `calib model trace` takes it. Serial and data-parallel training run any module; the
other strategies divide it layer by layer, so it must be traceable.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import zip_longest
from typing import Any, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode

from calib.foundation.errors import InputError
from calib.foundation.layers import Shape
from calib.foundation.own import Loss, Own, own_name
from calib.microbench.item_types import in_item_type
from calib.microbench.memory import storages
from calib.oracle.model.spec import ModelSpec
from calib.oracle.trace.lines import at, failed_at, line_of
from calib.oracle.trace.profiled import TRIES, profile, without_gradient
from calib.oracle.trace.tracing import trace
from calib.oracle.trace.user_module import aside, build_plain, member
from calib.training.allowed import WHOLE
from calib.training.models import built, entry
from calib.training.step import loss_function, synthetic_batch

Make = Callable[..., ModelSpec]  # trace, or profile
SAMPLES = 2  # of the forward that is tried; batch norm in train mode refuses 1
LOOK_UPS = (F.embedding, F.embedding_bag)
CONVOLUTIONS = (F.conv1d, F.conv2d, F.conv3d)
PRODUCTS = (F.linear, torch.matmul, Tensor.matmul, Tensor.__matmul__)


@cache
def described(
    words: str, input_shape: Shape, loss: Loss, outputs: int | None = None, function: str = ""
) -> Own:
    """A user's module as a model: its forward is run once, on the CPU, to see what it reads and gives.

    Parameters
    ----------
    words
        MODULE:FUNCTION, such as my_pkg.net:build; the function returns a new module.
    input_shape
        Of one sample.
    loss
        cross_entropy or mse.
    outputs
        Classes or outputs, where a function makes the loss; else they follow from the forward.
    function
        MODULE:FUNCTION of a training step, step(module, inputs, targets, loss) -> loss.

    Raises
    ------
    InputError
        One line: what cannot be imported or called, and where; a module that is not made anew, whose
        weights no seed determines, or whose forward changes them; what it returns is no output.
    """
    if loss not in get_args(Loss):
        raise InputError(f"unknown loss {loss!r}; known: {', '.join(get_args(Loss))}")
    if not input_shape or min(*input_shape, outputs or 1) < 1:
        raise InputError("the input's shape and the outputs are numbers of at least 1")
    if function and outputs is None:
        raise InputError(
            "a training function needs the number of outputs, which targets are made by", "outputs"
        )
    own = Own(words, input_shape, loss, outputs or 1, function=function)
    module, size = seeded(own), (SAMPLES, *input_shape)
    tries = (torch.randn(size), torch.zeros(size, dtype=torch.int64))  # of rows of a table
    seen = _tried(own, module, tries, whole=bool(function))
    own = replace(own, rows=seen.rows)
    if not function:
        own = _with_head(own, seen)
    if outputs not in (None, own.outputs):
        raise InputError(f"{words} has {own.outputs} outputs, not {outputs}")
    return _with_untrained(own, module)


def with_function(own: Own, function: str) -> Own:
    """A model of the user's trained by another step, in which other weights may have no gradient.

    Raises InputError where its backward fails.
    """
    own = replace(own, function=function)
    return _with_untrained(own, built(entry(own_name(own.built_by), own), 0))


def _with_untrained(own: Own, module: nn.Module) -> Own:
    """With the weights that get no gradient in several iterations: a forward may choose at random."""
    about, words = entry(own_name(own.built_by), own), own.built_by
    in_item_type(module, torch.get_default_dtype())
    loss = loss_function(about)
    for seed in range(TRIES):
        inputs, targets = synthetic_batch(about, SAMPLES, seed)
        try:
            with torch.random.fork_rng(devices=[]), aside():
                torch.manual_seed(seed)
                torch.autograd.backward(loss(module(inputs), targets))
        except InputError:
            raise
        except (Exception, SystemExit) as error:
            why = f"{type(error).__name__}: {line_of(error)}"
            raise InputError(
                f"the backward of {words} failed{at(failed_at(error))}: {why}"
            ) from error
        if not (found := without_gradient(module)):
            break
    return replace(own, untrained=tuple(sorted(found)))


def _with_head(own: Own, seen: _Forward) -> Own:
    """With the shape of the output. Raises InputError where it is none."""
    words, output = own.built_by, seen.output
    if not isinstance(output, Tensor):
        raise InputError(
            f"{words} returns a {type(output).__name__}: return one tensor, or let a "
            "training function make the loss of it"
        )
    if not output.is_floating_point():
        raise InputError(f"{words} returns integers ({output.dtype}), which no loss can train")
    is_number = own.loss == "mse" and output.dim() == 1  # of each sample
    if not (is_number or output.dim() > 1) or len(output) != SAMPLES:
        raise InputError(
            f"{words} returns {tuple(output.shape)} for {SAMPLES} samples: the first dimension is "
            "the batch, another the outputs"
        )
    shape = tuple(output.shape[1:])
    if own.loss == "cross_entropy" and seen.product and len(shape) > 1:
        return replace(own, outputs=shape[-1], places=shape[:-1], classes_last=True)
    return replace(own, outputs=0 if is_number else shape[0], places=shape[1:])


@cache
def require_as_traced(model: ModelSpec, function: str = "") -> None:
    """Raise InputError unless the user's code still builds the module that `model` is of.

    It must be trainable, too, as `described` says, by the training `function` where there is one.
    """
    own = model.own
    assert own is not None
    try:
        make: Make = profile if model.is_profiled else trace
        now = traced(own.built_by, own.input_shape, model.name, own.loss, make)
    except InputError as error:
        raise InputError(f"{model.name} cannot be built any more: {error}") from error
    changed = f"{own.built_by} has changed since {model.name} was traced"
    for before, after in zip_longest(model.layers, now.layers):
        if before != after:
            name = (before or after).name
            raise InputError(f"{changed}, first in the layer {name!r}: trace it again")
    if others := {*model.untrained.items()} ^ {*now.untrained.items()}:
        raise InputError(f"{changed}, in the weight {min(others)[0]!r}: trace it again")
    own = replace(own, function=function)
    inputs, _ = synthetic_batch(entry(model.name, own), SAMPLES, 0)
    _tried(own, seeded(own), [inputs])


def traced(words: str, input_shape: Shape, name: str, loss: Loss, make: Make = trace) -> ModelSpec:
    """The layers of a user's module, MODULE:FUNCTION, by tracing or profiling. Raises InputError."""
    with aside():  # what a forward prints, too
        module = build_plain(words)
        require_weights(module, words)
        return make(module, input_shape, name, loss, built_by=words)


def own_layers(name: str, own: Own, strategy: str = "this strategy") -> ModelSpec:
    """The layers of a user's module, for strategies that divide them. Raises InputError."""
    if own.function:
        raise InputError(
            f"{strategy} divides the layers itself: a training function works with {WHOLE} only"
        )
    try:
        return traced(own.built_by, own.input_shape, name, own.loss)
    except InputError as error:
        raise InputError(
            f"{strategy} needs a module whose layers are known; {WHOLE} train any: {error}"
        ) from error


def seeded(own: Own) -> nn.Module:
    """The module. Raises InputError unless the same seed gives another one with the same weights."""
    about, words = entry(own_name(own.built_by), own), own.built_by
    member(words)  # imported first, as an import may draw random numbers
    first = built(about, 0)
    require_weights(first, words)
    if any(tensor.is_meta for tensor in (*first.parameters(), *first.buffers())):
        raise InputError(
            f"{words} is on the meta device and has no weights to train: build it on the CPU"
        )
    again = built(about, 0)
    if {id(p) for p in first.parameters()} & {id(p) for p in again.parameters()}:
        raise InputError(
            f"{words} is one module, not built anew: give a function that builds it, so that "
            "every rank has the same weights"
        )
    if digest(first.state_dict()) != digest(again.state_dict()):
        raise InputError(
            f"{words} has other weights each time: make them by torch's own generator, which "
            "the seed sets (no numpy, no random, no time)"
        )
    return first


def require_weights(module: nn.Module, words: str) -> None:
    """Raise InputError unless a module has weights to train, whose shapes are known."""
    tensors = dict(module.named_parameters()) | dict(module.named_buffers())
    if lazy := [name for name, tensor in tensors.items() if is_lazy(tensor)]:
        raise InputError(
            f"{words} has no shape for {lazy[0]} before its first forward: give its lazy modules "
            "their sizes"
        )
    if not list(module.parameters()):
        raise InputError(f"{words} has no weights to train")
    if not any(weight.requires_grad for weight in module.parameters()):
        raise InputError(f"{words} has no weights to train: requires_grad is False for all")


def digest(tensors: Mapping[str, Any]) -> str:
    """A hash of named tensors."""
    found = hashlib.blake2b()
    for name, tensor in tensors.items():
        if isinstance(tensor, Tensor):
            found.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
            found.update(
                _dense(tensor.detach()).reshape(-1).contiguous().view(torch.uint8).numpy().data
            )
    return found.hexdigest()


def _dense(tensor: Tensor) -> Tensor:
    return tensor if tensor.layout == torch.strided else tensor.to_dense()


class _Forward(TorchFunctionMode):
    """A forward: its output, the rows of the tables that look up its input (0: none do), and whether
    the last weights that it multiplies by are a linear layer's, not a convolution's.
    """

    def __init__(self, inputs: Tensor) -> None:
        super().__init__()
        self.inputs = inputs
        self.output: Any = None
        self.rows = 0
        self.product = False

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        if func in LOOK_UPS:
            index, table = [*args, *given.values()][:2]
            if storages([index]).keys() == storages([self.inputs]).keys():  # also a slice of it
                self.rows = min(self.rows or len(table), len(table))
        elif func in CONVOLUTIONS or func in PRODUCTS:
            self.product = func in PRODUCTS
        return func(*args, **given)


def _tried(own: Own, module: nn.Module, tries: Sequence[Tensor], whole: bool = True) -> _Forward:
    """The first forward that works, of inputs of one kind or another; `whole` with the loss.

    Raises InputError where none does, or where it changes the weights.
    """
    about, words = entry(own_name(own.built_by), own), own.built_by
    _, targets = synthetic_batch(about, SAMPLES, 0)
    in_item_type(module, torch.get_default_dtype())  # as a rank has it
    weights = dict(module.named_parameters())
    before = digest(weights), [weight._version for weight in weights.values()]
    errors: list[InputError] = []
    for inputs in tries:
        seen = _Forward(inputs)
        try:
            with torch.random.fork_rng(devices=[]), aside(), seen:
                output = module(inputs)
                seen.output = loss_function(about)(output, targets) if whole else output
            if not inputs.is_floating_point():  # which others than tables may read
                seen.rows = seen.rows or 1
            break
        except InputError as error:  # of a training function
            errors.append(error)
        except (Exception, SystemExit) as error:
            why = f"{type(error).__name__}: {line_of(error)}"
            errors.append(InputError(f"the forward of {words} failed{at(failed_at(error))}: {why}"))
    else:
        raise errors[-1 if seen.rows else 0]  # where it looks integers up, they were the right ones
    now = dict(module.named_parameters())
    replaced = any(now.get(name) is not weight for name, weight in weights.items())
    if replaced or before != (digest(weights), [weight._version for weight in weights.values()]):
        raise InputError(
            f"the forward of {words} changes its own weights, which only the optimizer may: keep "
            "what changes in buffers"
        )
    output = seen.output
    if isinstance(output, Tensor) and output.is_floating_point() and not output.requires_grad:
        raise InputError(
            f"{words} returns a tensor without a gradient: a no_grad or detach is in it"
        )
    return seen
