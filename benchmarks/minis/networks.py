"""Ten published networks and their minis, as user code: nothing of calib is imported here.

A mini has the modules of its network in their order, made by one rule. Every width that the network's
constructor takes (channels, growth, hidden units, and with them groups and heads) is an eighth of the
published one, two heads at least, and every stage has its first two blocks. An image has 64 x 64 pixels
and 10 classes, a text 32 tokens of 512 words, and tables have 512 rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby, islice, pairwise
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.minis.libraries import library

NUMBERS, CATEGORIES = 13, 26  # of a record of Criteo's data
BOTTOM, WIDTH, TOP = (512, 256), 128, (1024, 1024, 512, 256)  # of DLRM in MLPerf


class Scale(NamedTuple):
    """How much smaller than published: widths, blocks of a stage, and what is read and told apart."""

    narrower: int
    blocks: int
    pixels: int
    classes: int
    tokens: int
    rows: int  # of a table: words of a vocabulary, categories

    def width(self, published: int) -> int:
        """One width."""
        return published // self.narrower

    def widths(self, *published: int) -> list[int]:
        """Several widths."""
        return [self.width(each) for each in published]

    def heads(self, published: int) -> int:
        """Of attention; one alone would need no copy behind a transposition."""
        return max(2, self.width(published))

    def stages(self, *published: int) -> list[int]:
        """Blocks of each stage."""
        return [min(each, self.blocks) for each in published]

    def table(self, published: int) -> int:
        """Rows of a table."""
        return min(published, self.rows)


FULL = Scale(narrower=1, blocks=99, pixels=224, classes=1000, tokens=128, rows=100_000)
MINI = Scale(narrower=8, blocks=2, pixels=64, classes=10, tokens=32, rows=512)


def resnext50(of: Scale = MINI) -> nn.Module:
    """ResNeXt-50 32x4d. Its stem has 64 channels in any case."""
    return _timm(
        "resnext50_32x4d",
        num_classes=of.classes,
        channels=of.widths(64, 128, 256, 512),
        layers=of.stages(3, 4, 6, 3),
        cardinality=of.width(32),
        base_width=4 * of.narrower,  # the width of a group where there are 64 channels
    )


def mobilenet_v3(of: Scale = MINI) -> nn.Module:
    """MobileNetV3-Large. Its constructor rounds widths to multiples of 8."""
    family = library("torchvision.models.mobilenetv3")
    published, _ = family._mobilenet_v3_conf("mobilenet_v3_large")
    blocks, last = family._mobilenet_v3_conf("mobilenet_v3_large", width_mult=1 / of.narrower)
    stages = groupby(zip(published, blocks, strict=True), lambda pair: pair[0].out_channels)
    kept = [block for _, stage in stages for _, block in islice(stage, of.blocks)]
    return _module(family.MobileNetV3(kept, last, num_classes=of.classes))


def efficientnet_b0(of: Scale = MINI) -> nn.Module:
    """EfficientNet-B0. Its constructor rounds widths to multiples of 8."""
    family = library("torchvision.models.efficientnet")
    scale = {"width_mult": 1 / of.narrower, "depth_mult": 1.0}
    stages, _ = family._efficientnet_conf("efficientnet_b0", **scale)
    for stage in stages:
        (stage.num_layers,) = of.stages(stage.num_layers)
    return _module(family.EfficientNet(stages, dropout=0.2, num_classes=of.classes))


def convnext_tiny(of: Scale = MINI) -> nn.Module:
    """ConvNeXt-T."""
    dims, depths = of.widths(96, 192, 384, 768), of.stages(3, 3, 9, 3)
    return _timm("convnext_tiny", num_classes=of.classes, dims=dims, depths=depths)


def densenet121(of: Scale = MINI) -> nn.Module:
    """DenseNet-121."""
    made = library("torchvision.models").DenseNet(
        growth_rate=of.width(32),
        block_config=of.stages(6, 12, 24, 16),
        num_init_features=of.width(64),
        num_classes=of.classes,
    )
    return _module(made)


def vit_b16(of: Scale = MINI) -> nn.Module:
    """ViT-B/16."""
    return _timm(
        "vit_base_patch16_224",
        num_classes=of.classes,
        img_size=of.pixels,
        embed_dim=of.width(768),
        num_heads=of.heads(12),
        depth=of.stages(12)[0],
    )


def unet(of: Scale = MINI) -> nn.Module:
    """A U-Net of two classes for every pixel."""
    return UNet(of.widths(64, 128, 256, 512, 1024), classes=2)


def bert_base(of: Scale = MINI) -> nn.Module:
    """BERT-base that tells two classes of sentences."""
    hub = library("transformers")
    config = hub.BertConfig(
        vocab_size=of.table(30_522),
        hidden_size=of.width(768),
        num_hidden_layers=of.stages(12)[0],
        num_attention_heads=of.heads(12),
        intermediate_size=of.width(3072),
        num_labels=2,
    )
    return Returns(hub.BertForSequenceClassification(config), "logits")


def gpt2(of: Scale = MINI) -> nn.Module:
    """GPT-2 (124 M). Its head is the table of its words."""
    hub = library("transformers")
    config = hub.GPT2Config(
        vocab_size=of.table(50_257),
        n_embd=of.width(768),
        n_layer=of.stages(12)[0],
        n_head=of.heads(12),
        bos_token_id=0,
        eos_token_id=0,
    )
    return Returns(hub.GPT2LMHeadModel(config), "logits")


def dlrm(of: Scale = MINI) -> nn.Module:
    """DLRM with MLPerf's layers."""
    bottom, top = of.widths(*BOTTOM, WIDTH), of.widths(*TOP)
    return DLRM(of.table(10_000), bottom, top)


def _timm(name: str, **sizes: Any) -> nn.Module:
    return _module(library("timm").create_model(name, **sizes))


def _module(made: Any) -> nn.Module:
    assert isinstance(made, nn.Module)
    return made


class Returns(nn.Module):
    """One of the tensors that a model of transformers returns."""

    def __init__(self, model: nn.Module, name: str) -> None:
        super().__init__()
        self.model, self.name = model, name

    def forward(self, words: Tensor) -> Tensor:
        """The tensor of that name."""
        found: Tensor = getattr(self.model(words), self.name)
        return found


class Double(nn.Sequential):
    """Two convolutions."""

    def __init__(self, channels: int, filters: int) -> None:
        super().__init__()
        for before in (channels, filters):
            self.append(nn.Conv2d(before, filters, 3, padding=1, bias=False))
            self.append(nn.BatchNorm2d(filters))
            self.append(nn.ReLU(inplace=True))


class UNet(nn.Module):
    """U-Net (Ronneberger et al. 2015), padded and with batch norm, as in milesial/Pytorch-UNet."""

    def __init__(self, widths: Sequence[int], classes: int) -> None:
        super().__init__()
        steps = list(pairwise(widths))
        self.first = Double(3, widths[0])
        self.down = nn.ModuleList(Double(*step) for step in steps)
        self.up = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, stride=2) for a, b in steps[::-1])
        self.join = nn.ModuleList(Double(b, a) for a, b in steps[::-1])
        self.head = nn.Conv2d(widths[0], classes, 1)

    def forward(self, image: Tensor) -> Tensor:
        """Classes of every pixel."""
        x, skipped = self.first(image), []
        for down in self.down:
            skipped.append(x)
            x = down(F.max_pool2d(x, 2))
        for up, join in zip(self.up, self.join, strict=True):
            x = join(torch.cat([skipped.pop(), up(x)], dim=1))
        found: Tensor = self.head(x)
        return found


class DLRM(nn.Module):
    """Deep learning recommendation model (Naumov et al., arXiv:1906.00091).

    One tensor has a record's numbers and, behind them, what its categories are hashed from.
    """

    first: Tensor
    second: Tensor

    def __init__(self, rows: int, bottom: Sequence[int], top: Sequence[int]) -> None:
        super().__init__()
        self.rows, width, vectors = rows, bottom[-1], 1 + CATEGORIES
        self.tables = nn.ModuleList(nn.Embedding(rows, width) for _ in range(CATEGORIES))
        self.bottom = _perceptron([NUMBERS, *bottom], nn.ReLU())
        products = vectors * (vectors - 1) // 2
        self.top = _perceptron([width + products, *top, 1], nn.Identity())
        first, second = torch.tril_indices(vectors, vectors, -1)
        self.register_buffer("first", first)
        self.register_buffer("second", second)

    def forward(self, record: Tensor) -> Tensor:
        """The logit of a click."""
        numbers = self.bottom(record[:, :NUMBERS])
        rows = (record[:, NUMBERS:].abs() * self.rows).long() % self.rows
        found = [table(rows[:, place]) for place, table in enumerate(self.tables)]
        vectors = torch.stack([numbers, *found], dim=1)
        products = torch.bmm(vectors, vectors.transpose(1, 2))[:, self.first, self.second]
        logit: Tensor = self.top(torch.cat([numbers, products], dim=1))
        return logit


def _perceptron(widths: Sequence[int], last: nn.Module) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1], last)


class Network(NamedTuple):
    """What builds a network, the shape of a sample, and its loss."""

    build: Callable[[Scale], nn.Module]
    sample: Callable[[Scale], tuple[int, ...]]
    loss: Literal["cross_entropy", "mse"] = "cross_entropy"


def _image(of: Scale) -> tuple[int, ...]:
    return 3, of.pixels, of.pixels


def _text(of: Scale) -> tuple[int, ...]:
    return (of.tokens,)


def _record(of: Scale) -> tuple[int, ...]:
    return (NUMBERS + CATEGORIES,)


NETWORKS = {
    "resnext50": Network(resnext50, _image),
    "mobilenet_v3": Network(mobilenet_v3, _image),
    "efficientnet_b0": Network(efficientnet_b0, _image),
    "convnext_tiny": Network(convnext_tiny, _image),
    "densenet121": Network(densenet121, _image),
    "unet": Network(unet, _image),
    "vit_b16": Network(vit_b16, _image),
    "bert_base": Network(bert_base, _text),
    "gpt2": Network(gpt2, _text),
    "dlrm": Network(dlrm, _record, "mse"),
}
