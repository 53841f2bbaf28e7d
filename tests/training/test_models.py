"""The registered models against published numbers, and the cache of their traces.

Golden values: ../shared/design/models.md (published counts; the table of CosmoFlow's sizes).
"""

from __future__ import annotations

import copy
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from tests.helpers.programs import build, registered
from tests.helpers.words import words_of
from tests.oracle.handmade import mlp
from tests.training.launching import ROOT, python
from torch import nn

from calib.foundation.errors import FileError, InputError, MachineError
from calib.oracle.model.spec import ModelSpec
from calib.oracle.trace.tracing import trace
from calib.training.models import entry, model_names, specs
from calib.training.models.pooling import skip_identities

MINIS = tuple(name for name in model_names() if name.endswith("-mini"))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of traces."""
    monkeypatch.setenv("CALIB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def traced(name: str) -> ModelSpec:
    return registered(name)[0]


def kinds(name: str) -> list[str]:
    return [layer.shape.kind for layer in traced(name).layers]


@pytest.mark.parametrize(
    ("name", "millions"),
    [
        ("alexnet", 61.10),
        ("vgg16", 138.36),
        ("resnet50", 25.56),
        ("resnet152", 60.19),
        ("inception-v3", 27.16),
        ("resnet50-226", 25.56),
        ("resnet152-226", 60.19),
        ("vgg16-mini", 2.60),
        ("resnet50-mini", 1.53),
    ],
)
def test_parameter_counts(name: str, millions: float) -> None:
    """Published (models.md) for the full models; the minis' own for the minis."""
    assert round(traced(name).parameter_items / 1e6, 2) == millions


def test_lenet_parameters_by_hand() -> None:
    """LeCun et al. 1998, figure 2: 28, 14, 10, 5; all connections of the second convolution."""
    expected = 6 * 26 + 16 * (6 * 25 + 1) + 120 * 401 + 84 * 121 + 10 * 85
    assert traced("lenet5").parameter_items == expected == 61_706
    sides = [
        x.shape.output_shape[1] for x in traced("lenet5").layers if len(x.shape.output_shape) > 1
    ]
    assert sides == [28, 28, 14, 10, 10, 5]


def test_cosmoflow_parameters_by_hand() -> None:
    """Channels and kernels of models.md; weight and bias of each layer."""
    channels, kernels = (4, 16, 32, 64, 128, 256, 256, 128), (3, 3, 3, 3, 2, 2, 2)
    widths = (128, 2048, 256, 4)
    convolutions = zip(channels, channels[1:], kernels, strict=False)
    expected = sum(i * o * k**3 + o for i, o, k in convolutions)
    expected += sum(i * o + o for i, o in pairwise(widths))
    assert expected == 2_131_252
    assert traced("cosmoflow").parameter_items == expected


def sizes(name: str) -> list[int]:
    """The side of the volume after each convolution and pooling."""
    layers = [layer.shape for layer in traced(name).layers]
    return [layer.output_shape[1] for layer in layers if layer.kind in ("conv", "avg_pool")]


def test_cosmoflow_sizes() -> None:
    """The table of models.md, and the sizes that the docstring of cosmoflow.py promises."""
    assert sizes("cosmoflow") == [510, 255, 253, 126, 62, 31, 29, 14, 13, 6, 5, 2, 1]
    assert sizes("cosmoflow-256") == [254, 127, 125, 62, 30, 15, 13, 6, 5, 2, 1]
    assert sizes("cosmoflow-128") == [126, 63, 61, 30, 14, 7, 5, 2, 1]
    assert sizes("cosmoflow-mini") == [32, 16, 16, 8, 4, 2, 2, 1, 2, 1, 2, 1, 2]


def test_cosmoflow_first_output_is_8_5_gb() -> None:
    """models.md: the first layer's output alone is 8.5 GB in fp32."""
    first = traced("cosmoflow").layers[0].shape
    assert first.output_items * 4 == 16 * 510**3 * 4
    assert round(first.output_items * 4 / 1e9, 1) == 8.5


@pytest.mark.parametrize("mini", MINIS)
def test_mini_has_the_layers_of_the_full_model(mini: str) -> None:
    full = mini.removesuffix("-mini")
    assert kinds(mini) == kinds(full)
    shallow, deep = traced(mini), traced(full)
    assert [layer.inputs for layer in shallow.layers] == [layer.inputs for layer in deep.layers]
    assert [layer.name for layer in shallow.layers] == [layer.name for layer in deep.layers]


def test_resnet_stride_is_in_the_3x3() -> None:
    """Version 1.5 of the layout: in every bottleneck that halves the image, the 3x3 does it."""
    layers = {layer.name: layer.shape for layer in traced("resnet50").layers}
    for stage in (1, 2, 3):
        assert layers[f"stages.{stage}.0.conv1"].attributes["stride"] == (1, 1)
        assert layers[f"stages.{stage}.0.conv2"].attributes["stride"] == (2, 2)
        assert layers[f"stages.{stage}.0.conv2"].attributes["kernel"] == (3, 3)


@pytest.mark.parametrize("name", model_names())
def test_entry_describes_the_model(name: str) -> None:
    found, model = entry(name), traced(name)
    assert model.input_shape == found.input_shape
    assert model.classes == found.outputs
    assert model.layers[-1].shape.kind == found.loss
    outputs = 2 if found.auxiliary_weight else 1
    assert model.layers[-1].shape.input_shapes == ((found.outputs,),) * outputs
    assert model.layers[-1].shape.output_shape == ()


@pytest.mark.parametrize("mini", MINIS)
def test_build_depends_on_the_seed_alone(mini: str) -> None:
    torch.manual_seed(1)
    one = build(mini, seed=7).state_dict()
    torch.manual_seed(2)
    before = torch.get_rng_state()
    two = build(mini, seed=7).state_dict()
    assert torch.equal(torch.get_rng_state(), before)
    other = build(mini, seed=8).state_dict()
    assert one.keys() == two.keys()
    assert all(torch.equal(one[key], two[key]) for key in one)
    assert any(not torch.equal(one[key], other[key]) for key in one)


@pytest.mark.parametrize("mini", MINIS)
def test_every_parameter_gets_a_gradient(mini: str) -> None:
    """Of a size that a wrong exchange cannot hide behind: the weights do not vanish with depth."""
    found, module = entry(mini), build(mini, seed=0)
    generator = torch.Generator().manual_seed(0)
    result = module(torch.randn((4, *found.input_shape), generator=generator))
    outputs = result if found.auxiliary_weight else (result,)
    assert [tuple(output.shape) for output in outputs] == [(4, found.outputs)] * len(outputs)
    sum(output.square().mean() for output in outputs).backward()
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 1e-5, name


def test_unknown_name_is_one_line_with_the_nearest() -> None:
    with pytest.raises(InputError) as caught:
        entry("VGG-16")
    message = str(caught.value)
    assert "\n" not in message and "did you mean vgg16?" in message
    assert all(name in message for name in model_names())


def run_python(code: str, **environment: str) -> str:
    """Standard output of a fresh interpreter that runs `code` in the repository."""
    done = python(ROOT, "-c", code, **environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_registry_and_cached_spec_do_not_import_torch(cache: Path) -> None:
    report = "import sys; print('torch' in sys.modules)"
    read = "from calib.training.models import specs; specs.spec('vgg16-mini');"
    assert (
        run_python("import calib.training.models; calib.training.models.entry('vgg16');" + report)
        == "False"
    )
    assert run_python(read + report, CALIB_CACHE=str(cache)) == "True"  # traced
    assert run_python(read + report, CALIB_CACHE=str(cache)) == "False"  # read


@pytest.mark.usefixtures("cache")
def test_cached_spec_equals_the_trace() -> None:
    for mini in ("vgg16-mini", "inception-v3-mini", "cosmoflow-mini"):
        found = entry(mini)
        expected = trace(found.build(), found.input_shape, mini, found.loss, found.auxiliary_weight)
        assert specs.spec(mini) == expected
        read = specs.spec(mini)  # the second one is read
        assert read == expected
        keys = [layer.shape.key(2) for layer in expected.layers]
        assert [layer.shape.key(2) for layer in read.layers] == keys


def test_warm_cache_leaves_one_file_per_model(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = ("alexnet", "vgg16-mini", "cosmoflow-mini")
    monkeypatch.setattr(specs, "model_names", lambda: few)
    assert specs.warm_cache() == few
    assert len(list(cache.iterdir())) == len(few)


def test_changed_source_makes_a_new_file(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    specs.spec("vgg16-mini")
    monkeypatch.setattr(specs, "_sources_sha256", lambda: "f" * 64)
    specs.spec("vgg16-mini")
    assert len(list(cache.iterdir())) == 2


@pytest.mark.parametrize(
    "source",
    words_of(
        "training/models/__init__.py training/models/vgg.py training/models/resnet.py "
        "training/models/alexnet.py training/models/inception.py training/models/cosmoflow.py "
        "oracle/trace/tracing.py oracle/trace/atens.py oracle/model/spec.py "
        "foundation/layers.py"
    ),
)
def test_hash_depends_on_every_source(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = specs._sources_sha256()

    def edited(path: Path, what: str) -> bytes:
        return path.read_bytes() + (b"#" if path.resolve() == ROOT / source else b"")

    monkeypatch.setattr(specs, "read_bytes", edited)
    assert specs._sources_sha256() != before


@pytest.mark.parametrize("content", ["", "{", "[]", '{"name": "vgg16-mini"}', "OTHER"])
def test_corrupt_cache_is_traced_again(cache: Path, content: str) -> None:
    good = specs.spec("vgg16-mini")
    (path,) = cache.iterdir()
    if content == "OTHER":  # a whole ModelSpec, but of another model
        good.model_copy(update={"name": "other"}).write(path)
    else:
        path.write_text(content)
    assert specs.spec("vgg16-mini") == good
    assert ModelSpec.read(path) == good


def test_cache_that_cannot_be_written_is_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("not a directory")
    monkeypatch.setenv("CALIB_CACHE", str(tmp_path / "file" / "cache"))
    assert specs.spec("vgg16-mini").name == "vgg16-mini"


def test_cache_place_without_calib_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CALIB_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    specs.spec("vgg16-mini")
    (path,) = (tmp_path / "xdg" / "calib" / "models").iterdir()
    assert ModelSpec.read(path).name == "vgg16-mini"


def test_spec_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = specs.spec("vgg16-mini").model_copy(update={"name": "mine"})
    mine.write(tmp_path / "mine.json")
    mine.write(tmp_path / "plain")
    mine.write(tmp_path / "vgg16-mini")
    monkeypatch.chdir(tmp_path)
    assert specs.spec("mine.json") == specs.spec("plain") == mine
    assert specs.spec("vgg16-mini").name == "vgg16-mini"  # a stray file does not hide a model
    with pytest.raises(FileError, match="does not exist"):
        specs.spec("missing.json")


def test_what_the_words_of_a_run_mean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    hand = mlp([4, 3], "hand")
    for name, model in {"hand": hand, "same": hand, "odd": mlp([4, 3], "a/b")}.items():
        model.write(Path(f"{name}.json"))
    mlp([4, 3], "vgg16-mini").write(Path("vgg.json"))
    specs.spec("vgg16-mini").write(Path("traced.json"))
    assert specs.named(["hand.json", "vgg16-mini"]) == {
        "hand.json": hand,
        "vgg16-mini": specs.spec("vgg16-mini"),
    }
    assert specs.named(["traced.json"])["traced.json"] == specs.spec("vgg16-mini")
    for words, why in {
        ("hand.json", "same.json"): r"hand\.json and same\.json both call their model hand",
        ("odd.json",): "'a/b', which cannot be part of a file's name",
        ("vgg.json",): "calls its model vgg16-mini, as a registered one is called",
    }.items():
        with pytest.raises(InputError, match=why):
            specs.named(words)


def test_how_a_model_is_built() -> None:
    hand = mlp([4, 3], "hand")
    assert specs.entry_of(hand) is None and "(built_by)" in specs.why_not_built(hand)
    built = hand.model_copy(update={"built_by": "mine:net"})
    about = specs.entry_of(built)
    assert about is not None and specs.why_not_built(built) == ""
    assert (about.name, about.input_shape, about.loss_layer) == (
        "hand",
        (4,),
        hand.layers[-1].shape,
    )
    assert specs.entry_of(specs.spec("cosmoflow-mini")) == entry("cosmoflow-mini")


@pytest.mark.parametrize("name", model_names())
def test_the_loss_of_an_entry_is_that_of_its_layers(name: str) -> None:
    assert entry(name).loss_layer == traced(name).layers[-1].shape


def test_a_run_directory_keeps_models(tmp_path: Path) -> None:
    hand, run = mlp([4, 3], "hand"), tmp_path / "run"
    specs.keep_models(run, [hand, specs.spec("vgg16-mini"), hand])
    assert [path.name for path in (run / "models").iterdir()] == ["hand.json"]
    assert specs.spec("hand", run) == hand
    assert specs.spec("vgg16-mini", run) == specs.spec("vgg16-mini")
    with pytest.raises(InputError, match="unknown model 'hand'"):
        specs.spec("hand")
    with pytest.raises(InputError, match=r"unknown model '\.\./models/hand'"):
        specs.spec("../models/hand", run)
    with pytest.raises(InputError, match="has another model called hand"):
        specs.keep_models(run, [mlp([5, 3], "hand")])


@pytest.mark.usefixtures("cache")
def test_missing_torch_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)  # what makes `import torch` fail
    with pytest.raises(MachineError) as caught:
        specs.spec("vgg16-mini")
    assert "\n" not in str(caught.value) and "install torch" in str(caught.value)


@pytest.mark.parametrize(
    ("pool", "shape", "is_identity"),
    [
        (nn.AdaptiveAvgPool2d(6), (2, 3, 6, 6), True),
        (nn.AdaptiveAvgPool2d((6, None)), (2, 3, 6, 5), True),
        (nn.AdaptiveAvgPool1d(4), (2, 3, 4), True),
        (nn.AdaptiveAvgPool3d(1), (2, 3, 1, 1, 1), True),
        (nn.AdaptiveAvgPool2d(6), (2, 3, 6, 7), False),
        (nn.AdaptiveAvgPool3d((2, 1, 2)), (2, 3, 2, 2, 2), False),
    ],
)
def test_pooling_to_the_size_that_there_is_is_skipped(
    pool: nn.Module, shape: tuple[int, ...], is_identity: bool
) -> None:
    """torch copies; the model that training builds does not, also after a copy of it."""
    x = torch.randn(shape)
    expected = pool(x)
    assert expected is not x
    made = skip_identities(nn.Sequential(pool))
    for module in (made, copy.deepcopy(made)):
        y = module(x)
        assert torch.equal(y, expected) and (y is x) == is_identity


def test_alexnet_runs_no_pooling_that_is_the_identity() -> None:
    """By the names of torch's own operations; its trace keeps the layer."""
    model = build("alexnet-mini", 0)
    with torch.profiler.profile() as found:
        model(torch.randn(2, 3, 64, 64)).sum().backward()
    assert not [event.key for event in found.key_averages() if "adaptive_avg" in event.key]
    (pool,) = (x for x in specs.spec("alexnet-mini").layers if x.shape.kind == "adaptive_avg_pool")
    assert pool.shape.is_identity and pool.shape.is_free
