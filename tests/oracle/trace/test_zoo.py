"""Networks of torchvision, timm and transformers (the extra "models"), traced as they are.

Parameters are those that the model cards of torchvision and Hugging Face, and the U-Net's authors,
publish; FLOPs are PyTorch's own count. Without the packages the tests are passed over.
"""

from __future__ import annotations

from functools import cache
from itertools import pairwise

import pytest
import torch
from benchmarks.minis.libraries import library
from benchmarks.minis.networks import BOTTOM, CATEGORIES, FULL, MINI, NETWORKS, NUMBERS, TOP, WIDTH
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from calib.foundation.layers import Shape
from calib.oracle.model.spec import ModelSpec
from calib.oracle.trace.tracing import trace

PRODUCTS = (1 + CATEGORIES) * CATEGORIES // 2
SIZES = ((NUMBERS, *BOTTOM, WIDTH), (WIDTH + PRODUCTS, *TOP, 1))  # of DLRM
READERS = ("bert_base", "gpt2")  # of words
PUBLISHED = {
    "resnext50": 25_028_904,
    "mobilenet_v3": 5_483_032,
    "efficientnet_b0": 5_288_548,
    "convnext_tiny": 28_589_128,
    "densenet121": 7_978_856,
    "unet": 31_037_698,
    "vit_b16": 86_567_656,
    "bert_base": 109_483_778,
    "gpt2": 124_439_808,
    "dlrm": 10_000 * CATEGORIES * WIDTH
    + sum(before * after + after for of in SIZES for before, after in pairwise(of)),
}


@pytest.fixture(autouse=True)
def _libraries() -> None:
    for name in ("torchvision", "timm", "transformers"):
        try:
            library(name)
        except Exception as error:  # a wheel for another PyTorch fails as it likes
            pytest.skip(f"{name} cannot be imported: {type(error).__name__}")


@cache
def full(name: str) -> tuple[ModelSpec, float]:
    """A network as published: its layers, and its multiply-adds by PyTorch."""
    build, sample, loss = NETWORKS[name]
    module, shape = build(FULL), sample(FULL)
    return trace(module, shape, name, loss), macs(module, shape, name in READERS)


def macs(module: nn.Module, shape: Shape, indices: bool = False) -> float:
    """Multiply-adds of one sample, by PyTorch, without data."""
    with torch.device("meta"):
        sample = torch.zeros((2, *shape), dtype=torch.int64 if indices else torch.float32)
        counter = FlopCounterMode(display=False)
        with counter:
            module.to("meta").train()(sample)
    return counter.get_total_flops() / 4


def operators(model: ModelSpec) -> set[str]:
    """The kinds of its layers, of operators their names."""
    return {of.shape.operator.base if of.shape.operator else of.shape.kind for of in model.layers}


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_as_published(name: str) -> None:
    spec, counted = full(name)
    assert spec.parameter_items == PUBLISHED[name]
    assert spec.multiply_adds() == pytest.approx(counted, rel=1e-9)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_mini_has_the_operators_of_its_network(name: str) -> None:
    build, sample, loss = NETWORKS[name]
    mini = trace(build(MINI), sample(MINI), name, loss)
    assert operators(mini) == operators(full(name)[0])
    assert mini.parameter_items < PUBLISHED[name] / MINI.narrower


def test_swin() -> None:
    """Windows that are rolled, and a table of positions that every window looks up."""
    module = library("torchvision.models").swin_t()
    spec = trace(module, (3, 224, 224), "swin_t", "cross_entropy")
    assert spec.parameter_items == 28_288_354
    assert spec.multiply_adds() == pytest.approx(macs(module, (3, 224, 224)), rel=1e-9)
