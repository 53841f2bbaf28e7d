"""Checkpointed regions against torch: the most bytes of an iteration, and what runs again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest
from tests.oracle.checkpointed_models import (
    CHECKPOINTED,
    MODELS,
    Run,
    built,
    entry_of,
    plainly,
    traced,
)
from torch import Tensor
from torch.optim import SGD
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from calib.foundation.division import Division
from calib.foundation.execution import execution_of
from calib.microbench.device import CPU
from calib.microbench.item_types import casting, weight_type
from calib.oracle.memory.live_bytes import live_bytes
from calib.oracle.memory.live_layers import kept_by
from calib.oracle.model.recomputed import regions, run_again, saves
from calib.training.footprint import account
from calib.training.step import in_type, loss_function, synthetic_batch

BATCH = 5
# operators that a layer runs once, by its kind or its operator's name
RUN_ONCE = {
    "native_layer_norm": "layer_norm",
    "_native_batch_norm_legit": "batch_norm",
    "relu": "relu",
    "gelu": "gelu",
    "bernoulli_": "dropout",
    "mean": "mean",
    "tanh": "tanh",
    "sigmoid": "sigmoid",
}


def batch_of(name: str) -> tuple[Tensor, Tensor]:
    return synthetic_batch(entry_of(name), BATCH, 0)


def measured(name: str, run: Run, execution: str) -> int:
    how, module = execution_of(execution), built(name, run)
    module = module.to(weight_type(how))
    inputs, targets = batch_of(name)
    inputs = in_type(inputs, weight_type(how))
    weights, loss = [*module.parameters()], loss_function(entry_of(name))
    optimizer = SGD(weights)

    def forward() -> Tensor:
        with casting(how, "cpu"):
            found: Tensor = loss(module(inputs), targets)
        return found

    held = {"weights": weights, "buffers": [*module.buffers()], "batch": [inputs, targets]}
    return account(held, forward, Tensor.backward, weights, CPU, optimizer.step)["peak_live"]


def counted(name: str, run: Run, execution: str) -> int:
    return live_bytes(traced(name, run).run_as(execution), Division("serial", 1, BATCH), "sgd")


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("execution", ["float32", "float64"])
def test_peak(name: str, execution: str) -> None:
    """As far off as without checkpoints; within a region, another one keeps less than is counted."""
    off, fewer = (
        counted(name, run, execution) - measured(name, run, execution)
        for run in (plainly, CHECKPOINTED)
    )
    assert fewer > off if name == "nested" else fewer == off
    assert off == 0


@pytest.mark.parametrize("name", ["mlp", "blocks", "images", "in-segments", "language"])
def test_peak_is_lower_than_without(name: str) -> None:
    assert counted(name, CHECKPOINTED, "float32") < counted(name, plainly, "float32")


@pytest.mark.parametrize("name", [name for name in MODELS if name != "nested"])
def test_peak_under_autocast(name: str) -> None:
    how = "bfloat16-mixed"
    assert counted(name, CHECKPOINTED, how) == pytest.approx(
        measured(name, CHECKPOINTED, how), rel=0.02
    )


class Calls(TorchDispatchMode):
    """Counts the operators that run."""

    def __init__(self) -> None:
        super().__init__()
        self.of: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        self.of[func._schema.name.split("::")[-1]] += 1
        return func(*args, **(kwargs or {}))


def ran(name: str, run: Run) -> tuple[Counter[str], int]:
    """Operators and FLOPs of an iteration."""
    module, (inputs, targets) = built(name, run), batch_of(name)
    loss = loss_function(entry_of(name))
    counter = FlopCounterMode(display=False)
    with Calls() as calls, counter:
        loss(module(inputs), targets).backward()
    return calls.of, counter.get_total_flops()


@pytest.mark.parametrize("name", [name for name in MODELS if name != "nested"])
def test_what_runs_again(name: str) -> None:
    """Operators with and without checkpoints; FLOPs are those of products."""
    (more, flops), (once, fewer) = ran(name, CHECKPOINTED), ran(name, plainly)
    model = traced(name)
    again = [x.shape for x, runs in zip(model.layers, run_again(model), strict=True) if runs]
    kinds = Counter(shape.name for shape in again)
    for operator, kind in RUN_ONCE.items():
        assert more[operator] - once[operator] == kinds[kind], operator
    # the counter does not know the CPU's kernel of attention
    counted = (x for x in again if x.is_product and x.name != "scaled_dot_product_attention")
    assert flops - fewer == sum(shape.forward_flops(BATCH) for shape in counted)


@pytest.mark.parametrize("name", MODELS)
def test_what_is_saved_is_what_is_kept(name: str) -> None:
    """The rule of a region's end says the same as the count of bytes."""
    for layer in traced(name).layers[:-1]:
        if layer.has_gradient:
            kept = kept_by(layer.shape)
            of = "results" if kept.output or any(kept.beside) else "inputs" * any(kept.inputs)
            assert saves(layer.shape) == of, layer.name


def test_regions_of_a_model() -> None:
    """Sums, and products that save what they read, are at the end of no second run."""
    model = traced("mlp")
    names = [layer.name for layer in model.layers]
    first, second, third = regions(model)
    assert (first.name, second.name, third.name) == tuple(f"blocks.{n}.norm" for n in range(3))
    assert names[first.first : first.end] == [
        "blocks.0.norm",
        "blocks.0.up",
        "blocks.0.gelu",
        "blocks.0.down",
        "blocks.0.add",
    ]
    assert names[first.again] == names[first.saving] == "blocks.0.down"
    assert [layer.recomputed for layer in model.layers if layer.name.startswith("blocks.1")] == (
        ["blocks.1.norm"] * 5
    )
    plain = traced("mlp", plainly)
    assert not any(layer.recomputed for layer in plain.layers)
    same = [layer.model_copy(update={"recomputed": ""}) for layer in model.layers]
    assert same == list(plain.layers)
