"""nccl-tests -J: one JSON object per run (2.17.3 and later), whole or cut short.

The object holds the whole environment of the process (`env`). NCCL_ALGO and NCCL_PROTO are looked for in
it: an algorithm and a protocol that they name are kept, and nothing else of it. Rows have no lines of
their own: a fault gives the line where the row begins.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from calib.microbench.importers.lines.reading import HEAD, Log, is_json
from calib.microbench.importers.nccl.operations import MEAN, PROGRAMS, average_of
from calib.microbench.importers.nccl.rows import RunRows
from calib.microbench.importers.nccl.runs import import_table, version_of
from calib.microbench.importers.nccl.tables import AlikeRuns, Context, Where
from calib.microbench.importers.said import Flags
from calib.microbench.importers.table import Imported

NAME = "nccl-tests -J"
DESCRIPTION = "nccl-tests, JSON output"

START = re.compile(r'\{\s*"version"\s*:')
RESULTS = re.compile(r'"results"\s*:\s*\[')
ROW = re.compile(r'\{\s*"size"\s*:')
CONFIG = re.compile(r'"config"\s*:\s*')
ENVIRONMENT = re.compile(r'"env"\s*:\s*')
ARGS = re.compile(r'"args"\s*:\s*')
CODE = re.compile(r'"nccl_version"\s*:\s*"?(\d{4,6})\b')
PROGRAM = re.compile(r"(?:^|/)(\w+?)(?:_perf)?$")
MOST_GPUS = 1024  # of a process
DECODER = json.JSONDecoder(parse_float=str, parse_int=str)


def recognise(log: Log) -> bool:
    """Whether a file is the output of -J."""
    return _begins(log.text) or (is_json(log.text) and '"alg_bw"' in log.text)


def _begins(text: str) -> bool:
    start = text[:HEAD].lstrip().removeprefix("[").lstrip()[:4096]
    return START.match(start) is not None and '"start_time"' in start


def read(log: Log, flags: Flags) -> Imported:
    """All runs of a file."""
    result = Imported(NAME)
    text = log.text if START.search(log.text) else _in_order(log.text) or log.text
    starts = [match.start() for match in START.finditer(text)] or [0]
    for start, end in zip(starts, [*starts[1:], len(text)], strict=True):
        line = text.count("\n", 0, start) + 1
        _read_run(text[start:end], start, line, log, flags, result)
    return result


def _in_order(text: str) -> str:
    """The same with the keys in nccl-tests' order, where another tool has sorted them."""
    content = _decoded(text, len(text) - len(text.lstrip()))
    ordered = []
    for run in content if isinstance(content, list) else [content]:
        if not isinstance(run, dict) or not isinstance(run.get("results"), list):
            continue
        first = {
            name: run.get(name) for name in ("version", "args", "env", "nccl_version", "config")
        }
        rows = [{"size": row.get("size"), **row} for row in run["results"] if isinstance(row, dict)]
        ordered.append(json.dumps({**first, "results": rows}))
    return "\n".join(ordered)


def _read_run(text: str, run: int, line: int, log: Log, flags: Flags, result: Imported) -> None:
    match = RESULTS.search(text)
    if match is None:
        result.faults.add(line, "the run has no results")
        return
    head = text[: match.start()]
    code = CODE.search(head)
    if code:
        result.library_version = version_of(int(code[1]))
    rows = RunRows(result.faults)
    table = AlikeRuns(line, rows, _context(head), library=flags.library or "nccl")
    host_time = False
    for at, row in _rows(text, match.end()):
        number = line + text.count("\n", 0, at)
        tokens = _tokens(row)
        if tokens is None:
            host_time |= "cpu_time" in str(row)
            result.faults.add(number, "not a row: a field is missing or not a number")
        else:
            rows.extend(run, [number], tokens)
    if not _closed(text, match.end()):
        result.faults.add(line + text.count("\n"), "the file ends inside the results")
    if not rows.columns():
        reason = "the times are the host's (-C)" if host_time else "the run has no rows"
    elif table.said.unknown:
        reason = f"the program {table.said.unknown} is unknown"
    else:
        reason = import_table(table, log.name, flags, result)
    if reason:
        result.faults.add(line, reason)


def _decoded(text: str, at: int) -> Any:
    """The JSON value that begins at a place, or None."""
    try:
        return DECODER.raw_decode(text, at)[0]
    except (ValueError, RecursionError):
        return None


def _rows(text: str, at: int) -> Iterator[tuple[int, Any]]:
    """Place and content of every row of the results; one that is broken is None."""
    other = RESULTS.search(text, at)
    for match in ROW.finditer(text, at, other.start() if other else len(text)):
        yield match.start(), _decoded(text, match.start())


def _closed(text: str, at: int) -> bool:
    """Whether the list of results has its end."""
    return isinstance(_decoded(text, at - 1), list) or '"average_bus_bandwidth"' in text[at:]


def _context(head: str) -> Context:
    """Program, devices and iterations; of the arguments only the program's name and -a are used."""
    operation = unknown = ""
    average = MEAN
    if match := ARGS.search(head):
        arguments = _decoded(head, match.end())
        words = [str(word) for word in arguments] if isinstance(arguments, list) else []
        first, average = words[0] if words else "", average_of(" ".join(words[1:]))
        if program := PROGRAM.search(first):
            operation = PROGRAMS.get(program[1], "")
            unknown = program[1] if not operation and first.endswith("_perf") else ""
    values = _forced(head)
    match = CONFIG.search(head)
    config = _decoded(head, match.end()) if match else None
    if not isinstance(config, dict):
        return Context(operation, unknown, average=average, forced=values)
    each = _whole(config.get("nthreads"), 1) * _whole(config.get("ngpus"), 1)
    aggregated = _whole(config.get("aggregated_iterations"), 1)
    ranks = []
    devices = config.get("devices")
    for device in devices if isinstance(devices, list) else []:
        if isinstance(device, dict):  # one entry for each process, of its first GPU
            first_rank, group = _whole(device.get("rank"), 0), _whole(device.get("group"), 0)
            host, gpu = str(device.get("hostname")), str(device.get("device_info"))
            local = range(min(each, MOST_GPUS))
            ranks += [Where(first_rank + number, group, host, gpu) for number in local]
    return Context(
        operation,
        unknown,
        ranks=tuple(ranks),
        per_process=each,
        iterations=_whole(config.get("iterations"), 1) * aggregated,
        graph=_whole(config.get("graph"), 0) > 0,
        average=average,
        forced=values,
    )


def _forced(head: str) -> tuple[str, str]:
    """The values of NCCL_ALGO and NCCL_PROTO in the environment, a list of NAME=value or an object."""
    match = ENVIRONMENT.search(head)
    words = _decoded(head, match.end()) if match else None
    found = {"NCCL_ALGO": "", "NCCL_PROTO": ""}
    if isinstance(words, dict):
        words = [f"{name}={value}" for name, value in words.items()]
    for word in words if isinstance(words, list) else []:
        name, _, value = word.partition("=") if isinstance(word, str) else ("", "", "")
        if name in found:
            found[name] = value
    return found["NCCL_ALGO"], found["NCCL_PROTO"]


def _whole(value: Any, default: int) -> int:
    """A whole number that is not too large to be one of ranks or iterations."""
    text = str(value)
    return int(text) if text.isdecimal() and text.isascii() and len(text) < 8 else default


def _tokens(row: Any) -> list[str] | None:
    """A row as the text output would have it, with all the digits of the JSON; None if it is none."""
    if not isinstance(row, dict):
        return None
    tokens = [str(row.get(name, "")).strip() for name in ("size", "count", "type", "redop", "root")]
    for name in ("out_of_place", "in_place"):
        half = row.get(name)
        if half is None:
            tokens += ["N/A"] * 4
            continue
        if not isinstance(half, dict) or "time" not in half:
            return None
        wrong = half.get("nwrong")
        tokens += [str(half.get(field, "")) for field in ("time", "alg_bw", "bus_bw")]
        tokens.append("N/A" if wrong is None else str(wrong))
    return tokens
