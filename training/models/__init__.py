"""The registered models: full ones as published, and minis that a small machine can train.

A user's own model becomes an entry like theirs (`entry` with an Own).

A name that ends in -226 is the ParaDL paper's form of a model, for images of 3 x 226 x 226.

A mini has the layers of its full model in the same order, narrower and on a smaller input, so that
every code path of the full model runs in seconds. Importing this package does not import torch: a
family's file is imported when one of its models is built.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from calib.foundation.errors import InputError
from calib.foundation.layers import LayerShape, Shape
from calib.foundation.own import Loss, Own

if TYPE_CHECKING:
    from torch import nn

OWN_BATCH = 8  # samples per rank of a user's model, where none are asked for


@dataclass(frozen=True)
class ModelEntry:
    """A model to train. `build` makes it on torch's default device with torch's default generator.

    `input_shape` is one sample's (channels, then spatial sizes); `outputs` is the length of the
    output vector (the classes of cross_entropy); `batch_per_rank` is the default number of samples
    per processing element and iteration. Where `auxiliary_weight` is not 0, the model returns a pair
    in train mode and its loss is loss(main) + auxiliary_weight loss(auxiliary). `places`,
    `classes_last`, `rows`, `function` and `untrained` are those of Own (foundation/own.py), which
    makes the entry of a user's model.
    """

    name: str
    build: Callable[[], nn.Module]
    input_shape: tuple[int, ...]
    loss: Loss
    outputs: int
    batch_per_rank: int
    auxiliary_weight: float = 0.0
    places: Shape = ()
    classes_last: bool = False
    rows: int = 0
    function: str = ""
    untrained: tuple[str, ...] = ()

    @property
    def loss_layer(self) -> LayerShape:
        """The loss as the ModelSpec has it."""
        outputs = (self.outputs,) if self.outputs else ()
        output = (*self.places, *outputs) if self.classes_last else (*outputs, *self.places)
        attributes: dict[str, bool | float] = {}
        if self.auxiliary_weight:
            attributes["auxiliary_weight"] = self.auxiliary_weight
        if self.classes_last:
            attributes["classes_last"] = True
        return LayerShape(
            kind=self.loss,
            input_shapes=(output,) * (2 if self.auxiliary_weight else 1),
            output_shape=(),
            attributes=attributes,
        )


def _lazily(family: str, function: str) -> Callable[[], nn.Module]:
    """A builder that imports training/models/<family>.py (and so torch) when it is called."""

    def build_model() -> nn.Module:
        module: nn.Module = getattr(importlib.import_module(f"{__name__}.{family}"), function)()
        return module

    return build_model


IMAGE = (3, 224, 224)
PARADL_IMAGE = (3, 226, 226)  # the ParaDL paper's
SMALL_IMAGE = (3, 64, 64)
HEAD_WEIGHT = 0.4  # of Inception's auxiliary head, in torchvision's training script


def _classifier(
    name: str, family: str, function: str, shape: tuple[int, ...], batch: int, head: float = 0.0
) -> ModelEntry:
    """A model of 1000 classes, of a mini 100."""
    classes = 100 if name.endswith("-mini") else 1000
    return ModelEntry(name, _lazily(family, function), shape, "cross_entropy", classes, batch, head)


def _regressor(name: str, function: str, size: int, batch: int) -> ModelEntry:
    """CosmoFlow on size^3 voxels of 4 channels."""
    builder = _lazily("cosmoflow", function)
    return ModelEntry(name, builder, (4, size, size, size), "mse", 4, batch)


_ENTRIES = (
    _classifier("alexnet", "alexnet", "alexnet", IMAGE, 128),
    _classifier("vgg16", "vgg", "vgg16", IMAGE, 32),
    _classifier("resnet50", "resnet", "resnet50", IMAGE, 32),
    _classifier("resnet152", "resnet", "resnet152", IMAGE, 32),
    _classifier("inception-v3", "inception", "inception_v3", (3, 299, 299), 32, HEAD_WEIGHT),
    ModelEntry("lenet5", _lazily("lenet", "lenet5"), (1, 32, 32), "cross_entropy", 10, 32),
    _regressor("cosmoflow", "cosmoflow", 512, 1),
    _regressor("cosmoflow-256", "cosmoflow_256", 256, 1),
    _regressor("cosmoflow-128", "cosmoflow_128", 128, 1),
    _classifier("vgg16-226", "vgg", "vgg16_226", PARADL_IMAGE, 32),
    _classifier("resnet50-226", "resnet", "resnet50", PARADL_IMAGE, 64),
    _classifier("resnet152-226", "resnet", "resnet152", PARADL_IMAGE, 64),
    _classifier("alexnet-mini", "alexnet", "alexnet_mini", SMALL_IMAGE, 8),
    _classifier("vgg16-mini", "vgg", "vgg16_mini", SMALL_IMAGE, 8),
    _classifier("resnet50-mini", "resnet", "resnet50_mini", SMALL_IMAGE, 8),
    _classifier("resnet152-mini", "resnet", "resnet152_mini", SMALL_IMAGE, 8),
    _classifier(
        "inception-v3-mini", "inception", "inception_v3_mini", (3, 155, 155), 8, HEAD_WEIGHT
    ),
    _regressor("cosmoflow-mini", "cosmoflow_mini", 32, 4),
)
_BY_NAME = {item.name: item for item in _ENTRIES}


def model_names() -> tuple[str, ...]:
    """Names of the registered models, full ones first."""
    return tuple(_BY_NAME)


def entry(name: str, own: Own | None = None) -> ModelEntry:
    """The model `name`: a user's, as `own` says, else a registered one.

    Raises InputError with the known names and the nearest one.
    """
    if own is not None:
        return _entry_of(name, own)
    if name in _BY_NAME:
        return _BY_NAME[name]
    near = difflib.get_close_matches(name.lower(), _BY_NAME, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]}?" if near else ";"
    raise InputError(f"unknown model {name!r}{hint} known models: {', '.join(_BY_NAME)}")


@cache
def _entry_of(name: str, own: Own) -> ModelEntry:
    """A user's model, one entry for each; its code is imported when it is built."""

    def build_model() -> nn.Module:
        # late: they import PyTorch
        from calib.oracle.trace.user_module import build_module, build_plain
        from calib.training.models.own import ToCall

        words = own.built_by
        return ToCall(build_module(words)) if own.function else build_plain(words)

    return ModelEntry(
        name,
        build_model,
        own.input_shape,
        own.loss,
        own.outputs,
        OWN_BATCH,
        places=own.places,
        classes_last=own.classes_last,
        rows=own.rows,
        function=own.function,
        untrained=own.untrained,
    )


def built(about: ModelEntry, seed: int) -> nn.Module:
    """A model on the CPU, in train mode, with weights that `seed` alone determines.

    Every rank with the same seed has the same weights. torch's global generators keep their state. An
    adaptive pooling that is the identity is not run.
    """
    import torch

    from calib.training.models.pooling import skip_identities

    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(seed)  # not torch.manual_seed: it reseeds GPUs too
        return skip_identities(about.build())
