"""Import iteration times of other training: tables, or the traces of a run's ranks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from calib.foundation.errors import FileError, InputError
from calib.foundation.words import several
from calib.training.importers import table as tables
from calib.training.importers import torch_profiler
from calib.training.importers.records import Circumstances, ImportedCase, division_of, run_of
from calib.training.run.record import TrainingRun
from calib.training.traces.rank import read_rank
from calib.training.traces.run import in_order
from calib.training.traces.stream import GZIP


@dataclass(frozen=True)
class Said:
    """What the options say about all files: the case, where a file does not, and circumstances.

    `words` are the circumstances that were given, by name; they override those of a file.
    """

    given: dict[str, Any]
    about: Circumstances
    words: dict[str, Any]
    warmup: int


def read_runs(files: list[Path], said: Said) -> list[TrainingRun]:
    """The runs in the files, all or none. Raises FileError, InputError."""
    traces = [path for path in files if is_trace(path)]
    if len({path.resolve() for path in files}) < len(files):
        raise InputError("the same file is given twice")
    if traces and len(traces) < len(files):
        raise InputError("give tables or traces, not both at once")
    return [of_traces(traces, said)] if traces else of_tables(files, said)


def is_trace(path: Path) -> bool:
    """Whether a file is a profiler trace: gzipped, or JSON that is no JSONL."""
    try:
        with path.open("rb") as stream:
            first = stream.readline(1 << 16)
    except FileNotFoundError as error:
        raise FileError(f"{path} does not exist") from error
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror}") from error
    words = first.lstrip()
    if first.startswith(GZIP) or words[:1] == b"[" or not first:
        return bool(first)
    # JSONL has an object in its first line; a trace begins one there, of many lines or of one
    whole = words.rstrip().endswith(b"}") and b'"traceEvents"' not in words
    return not whole if words[:1] == b"{" else not words and path.suffix == ".json"


def of_traces(paths: list[Path], said: Said) -> TrainingRun:
    """One run from the traces of its ranks. Raises FileError, InputError."""
    given = said.given
    missing = [f"--{name}" for name in ("model", "strategy", "batch") if given[name] is None]
    if missing:
        raise InputError(f"a trace does not say what was trained: give {', '.join(missing)}")
    traces = [read_rank(path) for path in paths]
    unsaid = [trace.path for trace in traces if trace.ranks is None]
    if unsaid and given["p"] is None and given["strategy"] != "serial":
        raise FileError(f"{unsaid[0]} does not say how many ranks trained: give -p")
    traces = in_order(traces, given["p"])
    ranks = traces[0].ranks or given["p"] or 1
    case = ImportedCase(given["model"], given["strategy"], ranks, given["batch"])
    division_of(case, said.about.inner, said.about.segments)
    steps, notes = torch_profiler.iterations_of(traces, case, said.warmup)
    found = torch_profiler.circumstances_of(traces, ranks) | said.words
    about = replace(
        said.about, **found, source=f"imported from {several([path.name for path in paths])}"
    )
    return run_of(case, steps, about, notes)


def of_tables(paths: list[Path], said: Said) -> list[TrainingRun]:
    """A run for each case and table, or for all tables together where rows name their ranks."""
    about = replace(said.about, **said.words)
    rows: dict[tuple[ImportedCase, Path | None], list[tables.ImportedRow]] = {}
    at: dict[tuple[ImportedCase, Path | None], list[Path]] = {}
    notes: dict[Path, list[str]] = {}
    for path in paths:
        found = tables.read_table(path, said.given)
        notes[path] = found.notes
        checked: set[ImportedCase] = set()
        for row in found.rows:
            if row.case not in checked:
                try:
                    division_of(row.case, about.inner, about.segments)
                except InputError as error:
                    raise tables.at(path, row.line, error) from error
                checked.add(row.case)
            key = row.case, path if row.rank is None else None
            rows.setdefault(key, []).append(row)
            if path not in at.setdefault(key, []):
                at[key].append(path)
    runs = []
    for key, of_run in rows.items():
        steps, more = tables.iterations_of(of_run, said.warmup)
        more = [note for path in at[key] for note in notes[path]] + more
        source = f"imported from {several([path.name for path in at[key]])}"
        runs.append(run_of(key[0], steps, replace(about, source=source), more))
    return runs
