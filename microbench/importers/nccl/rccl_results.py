"""The file that rccl-tests writes with -x: CSV (-Z csv) or JSON (-Z json), 2024 and later.

A row is one time, out of place or in place. What the file calls ranksPerNode are the processes of a
communicator (src/common.cu), so that its one node may be many: they must be said otherwise. Of
reduce_scatter and scatter the size was once that of a rank's part. How many calls
a time is the mean of, -a and -G are not in the file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

from calib.microbench.importers.lines.reading import Faults, Log, cells_of, is_json
from calib.microbench.importers.nccl.operations import (
    DTYPES,
    KINDS,
    PROGRAMS,
    OperationKind,
    agreeing,
)
from calib.microbench.importers.nccl.rows import RunRows
from calib.microbench.importers.nccl.runs import find_nodes, import_table
from calib.microbench.importers.nccl.tables import AlikeRuns, Context
from calib.microbench.importers.said import Flags, file_name, remark
from calib.microbench.importers.table import Imported

NAME = "rccl-tests -x"
DESCRIPTION = "rccl-tests, JSON and CSV files"

HEADER = re.compile(
    r"^[ \t]*(?:numCycle, *)?(?:collective|name), *[^\n]*\bsize, *type, *redop, *inplace, *time, *algbw",
    re.MULTILINE | re.IGNORECASE,
)
RENAMED = {"#wrong": "wrong", "collective": "name"}
WANTED = ("name", "size", "type", "redop", "inplace", "time", "algbw", "busbw", "wrong")
NUMBER = re.compile(r"\d+(?:\.\d*)?(?:[eE][+-]?\d+)?", re.ASCII)
SIZE = re.compile(r"\d{1,18}", re.ASCII)
OBJECT = re.compile(r"\{[^{}]*\}?")
SOME = 0.5  # of the rows
CLOSE = 0.02  # algbw * time against the size, which are 1 and the ranks
NOTE = "iterations, -a and -G are not in the file: taken as one call, the mean of the ranks, eager"


@dataclass(frozen=True)
class RowSetting:
    """What rows have in common that are read as one table; `each` are the processes "of a node"."""

    name: str
    processes: int
    each: int
    gpus: int  # of a process
    one_node: bool  # built without MPI


Fields = dict[str, str]


def recognise(log: Log) -> bool:
    """Whether a file is one of the two."""
    if is_json(log.text):
        return '"algBw"' in log.text and '"inPlace"' in log.text
    return bool(HEADER.search(log.text))


def read(log: Log, flags: Flags) -> Imported:
    """All rows of a file."""
    result = Imported(NAME)
    rows = _json_rows(log, result.faults) if is_json(log.text) else _csv_rows(log, result.faults)
    found: dict[RowSetting, tuple[int, list[tuple[int, Fields]]]] = {}
    for line, fields in rows:
        setting = _setting(fields)
        if setting is None:
            result.faults.add(line, "not a row: a field is missing or not a number")
            continue
        found.setdefault(setting, (line, []))[1].append((line, fields))
    if found:
        remark(result.notes, NOTE)
    for setting, (line, own) in found.items():
        reason = _import(setting, line, own, log.name, flags, result)
        if reason:
            result.faults.add(line, reason)
    return result


def _csv_rows(log: Log, faults: Faults) -> Iterator[tuple[int, Fields]]:
    """Line and fields of every row below a header; a file may hold several."""
    names: list[str] = []
    for number, line in enumerate(log.text.split("\n"), 1):
        if not line.strip():
            continue
        cells = cells_of(line)
        if HEADER.match(line):
            names = [_name(cell) for cell in cells]
        elif not names or len(cells) != len(names):
            faults.add(number, "not a row: its columns are not those of the header")
        elif number == log.cut_line and not line.rstrip().endswith('"'):
            faults.add(number, "the row is cut short")
        else:
            yield number, dict(zip(names, cells, strict=True))


def _json_rows(log: Log, faults: Faults) -> Iterator[tuple[int, Fields]]:
    """The same of JSON objects: a list, or one after the other as they were at first."""
    decoder = json.JSONDecoder(parse_float=str, parse_int=str)
    number, before = 1, 0
    for match in OBJECT.finditer(log.text):
        number += log.text.count("\n", before, match.start())
        before = match.start()
        try:
            content = decoder.decode(match[0])
        except (ValueError, RecursionError):
            faults.add(number, "not a row: no complete JSON object")
            continue
        yield number, {_name(name): str(value).strip() for name, value in content.items()}


def _name(word: str) -> str:
    name = word.strip().lower()
    return RENAMED.get(name, name)


def _setting(fields: Fields) -> RowSetting | None:
    """What a row says of its run; None where it has not all the fields that a row has."""
    if not all(name in fields for name in WANTED):
        return None
    if not all(NUMBER.fullmatch(fields[name]) for name in ("size", "time", "algbw", "busbw")):
        return None
    one = "ranks" not in fields
    words = ("gpus",) if one else ("ranks", "rankspernode", "gpusperrank")
    numbers = [_whole(fields.get(word, "")) for word in words]
    if 0 in numbers or fields["inplace"] not in ("0", "1") or not SIZE.fullmatch(fields["size"]):
        return None
    processes, each, gpus = (1, 1, *numbers) if one else numbers
    return RowSetting(fields["name"], processes, each, gpus, one)


def _whole(text: str) -> int:
    """A whole number above 0, else 0."""
    return int(text) if text.isdecimal() and text.isascii() and len(text) < 18 else 0


def _import(
    setting: RowSetting,
    line: int,
    rows: list[tuple[int, Fields]],
    file: str,
    flags: Flags,
    result: Imported,
) -> str:
    """Put the rows of one setting into `result`; returns why that cannot be, or ""."""
    operation = PROGRAMS.get(setting.name.lower(), "")
    if not operation:
        return "its collective is unknown"
    kind, ranks = KINDS[operation], setting.processes * setting.gpus
    table = AlikeRuns(
        line, RunRows(result.faults), Context(operation), library=flags.library or "nccl"
    )
    table.ranks = table.active_ranks = ranks
    for number, fields in rows:
        table.rows.extend(line, [number], _tokens(fields, kind, ranks))
    if not table.rows.columns():
        return ""  # each row is a fault
    nodes = 0
    if setting.each != setting.processes:
        evidence = table.evidence()
        if agreeing(evidence, kind, setting.each * setting.gpus) > SOME:
            return "several groups of ranks may have run at once; the number of nodes is not given"
        nodes = -(-setting.processes // setting.each)
    if not setting.one_node:
        find_nodes(table, nodes, flags, file_name(file), result.notes)
    return import_table(table, file, flags, result)


def _tokens(fields: Fields, kind: OperationKind, ranks: int) -> list[str]:
    """A row as the text output has it, with the size of the whole buffer and the count that follows."""
    size, item = int(fields["size"]), DTYPES.get(fields["type"], ("", 0))[1]
    moved = float(fields["algbw"]) * float(fields["time"]) * 1e3
    if kind.per_rank and size and abs(moved / (size * ranks) - 1) < CLOSE:
        size *= ranks
    count = size // max(item, 1) // (ranks if kind.per_rank else 1)
    head = [str(size), str(count), fields["type"], fields["redop"], "0" if kind.rooted else "-1"]
    half, none = [fields[name] for name in ("time", "algbw", "busbw", "wrong")], ["N/A"] * 4
    return [*head, *none, *half] if fields["inplace"] == "1" else [*head, *half, *none]
