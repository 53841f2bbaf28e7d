"""Checkpointed regions against torch: the most bytes of an iteration, and what the backward runs again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from tests.oracle.checkpointed_models import CHECKPOINTED, MODELS, Run, built, plainly, traced
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from calib.foundation.division import Division
from calib.foundation.execution import execution_of
from calib.microbench.devices.cpu import CPU
from calib.microbench.item_types import casting, weight_type
from calib.microbench.memory import account
from calib.oracle.memory.live_bytes import live_bytes
from calib.oracle.memory.live_layers import kept_by
from calib.oracle.model.regions import regions, run_again, saves
from calib.oracle.model.spec import ModelSpec

BATCH = 5
# operators that a layer runs once, by its kind or its operator's name
RUN_ONCE = {
    "native_layer_norm": "layer_norm",
    "native_batch_norm": "batch_norm",
    "relu": "relu",
    "gelu": "gelu",
    "bernoulli_": "dropout",
    "mean": "mean",
    "tanh": "tanh",
    "sigmoid": "sigmoid",
}


def batch_of(model: ModelSpec, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    size, outputs = (BATCH, *model.input_shape), model.layers[-1].shape.input_shapes[0]
    inputs = torch.randn(size, generator=generator).to(dtype)
    if model.rows:
        inputs = torch.randint(model.rows, size, generator=generator)
    return inputs, torch.randint(outputs[0], (BATCH, *outputs[1:]), generator=generator)


def measured(name: str, run: Run, execution: str) -> int:
    how, module = execution_of(execution), built(name, run)
    module = module.to(weight_type(how))
    inputs, targets = batch_of(traced(name), weight_type(how))
    weights, loss = [*module.parameters()], nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(weights)

    def forward() -> Tensor:
        with casting(how, "cpu"):
            found: Tensor = loss(module(inputs), targets)
        return found

    held = {"weights": weights, "buffers": [*module.buffers()], "batch": [inputs, targets]}
    return account(held, forward, Tensor.backward, weights, CPU, optimizer.step)["peak_live"]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("execution", ["float32", "float64"])
def test_peak(name: str, execution: str) -> None:
    division = Division("serial", 1, BATCH)
    with_all = measured(name, plainly, execution)
    assert live_bytes(traced(name, plainly).run_as(execution), division, "sgd") == with_all
    found = measured(name, CHECKPOINTED, execution)
    assert live_bytes(traced(name).run_as(execution), division, "sgd") == found
    assert found < with_all


@pytest.mark.parametrize("name", MODELS)
def test_peak_under_autocast(name: str) -> None:
    division, how = Division("serial", 1, BATCH), "bfloat16-mixed"
    found = live_bytes(traced(name).run_as(how), division, "sgd")
    assert found == pytest.approx(measured(name, CHECKPOINTED, how), rel=0.02)


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
    module, (inputs, targets) = built(name, run), batch_of(traced(name))
    counter = FlopCounterMode(display=False)
    with Calls() as calls, counter:
        nn.functional.cross_entropy(module(inputs), targets).backward()
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
    products = sum(shape.forward_flops(BATCH) for shape in again if shape.is_product)
    assert flops - fewer == products


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
