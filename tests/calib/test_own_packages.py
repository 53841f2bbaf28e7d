"""A user's packages called training, fitting and search stay the user's: from a wheel and a checkout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from tests.training.launching import ROOT, TIMEOUT_S, completed

ROOMS = ("reports", "training", "search", "oracle", "fitting", "microbench", "foundation")
NET = """
from torch import nn

def build():
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 5))
"""
# `calib model trace` of each name, in one process: it imports PyTorch once
TRACE = """
import sys
from calib.app import run
for name in sys.argv[1:]:
    words = f"calib model trace {name}.net:build --input 3x2x2 -o {name}.json"
    sys.argv = words.split()
    assert run() == 0
"""
OWN_IMPORT = "import training, fitting.net, search; print(training.WHOSE, fitting.net.build())"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A directory with three packages of the user's, named as rooms of calib."""
    for name in ("training", "fitting", "search"):
        package = tmp_path / "project" / name
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("WHOSE = 'mine'\n")
        (package / "net.py").write_text(NET)
    return tmp_path / "project"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what a wheel of this checkout installs."""
    built, site = tmp_path_factory.mktemp("wheel"), tmp_path_factory.mktemp("site")
    line = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(built)]
    subprocess.run(line, cwd=ROOT, check=True, capture_output=True, timeout=TIMEOUT_S)
    with zipfile.ZipFile(next(built.glob("*.whl"))) as archive:
        archive.extractall(site)
    return site


def python(cwd: Path, path: Path, *arguments: str) -> str:
    """What this Python prints, with calib from `path`."""
    done = completed([sys.executable, *arguments], cwd, env={**os.environ, "PYTHONPATH": str(path)})
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("source", ["wheel", "checkout"])
def test_packages_of_the_users_are_theirs(
    source: str, project: Path, request: pytest.FixtureRequest
) -> None:
    path = request.getfixturevalue("wheel") if source == "wheel" else ROOT / "src"
    where = python(project, path, "-c", "import calib; print(calib.__file__)").strip()
    assert Path(where).is_relative_to(path)
    assert python(project, path, "-c", OWN_IMPORT).startswith("mine Sequential")
    names = ("training", "fitting", "search")
    python(project, path, "-c", TRACE, *names)
    for name in names:
        layers = json.loads((project / f"{name}.json").read_text())["layers"]
        assert [layer["shape"]["kind"] for layer in layers][:2] == ["flatten", "linear"]


def test_a_wheel_takes_one_name(wheel: Path) -> None:
    names = {entry.name for entry in wheel.iterdir() if not entry.name.endswith(".dist-info")}
    assert names == {"calib"}
    assert set(ROOMS) < {entry.name for entry in (wheel / "calib").iterdir() if entry.is_dir()}
    assert (wheel / "calib/reports/page/templates/page.css").is_file()


def test_a_checkout_offers_one_name() -> None:
    assert [entry.name for entry in (ROOT / "src").iterdir()] == ["calib"]
