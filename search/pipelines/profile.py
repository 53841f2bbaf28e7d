"""Profiles as PipeDream writes them (graph.txt): layers with ms and bytes at one mini-batch, edges."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import ClassVar

from calib.foundation.errors import FileError, InputError
from calib.foundation.files import read_text
from calib.foundation.quantities import MAX_BYTES, MAX_SECONDS

SUFFIXES = (".graph.txt", "graph.txt")
# and the most that each may be: ms of a pass, bytes
FIELDS = {
    "forward_compute_time": MAX_SECONDS * 1e3,
    "backward_compute_time": MAX_SECONDS * 1e3,
    "activation_size": MAX_BYTES,
    "parameter_size": MAX_BYTES,
}
LINEAR = re.compile(r"Linear\(in_features=(\d{1,9}), out_features=(\d{1,9})(, bias=False)?")
CONVOLUTION = re.compile(r"Conv\dd\(\d{1,9}, (\d{1,9}),")
# layers whose rows may be steps of a sequence
SEQUENCES = re.compile("LSTM|GRU|RNN|Embedding|Attention|Transformer")
OF_LINEAR = (
    "{} is of {} samples, which its Linear layers have as rows: graph.txt does not say it by itself"
)
BATCH_SAID = "that {} is of {} samples was said with the request: its file does not tell"
BATCH_OVERRULED = (
    "{} samples were asked for: the times of a profile are of its own, and of no others"
)
BATCH_UNKNOWN = "{} does not say of how many samples it is"


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
class PipelineProfile:
    """Layers and the edges (indices) between them, both in the order of the file."""

    own_batch: ClassVar[bool] = True
    name: str
    nodes: tuple[Node, ...]
    edges: tuple[tuple[int, int], ...]

    @cached_property
    def batch(self) -> int | None:
        """Samples of its mini-batch, inferred from the layers: the file has no such field.

        In a network of images a Linear layer puts out one row per sample, of out_features items as large
        as those of its parameters. None where there is no such layer, where layers work on sequences,
        and where Linear layers or the sizes of convolutions contradict one another.
        """
        texts = [of.what for of in self.nodes]
        convolutions = [(of, found) for of in self.nodes if (found := CONVOLUTION.match(of.what))]
        if not convolutions or any(map(SEQUENCES.search, texts)):
            return None
        rows = {rows_of(of) for of in self.nodes if of.what.startswith("Linear(")}
        if len(rows) != 1 or not (batch := rows.pop()):
            return None
        maps = (of.activation_bytes / (batch * int(found[1]) or 1) for of, found in convolutions)
        return batch if all(of.is_integer() for of in maps) else None

    def batch_on(self, devices: int, asked: int | None) -> tuple[int | None, tuple[str, ...]]:
        """The samples of a mini-batch on each of so many devices together, and notes on them."""
        if self.batch is None:
            note = BATCH_UNKNOWN if asked is None else BATCH_SAID
            return asked, (note.format(self.name, asked),)
        found, notes = devices * self.batch, [OF_LINEAR.format(self.name, self.batch)]
        if asked not in (None, found):
            notes.append(BATCH_OVERRULED.format(asked))
        return found, tuple(notes)

    @cached_property
    def without_inputs(self) -> PipelineProfile:
        """What PipeDream's optimizer cuts: without Input sources and unused __getitem__."""
        read, reading = {a for a, _ in self.edges}, {b for _, b in self.edges}
        kept = [
            i
            for i, of in enumerate(self.nodes)
            if not (i not in reading and of.what.startswith("Input"))
            and not (i not in read and of.what.startswith("__getitem__"))
        ]
        place = {i: n for n, i in enumerate(kept)}
        edges = tuple((place[a], place[b]) for a, b in self.edges if a in place and b in place)
        return replace(self, nodes=tuple(self.nodes[i] for i in kept), edges=edges)


def rows_of(linear: Node) -> int | None:
    """Rows of a Linear layer's output; None where its sizes do not fit."""
    found = LINEAR.match(linear.what)
    if found is None or not int(found[2]):
        return None
    into, out = int(found[1]), int(found[2])
    item = linear.parameter_bytes / (into * out + (0 if found[3] else out) or 1)
    rows = linear.activation_bytes / (item * out) if item in (2.0, 4.0, 8.0) else 0.5
    return int(rows) if rows.is_integer() else None


def profile_of(name: str) -> PipelineProfile | None:
    """The profile of a file with such a name; None for any other name. Raises FileError."""
    return read(Path(name)) if name.endswith(SUFFIXES) else None


def read(path: Path) -> PipelineProfile:
    """Read a graph.txt (msr-fiddle/pipedream). Raises FileError."""
    text = read_text(path, "profile")
    name = path.name.removesuffix("graph.txt").rstrip(".") or path.resolve().parent.name
    try:
        return parsed(text.splitlines(), name)
    except InputError as error:
        raise FileError(f"profile {path}, {error}") from error


def parsed(lines: Iterable[str], name: str) -> PipelineProfile:
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
    graph: TopologicalSorter[int] = TopologicalSorter()
    for source, reader in edges:
        graph.add(reader, source)
    try:
        graph.prepare()
    except CycleError as error:
        raise InputError(f"its edges make a circle: {nodes[error.args[1][0]].name}") from error
    return PipelineProfile(name, tuple(nodes), tuple(edges))


def _node(words: list[str], number: int) -> Node:
    """`nodeK -- what -- name=value, ...`, and perhaps a stage, which is ignored."""
    if len(words) not in (3, 4):
        raise InputError(f"line {number}: neither a layer nor an edge")
    given = [pair.partition("=") for pair in words[2].split(", ")]
    if [field for field, _, _ in given] != [*FIELDS]:
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
    if not 0.0 <= value <= FIELDS[field]:
        raise InputError(
            f"line {number}: {field}={text:.40} is not a number from 0 to {FIELDS[field]:g}"
        )
    return value
