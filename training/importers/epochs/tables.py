"""Epochs from a CSV with a row for each: epoch,train_seconds,validation_seconds,..."""

from __future__ import annotations

import csv
import re
from pathlib import Path

from calib.foundation.errors import FileError
from calib.training.importers.epochs.lines import TAG, lines_of
from calib.training.importers.epochs.record import MOST_MARKS, EpochLog

FORMAT = "a table of epochs"
UNITS = {"seconds": 1.0, "second": 1.0, "secs": 1.0, "sec": 1.0, "s": 1.0, "time": 1.0, "ms": 1e-3}
KINDS = {
    "validation": ("validation", "val", "valid", "eval", "evaluation", "test"),
    "startup": ("startup", "start", "init"),
    "pause": ("pause", "checkpoint", "save"),
    "input": ("input", "data"),
}
NAME = re.compile(r"""["\s]*[A-Za-z][\w /.()-]{0,40}["\s]*""")  # of a column
LONGEST_S = 1e9


def is_table(head: str) -> bool:
    """Whether a text begins with a line of columns, one of epochs and one of seconds."""
    line = TAG.sub("", head.lstrip("\ufeff").splitlines()[0] if head.strip() else "")
    names = re.split("[,;\t]", line.strip())
    if len(names) < 2 or not all(NAME.fullmatch(name) for name in names):
        return False
    return bool(set(_columns(names).values()) & {("epoch", 1.0), ("epoch", 1e-3)})


def read_table(path: Path) -> EpochLog:
    """A row for each epoch. Raises FileError with the line."""
    lines = lines_of(path)
    head = next(lines, "")
    delimiter = max(",;\t", key=head.count)
    names = head.split(delimiter)
    columns = _columns(names)
    found: dict[str, list[float]] = {kind: [] for kind in ("epoch", *KINDS)}
    try:
        for number, row in enumerate(csv.reader(lines, delimiter=delimiter), 2):
            if number > MOST_MARKS:
                raise FileError(f"{path}: more than {MOST_MARKS} rows")
            cells = dict(zip(names, row, strict=False))
            for name, (kind, unit) in columns.items():
                if text := cells.get(name, "").strip():
                    found[kind].append(_seconds(text, unit, f"{path}, line {number}"))
    except csv.Error as error:
        raise FileError(f"{path} is not CSV: {error}") from error
    if not found["epoch"]:
        raise FileError(f"{path}: no seconds of an epoch in it")
    return EpochLog(
        FORMAT,
        startup_s=found["startup"][0] if found["startup"] else None,
        epochs_s=tuple(found["epoch"]),
        validations_s=tuple(found["validation"]),
        pauses_s=tuple(found["pause"]),
    )


def _columns(names: list[str]) -> dict[str, tuple[str, float]]:
    """(kind, unit in s) of the columns that hold a time."""
    found = {}
    for name in names:
        words = re.findall("[a-z]+", name.lower())
        units = [UNITS[word] for word in words if word in UNITS]
        if units:
            kinds = [kind for kind, known in KINDS.items() if not set(known).isdisjoint(words)]
            found[name] = (kinds[0] if kinds else "epoch", min(units))
    return found


def _seconds(text: str, unit: float, where: str) -> float:
    try:
        value = float(text) * unit
    except ValueError:
        raise FileError(f"{where}: {text[:40]!r} is not a number of seconds") from None
    if not 0 <= value <= LONGEST_S:
        raise FileError(f"{where}: {text[:40]} is no time")
    return value
