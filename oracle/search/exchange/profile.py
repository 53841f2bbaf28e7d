"""A profile of layers as PipeDream writes it: times in ms, parameters in bytes, edges."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from foundation.errors import FileError

SUFFIX = ".graph.txt"
NODE = re.compile(
    r"(?P<id>\w+) -- (?P<what>.+) -- forward_compute_time=(?P<forward>[\d.e+-]+), "
    r"backward_compute_time=(?P<backward>[\d.e+-]+), activation_size=[^,]+, "
    r"parameter_size=(?P<bytes>[\d.e+-]+)$"
)
ITEM_BYTES = 4


@dataclass(frozen=True)
class Profile:
    """Layers in an order of their edges: seconds of forward and backward, items of parameters."""

    name: str
    names: tuple[str, ...]
    kinds: tuple[str, ...]
    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]
    items: tuple[int, ...]


def profile_of(name: str) -> Profile | None:
    """The profile of a file that is named so; None of another name. Raises FileError."""
    return read(Path(name)) if name.endswith(SUFFIX) else None


def read(path: Path) -> Profile:
    """Read a graph.txt (msr-fiddle/pipedream). Raises FileError."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(f"profile {path}: {error}") from error
    nodes: dict[str, re.Match[str]] = {}
    before: dict[str, list[str]] = {}
    for number, line in enumerate(lines, 1):
        words = line.strip().split(" -- ")
        found = NODE.match(line.strip())
        if found is not None:
            nodes[found["id"]] = found
        elif line.startswith("\t") and len(words) == 2:
            before.setdefault(words[1], []).append(words[0])
        elif line.strip():
            raise FileError(f"profile {path}, line {number}: neither a layer nor an edge")
    order = _ordered(path, nodes, before)
    try:
        return Profile(
            path.name.removesuffix(SUFFIX), tuple(order),
            tuple(nodes[n]["what"].split("(")[0].lower() for n in order),
            tuple(float(nodes[n]["forward"]) / 1e3 for n in order),
            tuple(float(nodes[n]["backward"]) / 1e3 for n in order),
            tuple(round(float(nodes[n]["bytes"]) / ITEM_BYTES) for n in order),
        )  # fmt: skip
    except ValueError as error:
        raise FileError(f"profile {path}: {error}") from error


def _ordered(
    path: Path, nodes: dict[str, re.Match[str]], before: dict[str, list[str]]
) -> list[str]:
    """Each layer after those that it reads, else in the order of their numbers."""
    unknown = {name for to, of in before.items() for name in (to, *of)} - set(nodes)
    if unknown or not nodes:
        raise FileError(f"profile {path}: {'edges of no layer' if unknown else 'no layers'}")
    left = sorted(nodes, key=lambda name: (len(name), name))
    order: dict[str, None] = {}
    while left:
        ready = next((n for n in left if all(b in order for b in before.get(n, ()))), None)
        if ready is None:
            raise FileError(f"profile {path}: its edges make a circle")
        order[ready] = None
        left.remove(ready)
    return list(order)
