"""Networks of torchvision and transformers (the extra "models"), traced as they are.

Parameters are those that torchvision's and Hugging Face's model cards publish; FLOPs are PyTorch's own
count. Without the packages, or where they do not load beside this PyTorch, the tests are passed over.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from calib.foundation.layers import Shape
from calib.oracle.trace.tracing import trace

PUBLISHED = {
    "resnext50_32x4d": 25_028_904,
    "mobilenet_v3_large": 5_483_032,
    "efficientnet_b0": 5_288_548,
    "convnext_tiny": 28_589_128,
    "densenet121": 7_978_856,
    "vit_b_16": 86_567_656,
    "swin_t": 28_288_354,
}
IMAGE = (3, 224, 224)
WORDS = (32,)


def package(name: str) -> Any:
    """An installed package. Passes the test over without it."""
    try:
        return import_module(name)
    except Exception as error:  # a wheel for another PyTorch fails as it likes
        pytest.skip(f"{name} cannot be imported: {type(error).__name__}")


class Returns(nn.Module):
    """One of the tensors that a model of transformers returns."""

    def __init__(self, model: nn.Module, name: str) -> None:
        super().__init__()
        self.model, self.name = model, name

    def forward(self, words: Tensor) -> Tensor:
        found: Tensor = getattr(self.model(words), self.name)
        return found


def macs(module: nn.Module, shape: Shape, indices: bool) -> float:
    """Multiply-adds of one sample, by PyTorch, without data."""
    with torch.device("meta"):
        sample = torch.zeros((2, *shape), dtype=torch.int64 if indices else torch.float32)
        counter = FlopCounterMode(display=False)
        with counter:
            module.to("meta").train()(sample)
    return counter.get_total_flops() / 4


@pytest.mark.parametrize("name", PUBLISHED)
def test_of_torchvision(name: str) -> None:
    module = getattr(package("torchvision.models"), name)()
    spec = trace(module, IMAGE, name, "cross_entropy")
    assert spec.parameter_items == PUBLISHED[name] and spec.classes == 1000
    assert spec.multiply_adds() == pytest.approx(macs(module, IMAGE, False), rel=1e-9)


def test_gpt2() -> None:
    """Its head is the table of its words: counted once."""
    hub = package("transformers")
    module = Returns(hub.GPT2LMHeadModel(hub.GPT2Config()), "logits")
    spec = trace(module, WORDS, "gpt2", "mse")
    assert spec.parameter_items == 124_439_808
    assert spec.multiply_adds() == pytest.approx(macs(module, WORDS, True), rel=1e-9)


def test_bert() -> None:
    hub = package("transformers")
    module = Returns(hub.BertModel(hub.BertConfig()), "pooler_output")
    spec = trace(module, WORDS, "bert", "mse")
    assert spec.parameter_items == 109_482_240
    assert spec.multiply_adds() == pytest.approx(macs(module, WORDS, True), rel=1e-9)
