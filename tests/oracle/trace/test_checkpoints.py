"""Checkpoints in a trace: which are refused, and what is left as it was."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
import torch.utils.checkpoint
from tests.oracle.checkpointed_models import MODELS, plainly, traced
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from calib.foundation.errors import InputError
from calib.oracle.model.spec import ModelSpec
from calib.oracle.trace.tracing import NotTraced, trace


class Called(nn.Module):
    """A checkpoint around a linear layer, called as `how` says."""

    def __init__(self, how: Any) -> None:
        super().__init__()
        self.first, self.second, self.how = nn.Linear(6, 6), nn.Linear(6, 3), how

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.second(self.how(lambda x: torch.tanh(self.first(x)), x))
        return found


def kept(*_: Any) -> Any:
    return torch.utils.checkpoint.CheckpointPolicy.MUST_SAVE


@pytest.mark.parametrize(
    ("how", "words"),
    [
        (partial(checkpoint, use_reentrant=True), "pass use_reentrant=False"),
        (partial(checkpoint, use_reentrant=False, early_stop=False), "early_stop=False"),
        (
            partial(
                checkpoint,
                use_reentrant=False,
                context_fn=partial(create_selective_checkpoint_contexts, kept),
            ),
            "choose what they keep",
        ),
    ],
)
def test_refused_in_one_line(how: Any, words: str) -> None:
    before = dict(vars(torch.utils.checkpoint))
    with pytest.raises(InputError, match=words) as caught:
        trace(Called(how), (6,), "called", "mse")
    assert "\n" not in str(caught.value)
    assert dict(vars(torch.utils.checkpoint)) == before


def test_a_region_without_gradients_is_none() -> None:
    """PyTorch's checkpoint does nothing there."""

    def quietly(function: Any, x: Tensor) -> Any:
        with torch.no_grad():
            made = checkpoint(torch.tanh, x, use_reentrant=False)
        return function(x + made)

    spec = trace(Called(quietly), (6,), "quiet", "mse")
    assert not any(layer.recomputed for layer in spec.layers)


@pytest.mark.parametrize("name", MODELS)
def test_layers_are_those_without_checkpoints(name: str) -> None:
    spec, plain = traced(name), traced(name, plainly)
    same = [layer.model_copy(update={"recomputed": ""}) for layer in spec.layers]
    assert same == list(plain.layers) and spec != plain
    assert ModelSpec.model_validate_json(spec.model_dump_json()) == spec


def test_a_region_is_whole() -> None:
    spec = traced("mlp")
    content = spec.model_dump()
    content["layers"][2]["recomputed"] = ""  # in the middle of the first
    with pytest.raises(InputError, match=r"blocks\.0\.norm.*one after another"):
        ModelSpec.model_validate(content)


@pytest.mark.parametrize("how", ["whole", "part", "in place"])
def test_a_compiled_module_is_to_be_profiled(how: str) -> None:
    module = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 3))
    if how == "whole":
        compiled: nn.Module = torch.compile(module)
    elif how == "part":
        compiled = nn.Sequential(torch.compile(module), nn.Linear(3, 3))
    else:
        module.compile()
        compiled = module
    with pytest.raises(NotTraced, match=r"compiled \(torch.compile\)"):
        trace(compiled, (6,), "compiled", "mse")
