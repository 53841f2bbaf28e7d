"""A module that cannot be traced, as one layer: run in this process, and watched by hooks.

Its forward and backward run on two and on three samples of random numbers: sizes and what autograd keeps
follow from the difference. Its time is measured in place, as whole iterations; what it is made of stays
unknown, so that only strategies that run it whole are predicted.
"""

from __future__ import annotations

import json
from contextlib import nullcontext
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from calib.foundation.errors import InputError
from calib.foundation.layers import Shape
from calib.foundation.operators import WHOLE, Operator, Saved
from calib.foundation.own import Loss
from calib.microbench.item_types import in_item_type
from calib.microbench.memory import LiveBytes, bytes_of
from calib.oracle.model.graph import INPUT
from calib.oracle.model.spec import ModelSpec
from calib.oracle.trace.atens import Attributes
from calib.oracle.trace.layer_list import LOSS, LayerList
from calib.oracle.trace.lines import at, failed_at, failure_of

FEW, MORE = 2, 3  # samples
# runs after which a weight that got no gradient gets none: a forward may choose at random
TRIES = 6
ROWS = 2  # dimensions of an output of tokens x vocabulary


class _NoModules(nullcontext[None]):
    """In place of a tracker of modules, whose hooks refuse gradients that a forward takes."""

    parents = frozenset(("Global",))


class Seen(NamedTuple):
    """One run: the output's size, FLOPs of the forward, bytes that autograd keeps.

    `rows`: of the smallest table that its input is looked up in; 0 where the input is of numbers.
    """

    output: Shape
    flops: float
    kept_bytes: int
    rows: int


def profile(
    module: nn.Module, input_shape: Shape, name: str, loss: Loss, built_by: str = ""
) -> ModelSpec:
    """The ModelSpec of a module that is one layer.

    Parameters
    ----------
    module
        Any; it is run in train mode and torch's default item type, and its weights stay as they are.
    input_shape
        Of one sample.
    name
        Name of the ModelSpec.
    loss
        The loss on the output.
    built_by
        MODULE:FUNCTION of the user's code that builds the module.

    Raises
    ------
    InputError
        It fails, or returns no tensor of one output per sample with a gradient.
    """
    about = f"the model {name} ({type(module).__name__})"
    in_item_type(module.train(), torch.get_default_dtype())
    module.zero_grad()
    few, more = (_run(module, input_shape, batch, about) for batch in (FEW, MORE))
    for seed in range(1, TRIES - 1):
        if not without_gradient(module):
            break
        _run(module, input_shape, FEW, about, seed)
    held = dict(module.named_parameters())
    unused = {name: tuple(held[name].shape) for name in without_gradient(module)}
    module.zero_grad()
    shape = few.output[1:]
    if (few.output, more.output) != ((FEW, *shape), (MORE, *shape)):
        raise InputError(f"{about} must return a tensor whose first dimension is the batch")
    trained = [name for name, of in held.items() if of.requires_grad and name not in unused]
    each = float(more.kept_bytes - few.kept_bytes)
    saved = Saved(beside=(max(0.0, each), max(0.0, few.kept_bytes - FEW * each)))
    operator = Operator(
        name=WHOLE,
        arguments='[{"input":0}]',
        options=json.dumps({"rows": few.rows}),
        constants=tuple((tuple(of.shape), "") for of in held.values() if not of.requires_grad),
        flops=max(0.0, more.flops - few.flops),  # a forward may choose at random
        saved=saved,
    )
    layers = LayerList(module, input_shape)
    parameters = layers.parameters(WHOLE, trained)
    layers.append(WHOLE, "operator", (INPUT,), shape, parameters, operator=operator)
    rows = loss == "cross_entropy" and len(shape) == ROWS
    attributes: Attributes = {"classes_last": True} if rows else {}
    layers.append(LOSS, loss, (WHOLE,), (), attributes=attributes)
    return ModelSpec(
        name=name,
        input_shape=input_shape,
        classes=layers.classes,
        layers=tuple(layers.layers),
        built_by=built_by,
        unused=unused,
    )


def _run(module: nn.Module, input_shape: Shape, batch: int, about: str, seed: int = 0) -> Seen:
    """A forward and a backward, whose gradients are added up. Raises InputError."""
    counter, watch = FlopCounterMode(display=False), LiveBytes()
    counter.mod_tracker = cast(Any, _NoModules())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            with counter, watch:
                output, rows = _called(module, (batch, *input_shape))
                kept_bytes = watch.live
            flops = float(counter.get_total_flops())
            _require_output(output, about)
            torch.autograd.backward(output.sum())
        except InputError:
            raise
        except (Exception, SystemExit) as error:
            raise InputError(
                f"cannot run {about}{at(failed_at(error))}: {failure_of(error)}"
            ) from None
    return Seen(tuple(output.shape), flops, kept_bytes - bytes_of([output]), rows)


def _called(module: nn.Module, size: Shape) -> tuple[Tensor, int]:
    """Its output, of numbers or, where it looks these up, of indices; and the rows of their table."""
    try:
        return module(torch.randn(size)), 0
    except (RuntimeError, IndexError) as error:
        if "indices" not in str(error) and "Long" not in str(error):
            raise
    kinds = (nn.Embedding, nn.EmbeddingBag)
    tables = [of.num_embeddings for of in module.modules() if isinstance(of, kinds)]
    return module(torch.zeros(size, dtype=torch.int64)), min(tables, default=1)


def _require_output(output: object, about: str) -> None:
    if not isinstance(output, Tensor):
        raise InputError(f"{about} must return one tensor, not {type(output).__name__}")
    if not output.requires_grad:
        raise InputError(
            f"{about} returns {output.dtype} without a gradient: nothing can be trained"
        )


def without_gradient(module: nn.Module) -> tuple[str, ...]:
    """The trained weights that the backwards so far have left without a gradient, by name."""
    weights = module.named_parameters()
    return tuple([name for name, of in weights if of.requires_grad and of.grad is None])
