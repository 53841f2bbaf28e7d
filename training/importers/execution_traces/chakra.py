"""Chakra execution traces (.et): length-delimited protobuf, plain or gzipped.

Written by chakra's converters and generators, and by calib. See foundation/chakra.py. Attributes that
are read: comm_type, comm_size, comm_src, comm_dst, comm_tag, pg_name. Groups have names only; their
ranks are in the comm-group file of ASTRA-sim ({"1": [0, 1], ...}), which is read beside it. A node waits
for its data_deps and its ctrl_deps, as in ASTRA-sim; one ctrl_dep is the node that called it.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from calib.foundation.chakra import Attr, CollectiveCommType, Global, IOInfo, NodeField, NodeType
from calib.foundation.errors import FileError
from calib.foundation.files import read_json
from calib.foundation.protobuf import delimited, fields, packed, signed
from calib.foundation.text import plain
from calib.training.importers.execution_traces.record import (
    MOST_DEPENDENCIES,
    MOST_NODES,
    Communication,
    ExecutionTrace,
    NodeKind,
    TraceNode,
    TraceTensor,
    checked,
    operation_named,
)
from calib.training.importers.execution_traces.tensors import of_text

LARGEST = 1 << 24  # bytes of a node
MICROS = 1e6  # in a second
KINDS: dict[int, NodeKind] = {
    NodeType.COMP_NODE: "compute",
    NodeType.COMM_COLL_NODE: "collective",
    NodeType.COMM_SEND_NODE: "send",
    NodeType.COMM_RECV_NODE: "receive",
    NodeType.MEM_LOAD_NODE: "memory",
    NodeType.MEM_STORE_NODE: "memory",
    NodeType.METADATA_NODE: "metadata",
}
FLOATS = {Attr.DOUBLE: "<d", Attr.FLOAT: "<f"}
FIXED = {Attr.FIXED32: "<I", Attr.FIXED64: "<Q", Attr.SFIXED32: "<i", Attr.SFIXED64: "<q"}
ZIGZAG = (Attr.SINT32, Attr.SINT64)

Attributes = dict[str, int | float | str]
Groups = Mapping[str, tuple[int, ...]]


def read_chakra(stream: IO[bytes], path: Path, groups: Groups) -> ExecutionTrace:
    """The trace in a stream. Raises FileError for what is no Chakra trace, damaged, or too large."""
    nodes: list[TraceNode] = []
    schema, about, depends = "", Attributes(), 0
    try:
        for number, data in enumerate(delimited(stream, LARGEST)):
            if number == 0:
                schema, about = _metadata(data)
                continue
            if number > MOST_NODES:
                raise FileError(f"execution trace {path} has more than {MOST_NODES} nodes")
            nodes.append(_node(data, groups))
            depends += len(nodes[-1].after)
            if depends > MOST_DEPENDENCIES:
                raise FileError(f"execution trace {path}: over {MOST_DEPENDENCIES} dependencies")
    except (ValueError, struct.error) as error:
        where = f"node {len(nodes) + 1} of the file" if nodes or schema else "its first message"
        raise FileError(f"{path} is no Chakra trace, or damaged: {where}: {error}") from error
    return checked(path, nodes, f"Chakra {schema}", about)


def _metadata(data: bytes) -> tuple[str, Attributes]:
    version, about = "", Attributes()
    for number, value in fields(data):
        if number == Global.VERSION and isinstance(value, bytes):
            version = _text(value)
        elif number == Global.ATTR and isinstance(value, bytes):
            about |= _attribute(value)
    if not version:
        raise ValueError("it has no version")
    return version, about


def _node(data: bytes, groups: Groups) -> TraceNode:
    numbers: dict[int, int] = {}
    texts: dict[int, bytes] = {}
    lists = defaultdict[int, list[int]](list)
    attributes = Attributes()
    for number, value in fields(data):
        if number in (NodeField.DATA_DEPS, NodeField.CTRL_DEPS):
            lists[number] += [value] if isinstance(value, int) else packed(value)
        elif isinstance(value, int):
            numbers[number] = value
        elif number == NodeField.ATTR:
            attributes |= _attribute(value)
        else:
            texts[number] = value
    kind = KINDS.get(numbers.get(NodeField.TYPE, 0), "label")
    start, duration = (
        numbers.get(of, 0) / MICROS for of in (NodeField.START_MICROS, NodeField.DURATION_MICROS)
    )
    parents = lists[NodeField.CTRL_DEPS]
    return TraceNode(
        id=numbers.get(NodeField.ID, 0),
        name=_text(texts.get(NodeField.NAME, b"")),
        kind=kind,
        start_s=start,
        duration_s=duration,
        inputs=_inputs(texts.get(NodeField.INPUTS, b"")),
        communication=_communication(kind, attributes, groups),
        after=tuple(dict.fromkeys([*lists[NodeField.DATA_DEPS], *parents])),
        parent=parents[0] if len(parents) == 1 else None,
    )


def _inputs(data: bytes) -> tuple[TraceTensor, ...]:
    texts = {number: _text(value) for number, value in fields(data) if isinstance(value, bytes)}
    found = of_text(texts.get(IOInfo.SHAPES, ""), texts.get(IOInfo.TYPES, ""))
    return tuple(each.tensor for each in found)


def _text(data: bytes) -> str:
    return plain(data.decode(errors="replace"))


def _attribute(data: bytes) -> Attributes:
    """{name: value} of a value that is no list; else {}."""
    name = ""
    found: int | float | str | None = None
    for number, value in fields(data):
        if number == Attr.NAME and isinstance(value, bytes):
            name = _text(value)
        elif isinstance(value, int):
            found = (value >> 1) ^ -(value & 1) if number in ZIGZAG else signed(value)
        elif number == Attr.STRING:
            found = _text(value)
        elif number in FLOATS:
            (found,) = struct.unpack(FLOATS[Attr(number)], value)
        elif number in FIXED:
            (found,) = struct.unpack(FIXED[Attr(number)], value)
    return {} if found is None else {name: found}


def _communication(kind: NodeKind, attributes: Attributes, groups: Groups) -> Communication | None:
    if kind not in ("collective", "send", "receive"):
        return None
    nbytes, group = _whole(attributes, "comm_size"), str(attributes.get("pg_name", ""))
    ranks = groups.get(group, ())
    if kind != "collective":
        peer = _whole(attributes, "comm_dst" if kind == "send" else "comm_src")
        tag = _whole(attributes, "comm_tag")
        return Communication("p2p", nbytes, group=group, ranks=ranks, peer=peer, tag=tag)
    number = _whole(attributes, "comm_type") or 0
    try:
        operation = operation_named(CollectiveCommType(number).name)
    except ValueError as error:
        raise ValueError(f"comm_type {number} is none") from error
    return Communication(operation, nbytes, group=group, ranks=ranks)


def _whole(attributes: Attributes, name: str) -> int | None:
    value = attributes.get(name)
    if value is None:
        return None
    if not isinstance(value, int) or value < 0:
        raise ValueError(f"{name} is {value!r:.40}")
    return value


def read_groups(path: Path) -> dict[str, tuple[int, ...]]:
    """The ranks of each group in ASTRA-sim's comm-group file. Raises FileError."""
    content = read_json(path, "comm-group file")
    if not isinstance(content, dict):
        raise FileError(f"comm-group file {path} is no object of groups")
    for name, ranks in content.items():
        if not isinstance(ranks, list) or not all(isinstance(r, int) and r >= 0 for r in ranks):
            raise FileError(f"comm-group file {path}: group {name!r:.40} is no list of ranks")
    return {name: tuple(ranks) for name, ranks in content.items()}
