"""Logs of one JSON object a line: NVIDIA's DLLogger, and MLPerf's mlperf_logging."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from calib.foundation.errors import FileError
from calib.training.importers.epochs.lines import lines_of
from calib.training.importers.epochs.record import EpochLog, Mark, log_of_marks

DLLOGGER, MLPERF = "DLLogger lines", "MLPerf lines"
TAGS = ("DLLL ", ":::MLLOG ")
LATEST_S = 1e11  # a clock time in s
MOST_STEPS = 1 << 53
Entry = dict[str, Any]


def is_json_lines(head: str) -> bool:
    """Whether a log begins with lines of either, behind what a launcher puts before them."""
    return any(tag + "{" in head for tag in TAGS) or head.lstrip().startswith("{")


def read_json_lines(path: Path) -> EpochLog:
    """The log of either. Raises FileError where there is none of them in it."""
    marks: list[Mark] = []
    inputs: list[float] = []
    intervals: list[tuple[str, str, float, int]] = []
    begin: float | None = None
    ranks: int | None = None
    for entry in _entries(path):
        at, step, data = _clock(entry), entry.get("step"), entry.get("data")
        if at is None:
            continue
        begin = at if begin is None else min(begin, at)
        if "event_type" in entry:
            of = entry.get("metadata")
            count = of.get("epoch_count", 1) if isinstance(of, dict) else 1
            count = count if isinstance(count, int) and 0 < count < 10**6 else 1
            intervals.append((str(entry.get("key")), str(entry["event_type"]), at, count))
        elif step == "PARAMETER" and isinstance(data, dict):
            ranks = data["world_size"] if isinstance(data.get("world_size"), int) else ranks
        elif isinstance(data, dict) and (mark := _mark(at, step, data)) is not None:
            marks.append(mark)
            waited = data.get("train.data_time")
            if isinstance(waited, int | float) and not mark.validation:
                inputs.append(float(waited))
    if intervals:
        return log_of_intervals(intervals)
    if begin is None or not any(not mark.validation for mark in marks):
        raise FileError(f"{path}: JSON lines, but no step of DLLogger or epoch of MLPerf in them")
    return log_of_marks(DLLOGGER, marks, begin, inputs, ranks)


def _entries(path: Path) -> Iterator[Entry]:
    for line in lines_of(path):
        start = line.find("{")
        if start < 0 or not (start == 0 or line[:start].endswith(TAGS)):
            continue
        try:
            entry = json.loads(line[start:])
        except (ValueError, RecursionError):
            continue  # cut off, or written over by another rank
        if isinstance(entry, dict):
            yield entry


def _clock(entry: Entry) -> float | None:
    """Seconds of an entry: `timestamp` of DLLogger, `time_ms` of MLPerf."""
    name, unit = ("time_ms", 1e-3) if "time_ms" in entry else ("timestamp", 1.0)
    try:
        at = unit * float(entry[name])
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
    return at if 0 <= at < LATEST_S else None


def _mark(at: float, step: Any, data: Entry) -> Mark | None:
    """[epoch, iteration] of a step; of a validation also [epoch] alone."""
    if not isinstance(step, list) or not step:
        return None
    if not all(isinstance(n, int) and 0 <= n < MOST_STEPS for n in step):
        return None
    names = [str(name) for name in data]
    validation = any(name.startswith("val") for name in names)
    if not validation and (len(step) < 2 or not any(n.startswith("train") for n in names)):
        return None
    # iterations of a validation are counted apart
    return Mark(at, step[0], 0 if validation else step[1], validation)


def log_of_intervals(intervals: list[tuple[str, str, float, int]]) -> EpochLog:
    """MLPerf's epoch_start to epoch_stop, or block_*, and eval_start to eval_stop."""
    keys = {key for key, _, _, _ in intervals}
    epoch = "epoch" if "epoch_start" in keys else "block"
    begin = min(at for _, _, at, _ in intervals)
    first: float | None = None
    open_since: dict[str, tuple[float, int]] = {}
    epochs: list[float] = []
    validations: list[float] = []
    pauses: list[float] = []
    ended: float | None = None
    for key, _, at, count in sorted(intervals, key=lambda each: each[2]):
        kind, _, end = key.rpartition("_")
        if kind not in (epoch, "eval") or end not in ("start", "stop"):
            continue
        if end == "start":
            if kind == epoch:
                first = at if first is None else first
                if ended is not None and "eval" not in open_since:
                    pauses.append(at - ended)
            open_since[kind] = at, count
        elif kind in open_since:
            since, many = open_since.pop(kind)
            if kind == epoch:
                epochs += [(at - since) / many] * many
            else:
                validations.append(at - since)
            ended = at
    return EpochLog(
        MLPERF,
        startup_s=None if first is None else first - begin,
        epochs_s=tuple(epochs),
        validations_s=tuple(validations),
        pauses_s=tuple(pauses),
    )
