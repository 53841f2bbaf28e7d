"""A module that cannot be traced is refused with the file and line at fault."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch import nn

from calib.foundation.errors import InputError
from calib.oracle.trace.lines import at, users_place
from calib.oracle.trace.tracing import trace
from calib.oracle.trace.user_module import build_module

HEAD = """\
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x):
        y = self.linear(x)
"""
# what forward goes on with, from line 11 of the file; the line that is refused, and why
REFUSED = {
    "if": (["if y.sum() > 0:", "    return y", "return x"], 11, "control flow"),
    "while": (["while y.norm() > 1:", "    y = y + y", "return y"], 11, "control flow"),
    "assert": (["z = y + y", "assert (z > 0).all()", "return z"], 12, "control flow"),
    "number": (["n = int(y.sum())", "return y"], 11, "control flow"),
    "operator": (["y = y + y", "return y @ x.T @ x"], 12, "the batch multiplies"),
    "own mistake": (["z = y + y", "return self.nolayer(z)"], 12, "nolayer"),
}


def net_of(path: Path, text: str) -> nn.Module:
    """The Net of a Python file with this text."""
    path.write_text(text)
    spec = importlib.util.spec_from_file_location("calib_test_net", path)
    assert spec is not None and spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    net: nn.Module = loaded.Net()
    return net


@pytest.mark.parametrize("case", REFUSED)
def test_line_of_the_users_code(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines, number, why = REFUSED[case]
    net = net_of(tmp_path / "net.py", HEAD + "".join(f"        {line}\n" for line in lines))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as caught:
        trace(net, (6,), "refused", "mse")
    message = str(caught.value)
    source = lines[number - 11].strip()
    assert f", at net.py, line {number} `{source}`: " in message
    assert why in message and "\n" not in message


def test_line_is_of_the_innermost_function_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not of the forward that calls it, and through a Sequential of torch; path from elsewhere."""
    text = (
        HEAD
        + """\
        return self.helper(y)

    def helper(self, y):
        return y if y.max() > 0 else -y
"""
    )
    net = nn.Sequential(nn.Linear(6, 6), nn.Sequential(net_of(tmp_path / "net.py", text)))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    with pytest.raises(InputError) as caught:
        trace(net, (6,), "refused", "mse")
    assert f", at {tmp_path / 'net.py'}, line 14 `return y if" in str(caught.value)


def test_only_frames_of_a_user_count() -> None:
    """Innermost first: generated code, torch, an installed package, the user's two files."""
    installed = str(Path(pytest.__file__).parent / "x.py")
    torch_file = sys.modules["torch"].__file__ or ""
    frames = [("<eval_with_key>.0", 1), (torch_file, 2), (installed, 3), ("/u/a.py", 4)]
    assert users_place([*frames, ("/u/b.py", 5)]) == ("/u/a.py", 4)
    assert users_place(frames[:3]) == (installed, 3)  # a model of an installed package
    assert users_place(frames[:2]) is None and at(None) == ""


# MODULE:FUNCTION

FILE = """\
import torch
from torch import nn

class Net(nn.Sequential):
    def __init__(self, width=4):
        super().__init__(nn.Linear(6, width), nn.ReLU())

def build():
    print("hello")
    return Net(5)

def wide(width, depth, *more, **others):
    return Net(width)

def number():
    return 3

def broken():
    raise ValueError("no weights\\nhere")

def leaves():
    raise SystemExit(3)

made = Net(2)
constant = 7
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current directory, with my_nets/net.py; what was imported from it is forgotten."""
    package = tmp_path / "my_nets"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "net.py").write_text(FILE)
    (package / "syntax.py").write_text("x = 1\ndef build(:\n")
    (package / "imports.py").write_text("import math\nimport nosuchpackage.part\n")
    (package / "fails.py").write_text("x = 1\ny = x / 0\n")
    (package / "reads_syntax.py").write_text("x = 1\nfrom my_nets import syntax\n")
    (package / "null.py").write_bytes(b"x = 1\n\0\n")
    (package / "own.py").write_text("import calib.net\n")
    (package / "member.py").write_text("from calib import build\n")
    (tmp_path / "calib").mkdir()  # the user's own
    (tmp_path / "calib" / "net.py").write_text(FILE)
    (package / "script.py").write_text("import sys\nsys.exit(0)\n")
    monkeypatch.chdir(tmp_path)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.split(".")[0] == "my_nets":
            del sys.modules[name]


@pytest.mark.parametrize(("word", "width"), [("build", 5), ("Net", 4), ("made", 2)])
@pytest.mark.usefixtures("here")
def test_function_class_or_module(
    word: str, width: int, capsys: pytest.CaptureFixture[str]
) -> None:
    before = list(sys.path)
    module = build_module(f"my_nets.net:{word}")
    assert sys.path == before
    assert trace(module, (6,), "mine", "mse").layers[0].shape.output_shape == (width,)
    printed = capsys.readouterr()
    assert printed.out == "" and ("hello" in printed.err) == (word == "build")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("my_nets.net", ["'my_nets.net' is not MODULE:FUNCTION", "my_pkg.net:build"]),
        ("my_nets.net:", ["is not MODULE:FUNCTION"]),
        (":build", ["is not MODULE:FUNCTION"]),
        ("", ["is not MODULE:FUNCTION"]),
        ("my_nets/net.py:build", ["is not MODULE:FUNCTION"]),
        ("my_nets.net:build()", ["is not MODULE:FUNCTION"]),
        ("my_nets:net:build", ["is not MODULE:FUNCTION"]),
        ("nosuch.net:build", ["there is no Python module nosuch:", "neither installed nor in"]),
        ("my_nets.nosuch:build", ["no Python module my_nets.nosuch:"]),
        ("my_nets.net:biuld", ["has no 'biuld'", "did you mean build?"]),
        ("my_nets.net:wide", ["needs width, depth: give a function without arguments"]),
        ("my_nets.net:number", ["gives int, which is not a torch.nn.Module"]),
        ("my_nets.net:constant", ["is int, neither a function nor a class"]),
        ("my_nets.net:broken", ["my_nets/net.py, line 19 `raise", "ValueError: no weights"]),
        ("my_nets.net:leaves", ["my_nets/net.py, line 22", "SystemExit: 3"]),
        (
            "my_nets.syntax:build",
            [
                "cannot import my_nets.syntax, at my_nets/syntax.py, line 2 "
                "`def build(:`: SyntaxError: invalid syntax"
            ],
        ),
        (
            "my_nets.reads_syntax:build",
            [
                "cannot import my_nets.reads_syntax, at my_nets/syntax.py, "
                "line 2 `def build(:`: SyntaxError"
            ],
        ),
        ("my_nets.null:build", ["cannot import my_nets.null", "null bytes"]),
        (
            "calib.net:build",
            [
                "cannot import calib.net: calib is the name of calib's own package; rename yours, "
                "or put it in a package of another name"
            ],
        ),
        (
            "my_nets.own:build",
            [
                "my_nets/own.py, line 1 `import calib.net`",
                "ModuleNotFoundError",
                "; calib is the name of calib's own package",
            ],
        ),
        ("my_nets.member:build", ["my_nets/member.py, line 1", "; calib is the name"]),
        ("my_nets.imports:build", ["my_nets/imports.py, line 2 `import nosuchpackage.part`"]),
        ("my_nets.fails:build", ["my_nets/fails.py, line 2 `y = x / 0`", "ZeroDivisionError"]),
        ("my_nets.script:build", ["my_nets/script.py, line 2", "SystemExit"]),
    ],
)
@pytest.mark.usefixtures("here")
def test_what_cannot_be_built_is_one_line(words: str, said: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        build_module(words)
    message = str(caught.value)
    assert "\n" not in message
    for part in said:
        assert part in message
    assert "importlib" not in message


def test_calibs_own_package_is_no_clash(monkeypatch: pytest.MonkeyPatch) -> None:
    """In its own checkout, where the current directory has a `calib` too: the one that is meant."""
    monkeypatch.chdir(Path(__file__).parents[3])
    with pytest.raises(
        InputError, match=r"the Python module calib\.training\.models has no 'nosuch'"
    ):
        build_module("calib.training.models:nosuch")
