"""Chakra execution traces of a predicted iteration: what ASTRA-sim and other simulators run.

A folder has iteration.RANK.et for each rank, and comm_groups.json with the groups of ranks that
collectives name (pg_name). Attributes have the names and types that chakra's feeder and ASTRA-sim's
Workload read. Every dependency is in data_deps, which all releases of both heed; is_cpu_op is false, so
that one compute node runs at a time on a rank, and communication beside it. `duration_micros` is what is
predicted of each node from its begin to its end, with what it waits for others: a replay takes the
predicted time. Otherwise ASTRA-sim takes times of communication from its own network.

The size of an all-gather is what each rank gives (ASTRA-sim's Ring.cc), in calib the whole result.

A trace cannot hold intervals and bases (those of the iteration are attributes of its first message),
parts of a microsecond (the ends of nodes are rounded, so that the error does not add up; where a node
takes 0, ASTRA-sim takes 1 ns), broadcasts and halos, and what a receiver does for a message that has
come (a compute node stands for it). There are no numbers of operations and bytes of compute nodes:
ASTRA-sim's roofline-enabled must be 0.

References
----------
https://github.com/mlcommons/chakra: src/feeder/et_feeder_node.cpp, src/converter.
https://github.com/astra-sim/astra-sim: astra-sim/workload/Workload.cc, HardwareResource.cc.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from calib import __version__
from calib.fitting.parameters.file import Parameters
from calib.fitting.parameters.signature import digest
from calib.foundation.chakra import (
    VERSION,
    Attr,
    CollectiveCommType,
    Global,
    NodeField,
    NodeType,
    list_of,
)
from calib.foundation.errors import FileError, InputError
from calib.foundation.files import destination, ensure_directory, write_json, write_whole
from calib.foundation.protobuf import field, with_length
from calib.oracle.projection import Projection
from calib.oracle.tasks.program import Iteration, Task

NAME, GROUPS_FILE = "iteration", "comm_groups.json"
TYPES = {
    "compute": NodeType.COMP_NODE,
    "collective": NodeType.COMM_COLL_NODE,
    "send": NodeType.COMM_SEND_NODE,
    "receive": NodeType.COMM_RECV_NODE,
}
COMM_TYPES = {
    "allreduce": CollectiveCommType.ALL_REDUCE,
    "allgather": CollectiveCommType.ALL_GATHER,
    "reduce_scatter": CollectiveCommType.REDUCE_SCATTER,
}
EVERY_DIMENSION = [1] * 4  # of a network: what ASTRA-sim takes where a node names none
MOST_RANKS = 65_536  # and files

Groups = dict[tuple[int, ...], int]  # ranks -> number, from 1: 0 is every rank


def check_folder(folder: Path) -> None:
    """Raise InputError where a folder holds anything, or is none; FileError where nobody can tell."""
    try:
        taken = os.path.lexists(folder) and (not os.path.isdir(folder) or bool(os.listdir(folder)))
    except OSError as error:
        raise FileError(f"cannot look into {folder}: {error.strerror}") from error
    if taken:
        raise InputError(f"{folder} is there already: traces are written to a new or empty folder")


def write_traces(
    folder: Path, iteration: Iteration, predicted: Projection, parameters: Parameters
) -> Path:
    """Write the traces of all ranks, and the groups; returns the path that simulators take, FOLDER/NAME.

    Raises InputError for too many ranks or a collective that Chakra lacks, and FileError.
    """
    if iteration.p > MOST_RANKS:
        raise InputError(f"{iteration.p} ranks are more files than {MOST_RANKS}")
    folder = ensure_directory(destination(folder))
    groups: Groups = {}
    head = with_length(_metadata(predicted, parameters))
    tasks: Sequence[Task] = ()
    data = head
    for rank in range(iteration.p):
        before, tasks = tasks, iteration.program(rank)
        if tasks is not before:
            data = head + b"".join(map(with_length, nodes_of(tasks, iteration.p, groups)))
        write_whole(folder / f"{NAME}.{rank}.et", data)
    ranks_of = {str(number): list(ranks) for ranks, number in groups.items()}
    write_json(folder / GROUPS_FILE, ranks_of)
    return folder / NAME


def _metadata(predicted: Projection, parameters: Parameters) -> bytes:
    """The GlobalMetadata: what the iteration is, and how well it is known."""
    division, total = predicted.division, predicted.total
    about: dict[str, str | float | int] = {
        "written_by": f"calib {__version__}",
        "model": predicted.model,
        "strategy": " ".join(filter(None, (division.strategy, division.layout))),
        "ranks": division.p,
        "batch": division.batch,
        "optimizer": predicted.optimizer,
        "execution": predicted.execution,
        "parameters": digest(parameters.model_dump(mode="json")),
    }
    if total is not None:
        about |= {
            "predicted_s": total.value,
            "low95_s": total.low,
            "high95_s": total.high,
            "basis": total.basis,
        }
    kinds = {str: Attr.STRING, float: Attr.DOUBLE, int: Attr.INT64}
    attributes = (_attribute(name, kinds[type(value)], value) for name, value in about.items())
    found = field(Global.VERSION, VERSION)
    return found + b"".join(field(Global.ATTR, each) for each in attributes)


def nodes_of(tasks: Sequence[Task], p: int, groups: Groups) -> Iterator[bytes]:
    """The Node of each task of a rank."""
    for index, task in enumerate(tasks):
        begin, end = _micros(task.begin_s), _micros(task.end_s)
        content: list[tuple[NodeField, int | str | bytes | tuple[int, ...]]] = [
            (NodeField.ID, index),
            (NodeField.NAME, task.name),
            (NodeField.TYPE, TYPES[task.kind]),
            (NodeField.DATA_DEPS, task.after),
            (NodeField.START_MICROS, begin),
            (NodeField.DURATION_MICROS, end - begin),
            *((NodeField.ATTR, each) for each in _attributes(task, p, groups)),
        ]
        # what is 0 or empty is left out, as protobuf does
        yield b"".join(field(number, value) for number, value in content if value)


def _micros(seconds: float) -> int:
    return round(seconds * 1e6)


def _attributes(task: Task, p: int, groups: Groups) -> Iterator[bytes]:
    """In the types of chakra's feeder, which reads no other."""
    yield _attribute("is_cpu_op", Attr.BOOL, False)
    if task.kind == "compute":
        return
    if task.kind != "collective":
        source, to = task.ranks
        yield _attribute("comm_size", Attr.INT64, task.nbytes)
        yield _attribute("comm_src", Attr.INT32, source)
        yield _attribute("comm_dst", Attr.INT32, to)
        yield _attribute("comm_tag", Attr.INT32, task.tag)
        return
    if task.operation not in COMM_TYPES:
        raise InputError(f"Chakra has no {task.operation}, which {task.name} is")
    nbytes = task.nbytes
    if task.operation == "allgather":
        nbytes = -(-nbytes // len(task.ranks))
    yield _attribute("comm_type", Attr.INT64, COMM_TYPES[task.operation])
    yield _attribute("comm_size", Attr.INT64, nbytes)
    yield _attribute("involved_dim", list_of(Attr.BOOL), field(1, EVERY_DIMENSION))
    if len(task.ranks) < p:
        yield _attribute(
            "pg_name", Attr.STRING, str(groups.setdefault(task.ranks, len(groups) + 1))
        )


def _attribute(name: str, kind: int, value: int | float | str | bytes) -> bytes:
    return field(Attr.NAME, name) + field(kind, value)
