"""The ExecutionTrace record: what one rank ran, node by node, with what each waited for."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Literal, NamedTuple

from calib.foundation.errors import FileError
from calib.foundation.layers import Shape
from calib.training.traces.collectives import operation_of
from calib.training.traces.shapes import item_type

# compute: an operator or a compute node; kernel: what a GPU runs for one; label: an annotation, a root
NodeKind = Literal[
    "compute", "kernel", "collective", "send", "receive", "memory", "metadata", "label"
]
MOST_NODES = 2_000_000
MOST_TENSORS = 4096  # of a node; as many elements of a list does PyTorch's observer write
MOST_DEPENDENCIES = 20_000_000


class TraceTensor(NamedTuple):
    """A tensor that a node reads: its shape, and the type of its items ("" where not said)."""

    shape: Shape
    dtype: str


@dataclass(frozen=True, slots=True)
class Communication:
    """What a collective or a message sends.

    `operation` has our name where there is one (foundation/collectives.py). `nbytes` and `elements` are
    of what this rank gives, None where the trace does not say; `dtype` of its items. `group` is the
    trace's name of a process group, "" the default one; `ranks` its members, empty where they are not
    known. `peer` is the other end of a message, and `tag` what tells it apart.
    """

    operation: str
    nbytes: int | None = None
    elements: int | None = None
    dtype: str = ""
    group: str = ""
    ranks: tuple[int, ...] = ()
    peer: int | None = None
    tag: int | None = None

    @property
    def buffer_bytes(self) -> int | None:
        """Bytes m of the whole buffer, as calib counts: of an allgather what all ranks give."""
        if self.nbytes is None or self.operation != "allgather":
            return self.nbytes
        return self.nbytes * len(self.ranks) if self.ranks else None


@dataclass(frozen=True, slots=True)
class TraceNode:
    """One node. Seconds are None where the trace has none: PyTorch's observer writes no times.

    `after` has the ids of the nodes that it depends on: those of the trace, or, of PyTorch's, the last
    before it that wrote what it reads. `parent` is the node that called it.
    """

    id: int
    name: str
    kind: NodeKind
    start_s: float | None = None
    duration_s: float | None = None
    inputs: tuple[TraceTensor, ...] = ()
    communication: Communication | None = None
    after: tuple[int, ...] = ()
    parent: int | None = None


@dataclass(frozen=True)
class ExecutionTrace:
    """The trace of one rank: its `schema`, its nodes in order, and what else the file says."""

    schema: str
    nodes: tuple[TraceNode, ...]
    about: dict[str, str | int | float]


def operation_named(name: str) -> str:
    """Our name of an operation, or the trace's in small letters."""
    return operation_of(name) or name.lower()


def dtype_named(name: str) -> str:
    """Our name of an item type: of Tensor(c10::BFloat16), Float; or the trace's in small letters."""
    name = name.removeprefix("Tensor(").removesuffix(")").strip().lower()
    return item_type(name) or name


def checked(
    path: object, nodes: list[TraceNode], schema: str, about: dict[str, str | int | float]
) -> ExecutionTrace:
    """The trace. Raises FileError: no nodes, an id twice, a dependency on what is not there."""
    if not nodes:
        raise FileError(f"execution trace {path} has no nodes")
    known = {node.id for node in nodes}
    if len(known) < len(nodes):
        twice, _ = Counter(node.id for node in nodes).most_common(1)[0]
        raise FileError(f"execution trace {path}: node {twice} is there twice")
    for node in nodes:
        for other in node.after:
            if other not in known:
                raise FileError(
                    f"execution trace {path}: node {node.id} depends on {other}, which is not there"
                )
    return ExecutionTrace(schema, tuple(nodes), about)
