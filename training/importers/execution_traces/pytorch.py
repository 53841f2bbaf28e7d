"""Execution traces that PyTorch's ExecutionTraceObserver writes (PARAM, Chakra host traces): JSON.

Schemas 1.0.x and 1.1.x, also "-chakra.0.0.4"; from 1.0.2 on a node has ctrl_deps (its caller), inputs
and outputs as {values, shapes, types} and attrs; before, parent, inputs, input_shapes, ... beside them.
Traces that chakra_trace_link joined with a profile also have ts and inclusive_dur, microseconds, and a
GPU's kernels (cat).

What communicates: record_param_comms (NCCL), with attributes from 1.1.0 on, else by the place of its
arguments; without it, as with gloo, the node of the library itself (gloo:all_reduce). The c10d::
operator that called either is not counted again. Groups are in the node of process_group:init.

References
----------
pytorch: torch/csrc/profiler/standalone/execution_trace_observer.cpp,
torch/csrc/distributed/c10d/ParamCommsUtils.hpp; facebookresearch/param: et_replay/execution_trace.py,
et_replay/comm/commsTraceParser.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from calib.foundation.errors import FileError
from calib.foundation.text import plain
from calib.training.importers.execution_traces.record import (
    MOST_DEPENDENCIES,
    MOST_NODES,
    Communication,
    ExecutionTrace,
    NodeKind,
    TraceNode,
    checked,
    dtype_named,
    operation_named,
)
from calib.training.importers.execution_traces.tensors import Argument, arguments
from calib.training.traces.stream import read_array

SCHEMA = re.compile(r"1\.[01]\.\d+(-chakra\.[\d.]+)?")
LIBRARIES = re.compile(r"(gloo|mpi|ucc|xccl|hccl):(\w+)")
COMMS, INIT = "record_param_comms", "process_group:init"
MESSAGES = ("c10d::send", "c10d::recv_")  # (tensors, group, rank, tag)
MOST_CALLERS = 1000  # of a node
NOT_SENT = ("wait", "init", "end", "start", "coalesced")  # collective_name of what is no operation
MICROS = 1e6  # in a second
MOST_RANKS = 10_000_000
# places of the arguments of record_param_comms before 1.1.0; of wait and barrier one less
GROUP_AT, PEER_AT, NAME_AT = 2, 3, 4


class RawNode(NamedTuple):
    """A node with the memory that it reads and writes; the other end and the tag of c10d's messages."""

    node: TraceNode
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    message: tuple[int, int] | None = None


def read_pytorch(path: Path) -> ExecutionTrace:
    """The trace in a file, gzipped or not. Raises FileError for what is none, damaged or too large."""
    found: list[RawNode] = []
    groups: dict[str, tuple[int, ...]] = {}

    def take(content: dict[str, Any]) -> None:
        if len(found) == MOST_NODES:
            raise FileError(f"execution trace {path} has more than {MOST_NODES} nodes")
        try:
            raw = _node(content)
            groups.update(_groups(raw.node.name, content))
        except (ValueError, RecursionError) as error:
            named = content.get("id")
            raise FileError(f"execution trace {path}: node {named!r:.40}: {error}") from error
        found.append(raw)

    about = read_array(path, take, "nodes", "execution trace of PyTorch")
    schema = about.pop("schema", "")
    if not isinstance(schema, str) or not SCHEMA.fullmatch(schema):
        raise FileError(f"execution trace {path}: schema {schema!r:.40} is not one that is read")
    known = {key: value for key, value in about.items() if isinstance(value, str | int | float)}
    found.sort(key=lambda raw: raw.node.id)
    messages = {raw.node.id: raw.message for raw in found if raw.message is not None}
    nodes = [
        _with_peer(_in_group(node, groups), messages) for node in _with_dependencies(path, found)
    ]
    return checked(path, nodes, f"PyTorch {schema}", known)


def _node(content: dict[str, Any]) -> RawNode:
    """A node of either schema. Raises ValueError."""
    attributes = {
        each["name"]: each.get("value")
        for each in content.get("attrs", ())
        if isinstance(each, dict) and isinstance(each.get("name"), str)
    }
    number, name = _count(content, "id"), content.get("name")
    if number is None or not isinstance(name, str):
        raise ValueError("it has no id or no name")
    given, made = (_arguments(content, of) for of in ("input", "output"))
    kind = _kind(name, content, attributes, bool(given or made))
    communication = None
    if kind in ("collective", "send", "receive"):
        kind, communication = _communication(name, content, attributes, given)
    parent = _count(content, "ctrl_deps" if "ctrl_deps" in content else "parent")
    node = TraceNode(
        id=number,
        name=plain(name),
        kind=kind,
        start_s=_seconds(content, "ts"),
        duration_s=_seconds(content, "inclusive_dur", "exclusive_dur"),
        inputs=tuple(each.tensor for each in given),
        communication=communication,
        parent=None if parent == number else parent,
    )
    message = _message(content) if name in MESSAGES else None
    return RawNode(node, _storages(given), _storages(made), message)


def _message(content: dict[str, Any]) -> tuple[int, int] | None:
    """The other rank and the tag of c10d's send or recv_: its last arguments."""
    peer, tag = [None, None, *_values(content)][-2:]
    known = isinstance(peer, int) and isinstance(tag, int) and peer >= 0
    return (peer, tag) if known else None


def _arguments(content: dict[str, Any], of: str) -> tuple[Argument, ...]:
    lists = content.get(f"{of}s", {})
    if isinstance(lists, dict):
        return arguments(*(lists.get(name, []) for name in ("values", "shapes", "types")))
    return arguments(lists, content.get(f"{of}_shapes"), content.get(f"{of}_types"))


def _values(content: dict[str, Any]) -> list[Any]:
    lists = content.get("inputs", [])
    found = lists.get("values", []) if isinstance(lists, dict) else lists
    return found if isinstance(found, list) else []


def _storages(of: Sequence[Argument]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(each.storage for each in of if each.storage is not None))


def _count(content: dict[str, Any], key: str) -> int | None:
    value = content.get(key)
    if value is None:
        return None
    if not isinstance(value, int) or value < 0:
        raise ValueError(f"{key} is {value!r:.40}")
    return value


def _seconds(content: dict[str, Any], *keys: str) -> float | None:
    value = next((content[key] for key in keys if content.get(key) is not None), None)
    if value is None:
        return None
    if not isinstance(value, int | float) or not 0 <= value < 1e18:
        raise ValueError(f"{keys[0]} is {value!r:.40}")
    return value / MICROS


def _kind(
    name: str, content: dict[str, Any], attributes: dict[str, Any], has_tensors: bool
) -> NodeKind:
    if INIT in name:
        return "metadata"
    if content.get("cat") is not None:
        return "kernel"
    if name == COMMS or LIBRARIES.fullmatch(name):
        return "collective"
    schema = attributes.get("op_schema", content.get("op_schema", ""))
    calls = name.startswith("c10d::")
    return "compute" if (schema or (has_tensors and "::" in name)) and not calls else "label"


def _communication(
    name: str, content: dict[str, Any], attributes: dict[str, Any], given: Sequence[Argument]
) -> tuple[NodeKind, Communication | None]:
    """What is sent, and whether by a collective, a send or a receive; a label where nothing is."""
    values = _values(content)
    library = LIBRARIES.fullmatch(name)
    group, peer = attributes.get("pg_name"), None
    if library:
        operation = library[2]
    else:
        shift = 1 if {"wait", "barrier"} & {v for v in values[:5] if isinstance(v, str)} else 0
        places = [values[at - shift] if len(values) > at - shift else None for at in range(1, 5)]
        _, named, peer, operation = places
        operation = str(attributes.get("collective_name") or operation or "")
        if group is None:
            group = named[0] if isinstance(named, list) and named else named
    operation = operation_named(operation)
    if not operation or operation.startswith(NOT_SENT):
        return "label", None
    kind: NodeKind = "collective"
    if operation == "send":
        kind = "send"
    elif operation == "receive":
        kind = "receive"
    nbytes = elements = None
    if given and given[0].value:
        nbytes, elements = sum(of.nbytes for of in given), sum(of.elements for of in given)
    if attributes.get("in_msg_nelems") is not None:
        elements = _count(attributes, "in_msg_nelems")
    dtype = given[0].dtype if given else dtype_named(str(attributes.get("dtype", "")))
    return kind, Communication(
        "p2p" if kind != "collective" else operation,
        nbytes,
        elements,
        dtype,
        "" if group is None else plain(str(group)),
        _strided(attributes),
        peer if kind != "collective" and isinstance(peer, int) and peer >= 0 else None,
    )


def _strided(attributes: dict[str, Any]) -> tuple[int, ...]:
    """The ranks of a group by its first rank, stride and size, where these are known."""
    first, stride, size = (
        attributes.get(key) for key in ("global_rank_start", "global_rank_stride", "pg_size")
    )
    if not (isinstance(first, int) and isinstance(stride, int) and isinstance(size, int)):
        return ()
    if not (first >= 0 and stride > 0 and 0 < size <= MOST_RANKS):
        return ()
    return tuple(range(first, first + stride * size, stride))


def _groups(name: str, content: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """The groups of process_group:init, by name; no ranks are all of them."""
    if INIT not in name:
        return {}
    text = next(iter(_values(content)), "")
    try:
        listed = json.loads(text) if isinstance(text, str) else None
    except ValueError:
        return {}  # PyTorch cuts long ones off
    found = {}
    for of in listed if isinstance(listed, list) else ():
        size, ranks = (
            of.get(key) if isinstance(of, dict) else None for key in ("group_size", "ranks")
        )
        if isinstance(ranks, list) and all(isinstance(rank, int) for rank in ranks):
            every = range(size) if isinstance(size, int) and 0 < size <= MOST_RANKS else ()
            found[plain(str(of.get("pg_name", "")))] = tuple(ranks or every)
    return found


def _in_group(node: TraceNode, groups: dict[str, tuple[int, ...]]) -> TraceNode:
    """With the ranks of its group; where the trace names none, of the only group."""
    sent = node.communication
    if sent is None or sent.ranks or not groups:
        return node
    group = sent.group
    if not group and len(groups) == 1:
        (group,) = groups
    return replace(node, communication=replace(sent, group=group, ranks=groups.get(group, ())))


def _with_peer(node: TraceNode, messages: dict[int, tuple[int, int]]) -> TraceNode:
    """With the other end of a message, which gloo's node does not say, but c10d's that called it."""
    sent = node.communication
    if sent is None or node.kind == "collective" or node.parent not in messages:
        return node
    peer, tag = messages[node.parent]
    return replace(node, communication=replace(sent, peer=peer, tag=tag))


def _with_dependencies(path: Path, found: Sequence[RawNode]) -> Iterator[TraceNode]:
    """Each node after the last ones before it that wrote what it reads, but for its callers."""
    parent = {raw.node.id: raw.node.parent for raw in found}
    wrote: dict[int, list[int]] = {}
    count = 0
    for raw in found:
        callers = _callers(raw.node, parent.get)
        after = set()
        for storage in raw.reads:
            writers = wrote.get(storage, ())
            after |= {next((of for of in reversed(writers) if of not in callers), -1)}
        after.discard(-1)
        count += len(after)
        if count > MOST_DEPENDENCIES:
            raise FileError(f"execution trace {path}: over {MOST_DEPENDENCIES} dependencies")
        for storage in raw.writes:
            wrote.setdefault(storage, []).append(raw.node.id)
        yield replace(raw.node, after=tuple(sorted(after)))


def _callers(node: TraceNode, parent_of: Callable[[int], int | None]) -> set[int]:
    """The nodes that called it, and those that called these; not those of an endless chain."""
    found: set[int] = set()
    caller = node.parent
    while caller is not None and caller not in found and len(found) < MOST_CALLERS:
        found.add(caller)
        caller = parent_of(caller)
    return found
