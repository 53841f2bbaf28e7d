"""Profiles as PipeDream writes them (graph.txt): layers with ms and bytes at one mini-batch, edges."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from foundation.errors import FileError, InputError
from foundation.files import read_bytes

SUFFIXES = (".graph.txt", "graph.txt")
FIELDS = ("forward_compute_time", "backward_compute_time", "activation_size", "parameter_size")


@dataclass(frozen=True)
class Node:
    """A layer: forward and backward in s, bytes of its output and of its parameters."""

    name: str
    what: str
    forward_s: float
    backward_s: float
    activation_bytes: float
    parameter_bytes: float


@dataclass(frozen=True)
class Profile:
    """Layers in the order of the file and the edges (indices) between them, in theirs."""

    name: str
    nodes: tuple[Node, ...]
    edges: tuple[tuple[int, int], ...]

    @cached_property
    def without_inputs(self) -> Profile:
        """What the optimizer cuts: no Input sources (they are no choice), no unused __getitem__."""
        ends = {b for _, b in self.edges}
        dropped = {
            i for i, of in enumerate(self.nodes) if i not in ends and of.what.startswith("Input")
        }
        begins = {a for a, b in self.edges if b not in dropped}
        dropped |= {
            i for i, of in enumerate(self.nodes)
            if i not in begins and of.what.startswith("__getitem__")
        }  # fmt: skip
        if not dropped:
            return self
        place = {i: n for n, i in enumerate(i for i in range(len(self.nodes)) if i not in dropped)}
        edges = tuple((place[a], place[b]) for a, b in self.edges if a in place and b in place)
        return Profile(self.name, tuple(self.nodes[i] for i in place), edges)


def profile_of(name: str) -> Profile | None:
    """The profile of a file that is named so; None of another name. Raises FileError."""
    return read(Path(name)) if name.endswith(SUFFIXES) else None


def read(path: Path) -> Profile:
    """Read a graph.txt (msr-fiddle/pipedream). Raises FileError."""
    try:
        text = read_bytes(path, "profile").decode("utf-8")
    except UnicodeDecodeError as error:
        raise FileError(f"profile {path}: it is no text ({error})") from error
    name = path.name.removesuffix("graph.txt").rstrip(".") or path.resolve().parent.name
    try:
        return parsed(text.splitlines(), name)
    except InputError as error:
        raise FileError(f"profile {path}, {error}") from error


def parsed(lines: Iterable[str], name: str) -> Profile:
    """The profile of these lines. Raises InputError, which names the line."""
    nodes: list[Node] = []
    place: dict[str, int] = {}
    links: list[tuple[int, list[str]]] = []
    for number, line in enumerate(lines, 1):
        words = line.strip().split(" -- ")
        if line.startswith("\t") and len(words) == 2:
            links.append((number, words))
        elif line.strip():
            node = _node(words, number)
            if node.name in place:
                raise InputError(f"line {number}: {node.name} is there twice")
            place[node.name] = len(nodes)
            nodes.append(node)
    edges = []
    for number, words in links:
        for word in words:
            if word not in place:
                raise InputError(f"line {number}: an edge of {word!r}, which is no layer")
        edges.append((place[words[0]], place[words[1]]))
    if not nodes:
        raise InputError("line 1: no layers")
    _require_no_cycle(nodes, edges)
    return Profile(name, tuple(nodes), tuple(edges))


def _node(words: list[str], number: int) -> Node:
    """`nodeK -- what -- name=value, ...`, and perhaps a stage, which is ignored."""
    if len(words) not in (3, 4):
        raise InputError(f"line {number}: neither a layer nor an edge")
    given = [pair.partition("=") for pair in words[2].split(", ")]
    if tuple(field for field, _, _ in given) != FIELDS:
        raise InputError(f"line {number}: a layer has {', '.join(FIELDS)}")
    forward, backward, activation, parameter = (
        _number(text, field, number) for field, _, text in given
    )
    return Node(words[0], words[1], forward / 1e3, backward / 1e3, activation, parameter)


def _number(text: str, field: str, number: int) -> float:
    """A number from 0 on, or the sum of a list ([a; b]): the sizes of several outputs."""
    try:
        value = sum(map(float, text.lstrip("[").rstrip("]").split("; ")))
    except ValueError:
        value = -1.0
    if not 0.0 <= value < math.inf:
        raise InputError(f"line {number}: {field}={text} is not a number from 0 on")
    return value


def _require_no_cycle(nodes: list[Node], edges: list[tuple[int, int]]) -> None:
    after: list[list[int]] = [[] for _ in nodes]
    left = [0] * len(nodes)
    for a, b in edges:
        after[a].append(b)
        left[b] += 1
    ready = [i for i, n in enumerate(left) if not n]
    for i in ready:
        for b in after[i]:
            left[b] -= 1
            if not left[b]:
                ready.append(b)
    if len(ready) < len(nodes):
        around = nodes[next(i for i, n in enumerate(left) if n)]
        raise InputError(f"its edges make a circle: {around.name}")
