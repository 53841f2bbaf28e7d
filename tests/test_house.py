"""docs/house.md is the map: every file and sub-room of the tree is on it, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

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
