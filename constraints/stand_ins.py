"""Empty wheels that stand in for packages: `stand_ins.py CONSTRAINTS FOLDER [NAME ...]`.

Each has the version that CONSTRAINTS pins and requires nothing. A name that is not pinned there is one
that calib does not need: nothing is made for it.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from zipfile import ZipFile


def pins(path: Path) -> dict[str, str]:
    """Package -> version, of a constraints file and those that it names."""
    found: dict[str, str] = {}
    for line in path.read_text().splitlines():
        if line.startswith("-c "):
            found |= pins(path.parent / line.removeprefix("-c "))
        elif "==" in line and not line.startswith("#"):
            name, version = line.split("==")
            found[normal(name)] = version
    return found


def normal(name: str) -> str:
    """A package's name as file names have it."""
    return re.sub(r"[-_.]+", "_", name).lower()


def make(folder: Path, name: str, version: str) -> None:
    """Write the wheel NAME-VERSION-py3-none-any.whl."""
    with ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        for file, text in {
            "METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
            "WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            "RECORD": "",
        }.items():
            wheel.writestr(f"{name}-{version}.dist-info/{file}", text)


def main(constraints: str, folder: str, *names: str) -> None:
    """One wheel for each of `names` that is pinned."""
    pinned = pins(Path(constraints))
    Path(folder).mkdir(parents=True, exist_ok=True)
    for name in map(normal, names):
        if name in pinned:
            make(Path(folder), name, pinned[name])
        else:
            print(f"{name} is not needed here anyway")


if __name__ == "__main__":
    main(*sys.argv[1:])
