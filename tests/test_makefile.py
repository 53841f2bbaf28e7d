"""The Makefile's set-up: what is there stays until another choice is typed.

make and the Makefile are real; the interpreters are stand-ins, as a real set-up takes minutes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.helpers.words import words_of

ROOT = Path(__file__).parents[1]
# what `make test PYTHON=...` hands down to every make below it
TYPED = set(words_of("MAKEFLAGS MFLAGS MAKELEVEL MAKEOVERRIDES PYTHON MPI GPU CONSTRAINTS ARGS"))
# says what it is asked to do, and makes a .venv whose interpreter is itself
PYTHON = """#!/bin/sh
echo "$(basename "$0") $*" >>log
if [ "$1 $2" = "-m venv" ]; then rm -rf .venv && mkdir -p .venv/bin && cp "$0" .venv/bin/python; fi
"""


@pytest.fixture
def here(tmp_path: Path) -> Path:
    for name in ("Makefile", "pyproject.toml", "constraints"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy2
        copy(ROOT / name, tmp_path / name)
    for name in ("one", "two"):
        (tmp_path / name).write_text(PYTHON)
        (tmp_path / name).chmod(0o755)
    return tmp_path


def make(cwd: Path, *arguments: str) -> list[str]:
    """What the interpreters were asked to do by `make ARGUMENTS`."""
    (cwd / "log").write_text("")
    environment = {name: value for name, value in os.environ.items() if name not in TYPED}
    subprocess.run(["make", "-s", *arguments], cwd=cwd, env=environment, check=True)
    return (cwd / "log").read_text().splitlines()


def test_a_set_up_stays(here: Path) -> None:
    said = make(here, "setup", "PYTHON=./one", "GPU=no")
    assert "one -m venv --clear .venv" in said
    assert (
        said[-2].endswith("-e .[dev,mpich]") and said[-1] == "python -m calib.training.models.specs"
    )
    assert make(here, "setup") == make(here, "setup", "PYTHON=./one") == []
    # packages of another version: the same interpreter, no new .venv
    os.utime(here / "pyproject.toml", (2e9, 2e9))
    said = make(here, "setup")
    assert said and all(line.startswith(("one -c", "python -m")) for line in said)


def test_another_choice_is_another_set_up(here: Path) -> None:
    make(here, "setup", "PYTHON=./one", "GPU=no")
    said = make(here, "setup", "MPI=system")
    assert "one -m venv --clear .venv" in said and said[-2].endswith("-e .[dev]")
    assert make(here, "setup") == []
    said = make(here, "setup", "GPU=yes")
    assert "one -m venv --clear .venv" in said and said[-2].endswith("-e .[dev,gpu]")
    assert "-c constraints/gpu.txt" in said[-2]
    assert "two -m venv --clear .venv" in make(here, "setup", "PYTHON=./two")
    make(here, "clean")
    assert "two -m venv --clear .venv" not in make(here, "setup", "PYTHON=./one")


def test_a_choice_is_kept_where_the_set_up_broke_off(here: Path) -> None:
    """pip lost its network after the .venv was made: the next try takes the same interpreter."""
    make(here, "setup", "PYTHON=./one", "GPU=no")
    (stamp,) = (here / ".venv").glob(".set-up-*")
    stamp.unlink()
    assert "one -m venv --clear .venv" in make(here, "setup")
