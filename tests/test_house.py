"""docs/house.md is the map of every file and sub-room; the rooms below quote no command line."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from tests.calib.inside import options

from calib.app import VERBS

ROOT = Path(__file__).parents[1]
ROOMS = ("calib", "reports", "training", "search", "oracle", "fitting", "microbench", "foundation")
MAP = (ROOT / "docs/house.md").read_text()


def entries(room: str) -> set[str]:
    """Modules and sub-packages of a room; links to other rooms are not the front door's."""
    found = set()
    for entry in (ROOT / room).iterdir():
        if entry.is_symlink() or entry.name.startswith("__"):
            continue
        if entry.is_dir() and (entry / "__init__.py").exists():
            found.add(f"{entry.name}/")
        elif entry.suffix == ".py":
            found.add(entry.name)
    return found


@pytest.mark.parametrize("room", ROOMS)
def test_every_file_and_sub_room_is_on_the_map(room: str) -> None:
    section = re.search(rf"^## {room}\n(.*?)(?=^## )", MAP, re.MULTILINE | re.DOTALL)
    assert section is not None
    cells = [line.split("|")[1] for line in section[1].splitlines() if line.startswith("| ")]
    named = {name.strip() for cell in cells for name in cell.split(",") if name.strip()}
    assert named == entries(room)


def test_every_path_of_the_map_exists() -> None:
    paths = re.findall(rf"(?<![\w/])(?:{'|'.join(ROOMS)})/[\w/]+(?:\.py)?", MAP)
    assert paths and [path for path in paths if not (ROOT / path).exists()] == []


# what parses or draws the command lines of others
FOREIGN = {"microbench/importers/said.py": "options of mpiexec and srun in a log"}


@cache
def command_lines() -> re.Pattern[str]:
    """Where a text names a verb, an option of any verb, or one that is still to be put in."""
    names = {x[2:] for taken in options().values() for x in taken if x.startswith("--")}
    return re.compile(
        rf"\bcalib (?:{'|'.join(VERBS)})\b|\bmake setup|(?:give|with|of) -\w\b|"
        rf"(?:^|[ (`])--(?:$|(?:{'|'.join(names)})\b)"
    )


def strings(path: Path) -> Iterator[str]:
    """Those of a module that are no docstrings."""
    for node in ast.walk(ast.parse(path.read_text())):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Constant) and not isinstance(node, ast.Expr):
                yield str(child.value)


@pytest.mark.parametrize("room", ROOMS[1:])
def test_a_room_below_the_front_door_quotes_no_command_line(room: str) -> None:
    """It says what is wanted, as it is called from Python too; calib/advice.py words it."""
    found = {
        f"{path.relative_to(ROOT)}: {text}"
        for path in (ROOT / room).rglob("*.py")
        if str(path.relative_to(ROOT)) not in FOREIGN
        for text in strings(path)
        if command_lines().search(text)
    }
    assert found == set()
