"""`calib model`: the list, a model's layers, and a user's module traced into a model.json."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.calib import inside
from tests.calib.running import calib, refused
from tests.helpers.words import words_of
from typer.testing import CliRunner, Result

from calib.commands.model import app, default_name
from calib.foundation.errors import CalibError
from calib.oracle.model.spec import ModelSpec
from calib.training.models import entry, model_names

NET = """\
import torch
from torch import nn

class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.fc = nn.Linear(4, 5)

    def forward(self, x):
        y = torch.relu(self.conv(x)) + self.conv.weight.sum() * 0
        return self.fc(y.mean((2, 3)))

class Spare(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(6, 5))
        self.spare, self.scale = nn.Linear(6, 4), nn.Parameter(torch.ones(3))

    def forward(self, x):
        return self[0](x)

class Raises(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(6, 5)

    def forward(self, x):
        if x.sum() > 0 or True:
            raise ValueError("no such thing")
        return self.fc(x)

def part():
    net = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 5))
    net[0].compile()
    return net

class Switch(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(6, 5)

    def forward(self, x):
        if x.sum() > 0:
            x = x + x
        return self.fc(x)

def build():
    print("building")
    return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(256, 5))
"""
TRACE = ("model", "trace", "my_pkg.net:build", "--input", "3x8x8")


OPTIONS = {
    "list": {"--json"},
    "show": {"--json"},
    "trace": {"--input", "--loss", "--name", "--output", "--json"},
    "profile": {"--input", "--loss", "--name", "--output", "--json"},
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current directory, with my_pkg/net.py; forgotten after the test."""
    (tmp_path / "my_pkg").mkdir()
    (tmp_path / "my_pkg" / "net.py").write_text(NET)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] == "my_pkg"]:
        del sys.modules[name]


def model(*arguments: str) -> Result:
    """`calib model ARGUMENTS` in this process."""
    return CliRunner().invoke(app, list(arguments), prog_name="calib model")


@pytest.mark.parametrize("verb", OPTIONS)
def test_options_are_frozen(verb: str) -> None:
    text = model(verb, "--help").stdout
    assert re.search(rf"Example: calib model {verb}", " ".join(text.split()))
    options = text.split("Options:\n")[1]
    found = set(re.findall(r"^  (?:-\w, )?(--?[\w-]+)", options, flags=re.MULTILINE))
    assert found - {"--help"} == OPTIONS[verb]


def test_trace_then_show(here: Path) -> None:
    done = calib(here, *TRACE, "--loss", "mse", "--name", "mine", "-o", "out/mine.json", "--json")
    assert done.returncode == 0, done.stderr
    # 3 x 4 x 9 + 4 and 256 x 5 + 5 parameters; 27 multiply-adds for each of 256 outputs, 256 x 5
    expected = {
        "name": "mine",
        "input_shape": [3, 8, 8],
        "parameters": 112 + 1285,
        "multiply_adds": 27 * 256 + 256 * 5,
        "layers": 5,
    }
    assert json.loads(done.stdout) == expected
    assert done.stderr.splitlines() == ["building", "written: out/mine.json"]
    found = ModelSpec.read(here / "out/mine.json")
    assert [layer.shape.kind for layer in found.layers] == words_of("conv relu flatten linear mse")
    shown = json.loads(model("show", "out/mine.json", "--json").stdout)
    each = shown.pop("each")
    assert shown == expected
    assert [(x["name"], x["inputs"]) for x in each] == [
        ("0", ["input"]),
        ("1", ["0"]),
        ("2", ["1"]),
        ("3", ["2"]),
        ("loss", ["3"]),
    ]
    assert each[0] == {
        "name": "0",
        "kind": "conv",
        "input_shapes": [[3, 8, 8]],
        "output_shape": [4, 8, 8],
        "parameter_shapes": [[4, 3, 3, 3], [4]],
        "parameters": 112,
        "multiply_adds": 27 * 256,
        "inputs": ["input"],
    }
    table = model("show", "out/mine.json")
    assert re.search(r"^ +3 +linear +256 +5 +1285 +0.00128 +2", table.stdout, flags=re.MULTILINE)
    assert "mine: input 3x8x8, 5 layers" in table.stderr


LOUD = """\
import ctypes, os, subprocess, sys
from sys import __stdout__ as first
from torch import nn

print("importing")
first.write("import")


class Loud(nn.Module):
    def __init__(self):
        super().__init__()
        os.write(1, b"raw\\n")
        ctypes.CDLL(None).puts(b"from C")
        subprocess.run(["echo", "child"], check=True)
        self.fc = nn.Linear(6, 5)

    def forward(self, x):
        print("forward")
        first.write("forward, too")
        return self.fc(x)
"""


def test_json_is_alone_on_stdout(here: Path) -> None:
    """Whatever the user's code writes, and by whichever way."""
    (here / "my_pkg" / "loud.py").write_text(LOUD)
    done = calib(here, "model", "trace", "my_pkg.loud:Loud", "--input", "6", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["parameters"] == 35
    for said in ("importing", "import", "raw", "from C", "child", "forward", "forward, too"):
        assert said in done.stderr


def test_trace_has_defaults(here: Path) -> None:
    done = model(*TRACE[1:])
    assert (done.exit_code, done.stdout) == (0, "")
    found = ModelSpec.read(here / "model.json")
    assert (found.name, found.layers[-1].shape.kind) == ("net", "cross_entropy")


def test_list_has_every_model() -> None:
    found = {row["name"]: row for row in json.loads(model("list", "--json").stdout)}
    assert tuple(found) == model_names()
    assert found["alexnet"] == {
        "name": "alexnet",
        "input_shape": [3, 224, 224],
        "parameters": 61_100_840,
        "multiply_adds": 714_188_480,
        "layers": 23,
        "loss": "cross_entropy",
        "batch_per_rank": entry("alexnet").batch_per_rank,
    }
    table = model("list").stdout
    assert re.search(r"^ +vgg16 +3x224x224 +138\.36 +15\.47 +40 ", table, flags=re.MULTILINE)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("sow",), "No such command 'sow'"),
        (("show",), "Missing argument 'model'"),
        (("trace",), "Missing argument"),
        (TRACE[1:3], "Missing option '--input'"),
        ((*TRACE[1:], "--loss", "l1"), "'l1' is not one of 'cross_entropy', 'mse'"),
    ],
)
def test_usage(arguments: tuple[str, ...], said: str) -> None:
    done = model(*arguments)
    assert done.exit_code == 2 and said in done.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("show", "alexnot"), "did you mean alexnet?"),
        (("show", "nosuch.json"), "nosuch.json does not exist"),
        (
            ("show", "large.json"),
            "the layer 'fc' (linear) is impossible: its output is (401 digits)",
        ),
        (("show", "bad.json"), "the layer 'gelu1' is of the unknown kind 'gelu'"),
        ((*TRACE[1:4], "3x8x"), "--input '3x8x' is not a shape such as 3x224x224"),
        ((*TRACE[1:4], ""), "--input '' is not a shape"),
        ((*TRACE[1:4], "3x-8"), "is not a shape"),
        ((*TRACE[1:4], "3x0x8"), "sizes must be from 1 to"),
        ((*TRACE[1:4], "9" * 400), "sizes must be from 1 to"),
        ((*TRACE[1:4], "3x8x9"), "with torch.export in 3 (Linear): a and b"),
        ((*TRACE[1:], "-o", "my_pkg/net.py/model.json"), "cannot"),
        ((*TRACE[1:], "--name", ""), "the model's name, '', is empty"),
        (("trace", "my_pkg.net", "--input", "6"), "is not MODULE:FUNCTION"),
        (("trace", "my_pkg.net:Switch", "--input", "6"), "at my_pkg/net.py, line 43 "),
        (("profile", "my_pkg.net:Switch", "--input", "7"), "at my_pkg/net.py, line 45 "),
    ],
)
def test_mistakes(here: Path, arguments: tuple[str, ...], said: str) -> None:
    layer = {"name": "gelu1", "shape": {"kind": "gelu"}, "inputs": ["input"]}
    (here / "bad.json").write_text(json.dumps({"format_version": 1, "layers": [layer]}))
    shape = {"kind": "linear", "input_shapes": [[6]], "output_shape": [10**400]}
    layer = {"name": "fc", "shape": shape, "inputs": ["input"], "needs_input_grad": False}
    large = {"name": "large", "input_shape": [6], "classes": 5, "layers": [layer]}
    (here / "large.json").write_text(json.dumps(large))
    done = model(*arguments)
    assert isinstance(done.exception, CalibError) and said in str(done.exception)
    assert not (here / "model.json").exists()


def test_what_cannot_be_traced_is_profiled_as_one_layer(here: Path) -> None:
    words = ("model", "profile", "my_pkg.net:Switch", "--input", "6", "-o", "switch.json")
    done = inside.calib(here, *words)
    assert (
        done.returncode == 0
        and "Switch: input 6, 2 layers, 35 parameters, 30 MAC a sample" in done.stderr
    )
    spec = ModelSpec.read(here / "switch.json")
    assert spec.is_profiled and spec.built_by == "my_pkg.net:Switch"
    assert spec.parameter_shapes == ((5, 6), (5,)) and spec.multiply_adds() == 30


def test_control_flow_is_one_line_with_the_users_line(here: Path) -> None:
    line = refused(inside.calib(here, "model", "trace", "my_pkg.net:Switch", "--input", "6"))
    assert line == (
        "cannot trace the model Switch (Switch) with torch.export, at my_pkg/net.py, line 43 "
        "`if x.sum() > 0:`: its control flow depends on data; "
        "`calib model profile` takes it as one layer"
    )


def test_what_fails_by_itself_says_so(here: Path) -> None:
    """No advice that would fail as well, whether it or torch.export comes to its fault first."""
    line = refused(inside.calib(here, "model", "trace", "my_pkg.net:Raises", "--input", "6"))
    assert line.startswith("cannot run the model Raises (Raises), at my_pkg/net.py, line ")
    assert line.endswith('`raise ValueError("no such thing")`: no such thing')
    line = refused(inside.calib(here, "model", "trace", "my_pkg.net:Switch", "--input", "7"))
    assert line.startswith("cannot run the model Switch (Switch), at my_pkg/net.py, line ")
    assert "shapes cannot be multiplied" in line and "calib model profile" not in line


def test_a_compiled_part_is_named(here: Path) -> None:
    line = refused(inside.calib(here, "model", "trace", "my_pkg.net:part", "--input", "6"))
    assert line == (
        "0 of the model part (Sequential) is compiled (torch.compile), and runs no operators one by "
        "one; `calib model profile` takes it as one layer"
    )


def test_unused_weights_are_counted_and_named(here: Path) -> None:
    said = (
        "Spare: input 6, 2 layers, 66 parameters, 30 MAC a sample\n"
        "no gradient reaches 3 weights (31 parameters), first scale: held in memory, not trained\n"
    )
    for verb in ("trace", "profile"):
        done = model(verb, "my_pkg.net:Spare", "--input", "6", "-o", "spare.json")
        assert done.exit_code == 0 and done.stderr.startswith(said)
        assert said in model("show", "spare.json").stderr
    assert json.loads(model("show", "spare.json", "--json").stdout)["parameters"] == 66


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("my_pkg.net:tiny", "tiny"),
        ("my_pkg.net:Tiny", "Tiny"),
        ("my_pkg.net:build", "net"),
        ("my_pkg.small:Net", "small"),
        ("my_pkg.small:get_model", "small"),
        ("small:_make", "small"),
        ("my_pkg.mine:resnet50", "mine"),  # which is registered
    ],
)
def test_default_names(words: str, name: str) -> None:
    assert default_name(words) == name


def test_without_torch_it_is_one_line(here: Path) -> None:
    """A torch that cannot be imported stands in the way of the real one."""
    (here / "torch.py").write_text("raise ImportError('no torch here')\n")
    line = refused(calib(here, *TRACE, PYTHONPATH=f"{here}:{Path(__file__).parents[2]}"))
    assert "needs PyTorch" in line and "install torch" in line
