"""A module that cannot be traced is one layer: run, and watched."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from calib.foundation.errors import InputError
from calib.oracle.trace.profiled import profile
from calib.oracle.trace.tracing import trace


class Halting(nn.Module):
    """Repeats a layer until its output is small: control flow on data."""

    def __init__(self) -> None:
        super().__init__()
        self.step, self.head = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(4):
            x = self.step(x).tanh()
            if x.abs().max() < 0:  # never
                break
        made: Tensor = self.head(x)
        return made


def test_a_module_with_control_flow_is_one_layer() -> None:
    module = Halting()
    before = {key: value.clone() for key, value in module.state_dict().items()}
    with pytest.raises(InputError, match="control flow"):
        trace(module, (6,), "halting", "mse")
    spec = profile(module, (6,), "halting", "mse")
    assert [layer.name for layer in spec.layers] == ["module", "loss"]
    whole = spec.layers[0].shape
    assert whole.operator is not None and whole.operator.is_whole
    assert whole.output_shape == (3,) and whole.input_shapes == ((6,),)
    assert spec.parameter_shapes == ((6, 6), (6,), (3, 6), (3,))
    # four products of 6 x 6, and one of 6 x 3
    assert spec.multiply_adds() == 4 * 36 + 18
    # the input, and four outputs of tanh; nothing that does not grow with the batch
    assert whole.operator.saved.beside == (4 * 5 * 6, 0)
    assert all(torch.equal(before[key], value) for key, value in module.state_dict().items())
    assert all(parameter.grad is None for parameter in module.parameters())


def test_a_module_that_looks_its_input_up_gets_indices() -> None:
    module = nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(20, 2))
    spec = profile(module, (5,), "table", "cross_entropy", "mine:build")
    assert (spec.classes, spec.rows, spec.built_by) == (2, 9, "mine:build")


def test_weights_without_gradient_are_beside_the_layer() -> None:
    spec = profile(Gives(lambda linear, x: x * linear.weight.sum()), (6,), "net", "mse")
    assert spec.unused == {"linear.bias": (6,)} and spec.parameter_shapes == ((6, 6),)
    assert (spec.unused_items, spec.all_items) == (6, 42)


class Gives(nn.Module):
    def __init__(self, made: Any) -> None:
        super().__init__()
        self.linear, self.made = nn.Linear(6, 6), made

    def forward(self, x: Tensor) -> Any:
        return self.made(self.linear, x)


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (Gives(lambda linear, x: {"logits": linear(x)}), "one tensor, not dict"),
        (Gives(lambda linear, x: linear(x).argmax(1)), "int64 without a gradient"),
        (Gives(lambda linear, x: linear(x).sum()), "first dimension is the batch"),
        (Gives(lambda linear, x: linear(x[:, :3])), "line .*mat1 and mat2"),
        (nn.ReLU(), "without a gradient"),
    ],
)
def test_refused_in_one_line(module: nn.Module, words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        profile(module, (6,), "refused", "mse")
    assert "\n" not in str(caught.value)
