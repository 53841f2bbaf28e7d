"""Iteration times from CSV or JSONL tables: one row per iteration, or per iteration and rank.

Columns: model, strategy, p, batch (global) and seconds; optional: the phases of
training/run/record.py, rank, iteration, warmup, loss. A time is in seconds, or in the unit after its
last underscore: forward_s, forward_ms, forward_us; a file has one unit. Every mistake is one line,
FILE:LINE: what.
"""

from __future__ import annotations

import csv
import difflib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from calib.foundation.errors import CalibError, FileError
from calib.foundation.files import read_bytes
from calib.training.importers.records import ImportedCase, TimedIteration, short, strategy_of
from calib.training.run.lines import PRINTED, RUN_PHASES

MOST = 10_000_000  # ranks or samples: beyond any machine
LONGEST_S = 1e9  # longest iteration: 30 years
UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
TOTAL = "seconds"
# the iteration's time: the unit in words, or a name that takes a unit as a suffix
TOTALS = {"seconds": "s", "milliseconds": "ms", "microseconds": "us"}
NAMES = {
    "ranks": "p",
    "world_size": "p",
    "global_batch": "batch",
    "step": "iteration",
    "total": TOTAL,
}
PLAIN = ("model", "strategy", "p", "batch", "rank", "iteration", "warmup", "loss")
CASE = ("model", "strategy", "p", "batch")
KNOWN = (*CASE, TOTAL, *RUN_PHASES, *PLAIN[4:])
TRUE, FALSE = ("true", "yes", "1"), ("false", "no", "0")


@dataclass(frozen=True, slots=True)
class ImportedRow:
    """A valid row; times in seconds."""

    path: Path
    line: int
    case: ImportedCase
    seconds: float
    phases: dict[str, float]
    rank: int | None
    iteration: int | None
    warmup: bool | None
    loss: float | None


@dataclass
class RunTable:
    """The rows of a file, and the assumptions made."""

    path: Path
    rows: list[ImportedRow]
    notes: list[str] = field(default_factory=list)


def at(path: Path, line: int, what: str | CalibError) -> FileError:
    """The error of a line."""
    return FileError(f"{path}:{line}: {what}", getattr(what, "wants", ""))


def at_row(row: ImportedRow, what: str) -> FileError:
    """The error of a row."""
    return at(row.path, row.line, what)


def column(name: str) -> tuple[str, str]:
    """The field of a column and its unit ("" for none). Raises FileError."""
    word = name.strip().lower().replace(" ", "_")
    if word in TOTALS:
        return TOTAL, TOTALS[word]
    plain = NAMES.get(word, word)
    if plain in PLAIN:
        return plain, ""
    if plain in RUN_PHASES or plain == TOTAL:
        return plain, "s"
    stem, _, unit = word.rpartition("_")
    stem = NAMES.get(stem, stem)
    if unit in UNITS and (stem in RUN_PHASES or stem == TOTAL):
        return stem, unit
    near = difflib.get_close_matches(word, KNOWN, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise FileError(f"unknown column {short(name)}{hint} (known: {', '.join(KNOWN)})")


def columns(names: list[str]) -> dict[str, tuple[str, float]]:
    """The field of each column of a file, and its factor to seconds. Raises FileError."""
    found = {name: column(name) for name in names}
    fields = [of for of, _ in found.values()]
    for of in fields:
        if fields.count(of) > 1:
            twice = [name for name, (other, _) in found.items() if other == of] or [of]
            raise FileError(f"{of} is given twice: {', '.join(twice)}")
    units = {unit: name for name, (_, unit) in found.items() if unit}
    if len(units) > 1:
        both = ", ".join(f"{name} in {unit}" for unit, name in units.items())
        raise FileError(f"mixed units: {both}; a file has one unit")
    return {name: (of, UNITS.get(unit, 1.0)) for name, (of, unit) in found.items()}


def read_table(path: Path, given: Mapping[str, Any]) -> RunTable:
    """The rows of a CSV or JSONL file.

    `given` has what flags say of CASE (or None), for a file without that column. Raises FileError,
    FILE:LINE: what, for the first invalid row.
    """
    text = read_bytes(path, "table of iterations").decode("utf-8-sig", errors="replace")
    records = _jsonl(path, text) if text.lstrip().startswith("{") else _csv(path, text)
    table, unit = RunTable(path, []), None
    words: dict[str, str] = {}
    cases: dict[str, ImportedCase] = {}
    seen: dict[tuple[str, ...], dict[str, tuple[str, float]]] = {}
    for line, content in records:
        try:
            names = tuple(content)
            known = seen.get(names) or seen.setdefault(names, columns(list(names)))
            factors = {factor for of, factor in known.values() if of not in PLAIN}
            if unit is not None and factors and factors != unit:
                raise FileError("mixed units: another one than in the rows before")
            unit = factors or unit
            cells = {of: (content[n], f) for n, (of, f) in known.items()}
            row = _row((path, line), cells, given, words, cases)
        except CalibError as error:
            raise at(path, line, error) from error
        table.rows.append(row)
    if not table.rows:
        raise FileError(f"{path} has no row")
    table.notes += [f"{word!r} is taken as {name}" for word, name in words.items() if word != name]
    return table


def _csv(path: Path, text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    head = text.split("\n", 1)[0]
    delimiter = max(",;\t", key=head.count)
    reader = csv.reader(text.splitlines(keepends=True), delimiter=delimiter, strict=True)
    names: list[str] | None = None
    try:
        for cells in reader:
            if not any(cell.strip() for cell in cells):
                continue
            if names is None:
                names = [cell.strip() for cell in cells]
                repeated = {name for name in names if names.count(name) > 1}
                if repeated:
                    raise at(path, reader.line_num, f"column {short(min(repeated))} is there twice")
                try:
                    columns(names)
                except FileError as error:
                    raise at(path, reader.line_num, str(error)) from error
                continue
            if len(cells) != len(names):
                what = f"{len(cells)} cells under {len(names)} columns"
                raise at(path, reader.line_num, what)
            yield reader.line_num, {n: c.strip() for n, c in zip(names, cells, strict=True)}
    except csv.Error as error:
        raise at(path, reader.line_num, f"not CSV ({error})") from error


def _jsonl(path: Path, text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            content = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise at(path, number, "not a JSON record") from error
        if not isinstance(content, dict):
            raise at(path, number, "not a JSON record")
        if content.get("record") == "run":
            raise FileError(f"{path} is a training run already: it can be reported on as it is")
        yield number, content


def _row(
    where: tuple[Path, int],
    cells: dict[str, tuple[Any, float]],
    given: Mapping[str, Any],
    words: dict[str, str],
    cases: dict[str, ImportedCase],
) -> ImportedRow:
    def cell(name: str) -> Any:
        value = cells.get(name, (None, 1.0))[0]
        return None if value == "" else value

    def said(name: str) -> Any:
        value, flag = cell(name), given.get(name)
        if value is None and flag is None:
            raise FileError(f"missing column {name!r}", wants=name)
        if value is None:
            return flag
        kind = int if name in ("p", "batch") else str
        read = whole_number(name, value, 1) if kind is int else strategy_or_name(name, value, words)
        wanted = strategy_or_name(name, flag, words) if kind is str and flag is not None else flag
        if wanted is not None and wanted != read:
            raise FileError(f"{name} is {str(read)[:40]}, but the flag says {str(wanted)[:40]}")
        return read

    def number(name: str) -> int | None:
        return None if cell(name) is None else whole_number(name, cell(name), 0)

    # one object for all rows of a case; repr tells 1 from True and "1"
    key = repr([cell(name) for name in CASE])
    case = cases.get(key)
    if case is None:
        strategy = strategy_of(str(said("strategy")))
        case = cases[key] = ImportedCase(str(said("model")), strategy, said("p"), said("batch"))
    if cell(TOTAL) is None:
        raise FileError("missing column 'seconds'" if TOTAL not in cells else "no seconds")
    seconds = time_of(TOTAL, *cells[TOTAL])
    if seconds <= 0:
        raise FileError("an iteration of 0 seconds")
    phases = {x: time_of(x, *cells[x]) for x in RUN_PHASES if cell(x) is not None}
    if sum(phases.values()) > seconds * (1 + PRINTED):
        raise FileError(f"the phases add up to {sum(phases.values()):.6g} s, over {seconds:.6g} s")
    rank = number("rank")
    if rank is not None and rank >= case.p:
        raise FileError(f"rank {rank} of p = {case.p}: ranks count from 0")
    loss = None if cell("loss") is None else number_of("loss", cell("loss"), finite=False)
    warmup = None if cell("warmup") is None else truth(cell("warmup"))
    return ImportedRow(*where, case, seconds, phases, rank, number("iteration"), warmup, loss)


def strategy_or_name(name: str, value: Any, words: dict[str, str]) -> str:
    """A word of a cell; for a strategy the oracle's name, noted in `words` under the file's name."""
    if not isinstance(value, str) or not value.strip():
        raise FileError(f"{name} {short(value)} is not a name")
    if name == "strategy":
        words[value.strip()] = strategy_of(value)
        return words[value.strip()]
    return value.strip()


def number_of(name: str, value: Any, finite: bool = True) -> float:
    """A cell as a number. Raises FileError."""
    try:
        if isinstance(value, bool) or not isinstance(value, int | float | str) or "_" in str(value):
            raise ValueError
        number = float(value)
    except (ValueError, OverflowError) as error:
        raise FileError(f"{name} {short(value)} is not a number") from error
    if finite and not math.isfinite(number):
        raise FileError(f"{name} is {number}")
    return number


def time_of(name: str, value: Any, factor: float) -> float:
    """A cell in seconds. Raises FileError where it is no time."""
    number = number_of(name, value)
    if number < 0:
        raise FileError(f"{name} {number:g} is negative")
    if number * factor > LONGEST_S:
        raise FileError(f"{name} {number:g} is over {LONGEST_S:g} s")
    return number * factor


def whole_number(name: str, value: Any, least: int) -> int:
    """A cell as a whole number. Raises FileError."""
    right = (isinstance(value, str) and value.isdecimal()) or type(value) is int
    if not right or len(str(value)) > 12 or not least <= int(value) <= MOST:
        raise FileError(f"{name} {short(value)} is not a whole number from {least} to {MOST}")
    return int(value)


def truth(value: Any) -> bool:
    """A cell as true or false. Raises FileError."""
    word = str(value).strip().lower()
    if word not in (*TRUE, *FALSE):
        raise FileError(f"warmup {short(value)} is neither true nor false")
    return word in TRUE


def iterations_of(rows: list[ImportedRow], warmup: int) -> tuple[list[TimedIteration], list[str]]:
    """The iterations of the rows of one case, in order, and the assumptions made.

    `warmup`: how many of the first are warm-ups, where no row says so. Raises FileError.
    """
    first = rows[0]
    for row in rows:
        for name in ("rank", "iteration"):
            if (getattr(row, name) is None) != (getattr(first, name) is None):
                raise at_row(row, f"{name} is in some rows of this run only")
    counts: dict[int, int] = {}
    by_index: dict[int, dict[int, ImportedRow]] = {}
    for row in rows:
        rank = row.rank or 0
        index = row.iteration if row.iteration is not None else counts.get(rank, 0)
        counts[rank] = counts.get(rank, 0) + 1
        if rank in by_index.setdefault(index, {}):
            raise at_row(row, f"iteration {index} of rank {rank} is there twice")
        by_index[index][rank] = row
    ranks = sorted(counts)
    timed = []
    for place, index in enumerate(sorted(by_index)):
        of_ranks = by_index[index]
        if sorted(of_ranks) != ranks:
            last = max(of_ranks.values(), key=lambda row: row.line)
            missing = ", ".join(str(rank) for rank in ranks if rank not in of_ranks)
            raise at_row(last, f"iteration {index} has no row of rank {missing}")
        timed.append(_timed(index, [of_ranks[r] for r in ranks], place < warmup))
    return timed, _assumed(first.case, rows, ranks, warmup)


def _timed(index: int, rows: list[ImportedRow], early: bool) -> TimedIteration:
    warm = {row.warmup for row in rows}
    if len(warm) > 1:
        raise at_row(rows[-1], f"iteration {index} is a warm-up on some ranks only")
    known = [name for name in RUN_PHASES if all(name in row.phases for row in rows)]
    losses = [row.loss for row in rows if row.loss is not None and math.isfinite(row.loss)]
    return TimedIteration(
        index=index,
        whole=[row.seconds for row in rows],
        phases={name: [row.phases[name] for row in rows] for name in known},
        warmup=early if rows[0].warmup is None else rows[0].warmup,
        loss=sum(x / len(losses) for x in losses) if losses else None,
    )


def _assumed(
    case: ImportedCase, rows: list[ImportedRow], ranks: list[int], warmup: int
) -> list[str]:
    notes = []
    if len(ranks) < case.p:
        which = ", ".join(map(str, ranks)) if rows[0].rank is not None else "one that is not named"
        notes.append(f"times of {len(ranks)} of {case.p} ranks: {which}")
    if not warmup and all(row.warmup is None for row in rows):
        notes.append("no iteration is marked as a warm-up")
    odd = sum(row.loss is not None and not math.isfinite(row.loss) for row in rows)
    if odd:
        notes.append(f"the loss is not finite in {odd} of {len(rows)} rows")
    return notes
