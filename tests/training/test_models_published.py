"""Full models against the tables of their papers, published counts, and torch's own counter.

Golden values: ../shared/design/models.md; He et al. 2016, table 1; Szegedy et al. 2016, table 1;
GFLOPS of torchvision's tables of weights (multiply-adds, in eval mode: without auxiliary heads).
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from tests.helpers.programs import build, registered
from torch.utils.flop_counter import FlopCounterMode

from calib.foundation.layers import LayerShape, Shape
from calib.microbench.layers.build import build_layer
from calib.oracle.model.layer import Layer
from calib.training.models import entry, model_names
from calib.training.models.inception import InceptionV3
from calib.training.step import loss_function

FULL = [name for name in model_names() if not name.endswith("-mini")]


def layers(name: str, *kinds: str) -> list[Layer]:
    return [layer for layer in registered(name)[0].layers if layer.shape.kind in kinds]


def shapes(name: str, *kinds: str) -> list[Shape]:
    """Output shapes of the layers of these kinds, in order."""
    return [layer.shape.output_shape for layer in layers(name, *kinds)]


def sides(found: list[Shape]) -> list[Shape]:
    """(channels, side) of square images, (items,) of vectors."""
    assert all(len(shape) == 1 or shape[1:] == (shape[1],) * 2 for shape in found)
    return [shape[:2] for shape in found]


def head_multiply_adds(name: str) -> float:
    head = [x for x in layers(name, "conv", "linear") if x.name.startswith("auxiliary.")]
    return sum(layer.shape.forward_flops(1) for layer in head) / 2


@pytest.mark.parametrize(
    ("name", "gmac"),
    [
        ("alexnet", 0.71),
        ("vgg16", 15.47),
        ("resnet50", 4.09),
        ("resnet152", 11.51),
        ("inception-v3", 5.71),
    ],
)
def test_published_multiply_adds(name: str, gmac: float) -> None:
    found = registered(name)[0].multiply_adds() - head_multiply_adds(name)
    assert round(found / 1e9, 2) == gmac


@pytest.mark.parametrize("name", FULL)
def test_forward_flops_equal_torchs_counter(name: str) -> None:
    model, module = registered(name)
    with torch.device("meta"):
        inputs = torch.empty((2, *model.input_shape))
    with FlopCounterMode(display=False) as counter:
        module(inputs)
    weighted = [layer.shape for layer in layers(name, "conv", "linear")]
    assert counter.get_total_flops() == sum(shape.forward_flops(2) for shape in weighted)
    assert counter.get_total_flops() == 2 * 2 * model.multiply_adds()


@pytest.mark.parametrize("name", FULL)
def test_parameters_are_those_of_the_module_in_order(name: str) -> None:
    model, module = registered(name)
    assert model.parameter_shapes == tuple(tuple(p.shape) for p in module.parameters())


def test_alexnet_sizes() -> None:
    """Krizhevsky 2014: 64, 192, 384, 256, 256 filters; FC6 sees 256 x 6 x 6."""
    found = sides(shapes("alexnet", "conv", "max_pool", "adaptive_avg_pool", "linear"))
    before = [(64, 55), (64, 27), (192, 27), (192, 13), (384, 13), (256, 13), (256, 13)]
    assert found == [*before, (256, 6), (256, 6), (4096,), (4096,), (1000,)]


def test_vgg16_sizes() -> None:
    """Simonyan and Zisserman, configuration D; ParaDL's rounds its poolings up (models.md)."""
    widths = [64] * 2 + [128] * 2 + [256] * 3 + [512] * 6
    for name, images in (("vgg16", (224, 112, 56, 28, 14)), ("vgg16-226", (226, 113, 57, 29, 15))):
        sizes = [n for n, count in zip(images, (2, 2, 3, 3, 3), strict=True) for _ in range(count)]
        expected = [(width, n, n) for width, n in zip(widths, sizes, strict=True)]
        assert shapes(name, "conv") == expected
    assert shapes("vgg16", "flatten") == [(512 * 7 * 7,)]
    assert shapes("vgg16-226", "flatten") == [(512 * 8 * 8,)]
    # models.md: about 169 M; FC6 of 4096 x 512 x (64 - 49) more weights than the published one
    more = registered("vgg16-226")[0].parameter_items - registered("vgg16")[0].parameter_items
    assert more == 4096 * 512 * (64 - 49)
    assert math.floor(registered("vgg16-226")[0].parameter_items / 1e6) == 169


@pytest.mark.parametrize(
    ("name", "blocks", "images"),
    [
        ("resnet50", (3, 4, 6, 3), (112, 56, 28, 14, 7)),
        ("resnet152", (3, 8, 36, 3), (112, 56, 28, 14, 7)),
        ("resnet50-226", (3, 4, 6, 3), (113, 57, 29, 15, 8)),
        ("resnet152-226", (3, 8, 36, 3), (113, 57, 29, 15, 8)),
    ],
)
def test_resnet_sizes(name: str, blocks: tuple[int, ...], images: tuple[int, ...]) -> None:
    """He et al., table 1: conv1, then the joins of conv2_x to conv5_x."""
    assert layers(name, "conv")[0].shape.output_shape == (64, images[0], images[0])
    channels = (256, 512, 1024, 2048)
    stages = zip(channels, images[1:], blocks, strict=True)
    assert shapes(name, "add") == [(c, n, n) for c, n, count in stages for _ in range(count)]
    assert len(layers(name, "conv")) == 3 * sum(blocks) + 4 + 1  # 4 shortcuts and the stem


@pytest.mark.parametrize(("name", "blocks"), [("resnet50", 16), ("resnet152", 50)])
def test_residual_joins(name: str, blocks: int) -> None:
    """Each add reads the main way's last batch norm and the shortcut: a batch norm or the input."""
    by_name = {layer.name: layer for layer in registered(name)[0].layers}
    joins = layers(name, "add")
    assert len(joins) == blocks
    for join in joins:
        main, shortcut = join.inputs
        block = join.name.removesuffix(".add")
        assert main == f"{block}.bn3"
        if by_name[shortcut].shape.kind == "batch_norm":
            assert shortcut == f"{block}.shortcut.1"
            start = by_name[by_name[shortcut].inputs[0]].inputs
        else:
            start = (shortcut,)
        assert by_name[f"{block}.conv1"].inputs == start  # both ways begin at one layer
    kinds = Counter(by_name[join.inputs[1]].shape.kind for join in joins)
    assert kinds == {"batch_norm": 4, "relu": blocks - 4}


def test_inception_sizes() -> None:
    """Szegedy et al., table 1 (its last reduction's block is counted among the 8 x 8 ones)."""
    stem = [x for x in layers("inception-v3", "conv", "max_pool") if x.name.startswith("stem")]
    found = sides([x.shape.output_shape for x in stem])
    assert found == [(32, 149), (32, 147), (64, 147), (64, 73), (80, 73), (192, 71), (192, 35)]
    joins = {x.name: x.shape.output_shape for x in layers("inception-v3", "concat")}
    middle = sides([joins.pop(f"middle.{i}.concat") for i in range(8)])
    assert middle == [(256, 35), (288, 35), (288, 35), *[(768, 17)] * 5]
    end = sides([joins.pop(f"end.{i}.concat") for i in range(3)])
    assert end == [(1280, 8), (2048, 8), (2048, 8)]
    assert set(joins.values()) == {(768, 8, 8)} and len(joins) == 4  # forks of 384 and 384
    assert shapes("inception-v3", "flatten") == [(2048,), (768,)]


def test_inception_joins_its_branches() -> None:
    """Eleven blocks of 4, 4, 4, 3, 4, 4, 4, 4, 3, 4, 4 branches, which all begin at one layer."""
    by_name = {layer.name: layer for layer in registered("inception-v3")[0].layers}
    blocks = [f"middle.{i}" for i in range(8)] + [f"end.{i}" for i in range(3)]
    before = "stem.6"
    for block, branches in zip(blocks, (4, 4, 4, 3, 4, 4, 4, 4, 3, 4, 4), strict=True):
        join = by_name[f"{block}.concat"]
        assert len(join.inputs) == len(set(join.inputs)) == branches
        assert all(source.startswith(f"{block}.branches.") for source in join.inputs)
        inside = [x for x in by_name.values() if x.name.startswith(f"{block}.branches.")]
        entered = [x.name for x in inside if before in x.inputs]
        assert len(entered) == branches
        outside = {s for x in inside for s in x.inputs if not s.startswith(f"{block}.")}
        assert outside == {before}
        before = join.name
    forks = [x for x in layers("inception-v3", "concat") if "branches" in x.name]
    assert [len(fork.inputs) for fork in forks] == [2] * 4
    kernels = {x.shape.attributes["kernel"] for x in layers("inception-v3", "conv")}
    assert {(1, 7), (7, 1), (1, 3), (3, 1)} <= kernels
    sevens = [x.shape for x in layers("inception-v3", "conv") if 7 in kernel_of(x.shape)]
    assert all(x.input_shapes[0][1:] == x.output_shape[1:] for x in sevens)  # padded one way only


def kernel_of(shape: LayerShape) -> tuple[int, ...]:
    kernel = shape.attributes["kernel"]
    assert isinstance(kernel, tuple)
    return kernel


def test_inception_head_and_its_loss() -> None:
    """The head branches off the last 17 x 17 block; one loss reads both outputs."""
    model = registered("inception-v3")[0]
    by_name = {layer.name: layer for layer in model.layers}
    assert by_name["auxiliary.0"].inputs == ("middle.7.concat",)
    assert by_name["auxiliary.0"].shape.output_shape == (768, 5, 5)
    loss = model.layers[-1]
    assert loss.inputs == ("fc", "auxiliary.5")
    assert loss.shape.attributes == {"auxiliary_weight": 0.4}
    head = sum(x.shape.parameter_items for x in model.layers if x.name.startswith("auxiliary."))
    # 1x1 768-128, 5x5 128-768, each with batch norm; FC 768-1000
    assert head == 768 * 128 + 2 * 128 + 25 * 128 * 768 + 2 * 768 + 768 * 1000 + 1000
    assert round((model.parameter_items - head) / 1e6, 2) == 23.83  # torchvision without the head


def test_inception_without_training_has_one_output() -> None:
    module = build("inception-v3-mini", 0).eval()
    assert isinstance(module, InceptionV3)
    with torch.no_grad():
        assert tuple(module(torch.zeros(1, 3, 155, 155)).shape) == (1, 100)


def test_auxiliary_loss_by_hand() -> None:
    """Two samples, two classes: log-sum-exp minus the target's logit, averaged; then 1 and 0.4."""
    main, head = torch.tensor([[2.0, 0.0], [0.0, 0.0]]), torch.tensor([[0.0, 1.0], [3.0, 0.0]])
    targets = torch.tensor([0, 1])
    expected_main = (math.log(math.exp(2) + 1) - 2 + math.log(2)) / 2
    expected_head = (math.log(1 + math.e) + math.log(math.exp(3) + 1)) / 2
    loss = loss_function(replace(entry("inception-v3"), outputs=2))
    expected = expected_main + 0.4 * expected_head
    assert loss((main, head), targets).item() == pytest.approx(expected, rel=1e-6)
    assert list(loss.children()) == []  # hooks that time a step see one layer


def test_auxiliary_loss_as_a_layer_is_that_loss() -> None:
    """What microbench builds from the ModelSpec's loss computes what training computes."""
    shape = registered("inception-v3")[0].layers[-1].shape
    generator = torch.Generator().manual_seed(0)
    main, head = (torch.randn((3, 1000), generator=generator) for _ in range(2))
    targets = torch.tensor([5, 0, 999])
    built = build_layer(shape, torch.float32, torch.device("cpu"))
    expected = F.cross_entropy(main, targets) + 0.4 * F.cross_entropy(head, targets)
    assert built(main, head, targets).item() == pytest.approx(expected.item(), rel=1e-6)


def test_batch_of_the_paradl_models() -> None:
    """../shared/data/paradl/abci_single_gpu.csv: batch_per_gpu."""
    names = ("resnet50-226", "resnet152-226", "vgg16-226", "cosmoflow")
    assert [entry(name).batch_per_rank for name in names] == [64, 64, 32, 1]
