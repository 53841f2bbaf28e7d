"""Chakra traces without calib: decoded from their bytes, and run as ASTRA-sim runs them."""

from __future__ import annotations

import json
import struct
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# et_def.proto, mlcommons/chakra: numbers of fields, and names of enums
COMPUTE, SEND, RECEIVE, COLLECTIVE = 4, 5, 6, 7
VALUES = {3: "<d", 5: "<f"}


@dataclass
class Node:
    """A Node; times in microseconds."""

    id: int = 0
    name: str = ""
    type: int = 0
    after: list[int] = field(default_factory=list)
    start: int = 0
    duration: int = 0
    attributes: dict[str, Any] = field(default_factory=dict)


def number(data: bytes, at: int) -> tuple[int, int]:
    found = shift = 0
    while True:
        found |= (data[at] & 127) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 128:
            return found, at


def message(data: bytes) -> list[tuple[int, int, Any]]:
    """(number of the field, wire type, value)."""
    at, found = 0, []
    while at < len(data):
        key, at = number(data, at)
        if key & 7 == 0:
            value, at = number(data, at)
        else:
            size, at = (8, at) if key & 7 == 1 else (4, at) if key & 7 == 5 else number(data, at)
            value, at = data[at : at + size], at + size
        found.append((key >> 3, key & 7, value))
    return found


def attribute(data: bytes) -> tuple[str, int, Any]:
    """(name, number of the value's field, value)."""
    (_, _, name), (kind, _, value) = message(data)
    if kind in VALUES:
        (value,) = struct.unpack(VALUES[kind], value)
    elif kind == 29:
        value = value.decode()
    elif kind == 28:  # a BoolList, packed
        ((_, _, value),) = message(value)
        value = [bool(each) for each in value]
    return name.decode(), kind, value


def read(path: Path) -> tuple[dict[str, Any], list[Node]]:
    """(attributes of the GlobalMetadata and its version, nodes)."""
    data, at, messages = path.read_bytes(), 0, []
    while at < len(data):
        size, at = number(data, at)
        messages.append(message(data[at : at + size]))
        at += size
    about: dict[str, Any] = {}
    for of, _, value in messages[0]:
        about |= (
            {"version": value.decode()} if of == 1 else {attribute(value)[0]: attribute(value)[2]}
        )
    return about, [node(each) for each in messages[1:]]


def node(fields: list[tuple[int, int, Any]]) -> Node:
    found = Node()
    for of, _, value in fields:
        if of == 5:
            at = 0
            while at < len(value):
                dependency, at = number(value, at)
                found.after.append(dependency)
        elif of == 10:
            name, kind, content = attribute(value)
            found.attributes[name] = content
            found.attributes[f"{name}, field"] = kind
        else:
            name = {1: "id", 2: "name", 3: "type", 6: "start", 7: "duration"}[of]
            setattr(found, name, value.decode() if of == 2 else value)
    return found


def folder(path: Path) -> tuple[list[list[Node]], dict[str, list[int]]]:
    """The nodes of every rank, and the groups."""
    files = sorted(path.glob("iteration.*.et"), key=lambda of: int(of.name.split(".")[1]))
    assert [int(of.name.split(".")[1]) for of in files] == list(range(len(files)))
    return [read(of)[1] for of in files], json.loads((path / "comm_groups.json").read_text())


def replayed(nodes: list[Node]) -> int:
    """Microseconds of one rank whose nodes take their durations: ASTRA-sim's replay_only."""
    end: dict[int, int] = {}
    for each in nodes:
        end[each.id] = max((end[of] for of in each.after), default=0) + each.duration
    return max(end.values())


def simulated(ranks: list[list[Node]], groups: dict[str, list[int]]) -> int:
    """Microseconds until all ranks have done all nodes.

    On a rank one compute node runs at a time, and one collective or send beside it; receives take no
    resource (HardwareResource.cc). A node is issued when its dependencies are done, the lowest id
    first. A collective runs when all its members have issued it, as long as its shortest node says,
    which waited for nobody; a receive ends when it is issued and its message is there (Workload.cc).
    """
    return Simulation(ranks, groups).run()


class Simulation:
    """The state of all ranks."""

    def __init__(self, ranks: list[list[Node]], groups: dict[str, list[int]]) -> None:
        self.groups, self.every, self.now = groups, list(range(len(ranks))), 0
        self.nodes = [{node.id: node for node in nodes} for nodes in ranks]
        self.waits = [{node.id: set(node.after) for node in nodes} for nodes in ranks]
        self.busy: list[set[str]] = [set() for _ in ranks]
        self.running: dict[tuple[int, int], int] = {}  # (rank, id) -> when it ends
        self.met: dict[tuple[Any, ...], list[tuple[int, int]]] = defaultdict(list)
        self.turn: dict[tuple[int, tuple[int, ...]], int] = defaultdict(int)
        self.sent: dict[tuple[int, int, int], int] = {}
        self.waiting: dict[tuple[int, int, int], tuple[int, int]] = {}
        self.free = [{at for at, after in of.items() if not after} for of in self.waits]

    def run(self) -> int:
        while True:
            for rank, ready in enumerate(self.free):
                for at in sorted(ready):
                    resource = taken_by(self.nodes[rank][at])
                    if resource not in self.busy[rank]:
                        self.busy[rank] |= {resource} - {""}
                        ready.remove(at)
                        self.issue(rank, self.nodes[rank][at])
            if not self.running:
                break
            self.now = min(self.running.values())
            for rank, at in [of for of, end in self.running.items() if end == self.now]:
                self.end(rank, at)
        assert not any(self.waits) and not self.waiting, "some nodes never run"
        return self.now

    def end(self, rank: int, at: int) -> None:
        del self.running[rank, at], self.waits[rank][at]
        self.busy[rank] -= {taken_by(self.nodes[rank][at])}
        for other, after in self.waits[rank].items():
            if at in after:
                after.remove(at)
                if not after:
                    self.free[rank].add(other)

    def issue(self, rank: int, of: Node) -> None:
        if of.type == COMPUTE:
            self.running[rank, of.id] = self.now + of.duration
        elif of.type == COLLECTIVE:
            self.meet(rank, of)
        else:
            self.pass_on(rank, of)

    def meet(self, rank: int, of: Node) -> None:
        named = of.attributes.get("pg_name")
        members = tuple(self.every if named is None else self.groups[named])
        assert rank in members
        key = members, self.turn[rank, members]
        self.turn[rank, members] += 1
        self.met[key].append((rank, of.id))
        if len(self.met[key]) == len(members):
            nodes = [self.nodes[r][i] for r, i in self.met[key]]
            about = [(n.name, n.attributes["comm_size"], n.attributes["comm_type"]) for n in nodes]
            assert len(set(about)) == 1
            ends = self.now + min(n.duration for n in nodes)
            self.running.update(dict.fromkeys(self.met[key], ends))

    def pass_on(self, rank: int, of: Node) -> None:
        source, to, tag = (of.attributes[name] for name in ("comm_src", "comm_dst", "comm_tag"))
        message = source, to, tag
        assert rank == (source if of.type == SEND else to)
        if of.type == SEND:
            assert message not in self.sent
            self.sent[message] = self.running[rank, of.id] = self.now + of.duration
            if message in self.waiting:
                self.running[self.waiting.pop(message)] = self.sent[message]
        elif message in self.sent:
            self.running[rank, of.id] = max(self.now, self.sent[message])
        else:
            self.waiting[message] = rank, of.id


def taken_by(of: Node) -> str:
    """The resource that a node takes; "" for none."""
    return {COMPUTE: "compute", RECEIVE: ""}.get(of.type, "communication")
