"""Import logs of collectives: files that give rows, and why others do not."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from calib.advice import advised
from calib.foundation.errors import CalibError, FileError, InputError
from calib.foundation.words import counted
from calib.importing.traces import read_traces
from calib.microbench.importers import logs_in, no_row, read_file
from calib.microbench.importers.jobs.joining import join
from calib.microbench.importers.lines.reading import NoLogError
from calib.microbench.importers.said import NO_FLAGS, Flags
from calib.microbench.importers.table import Imported
from calib.microbench.records.manifest import ImportedFile
from calib.terminal.printing import say
from calib.training.traces.stream import is_kineto

SHOWN = 20  # faults of a file that are printed; manifest.json has them all
NAMED = 5  # files that are no logs
Found = list[tuple[ImportedFile, Imported]]


def read_all(files: list[Path], flags: Flags, keep_going: bool) -> Found:
    """All files that give rows; their faults are printed. Traces of torch.profiler are of one run.

    Raises FileError for a file without rows, unless `keep_going`, and where no file gives any. In a
    directory, files that are no logs are left out and counted, and logs without rows are left out by
    name.
    """
    traces = [path for path in files if not path.is_dir() and is_kineto(path)]
    found: Found = read_traces(traces, flags) if traces else []
    for note in found[0][0].notes if found else ():
        say(f"note: {note}")
    for path in files:
        if path in traces:
            continue
        if not path.is_dir():
            one = _read(path, path.name, flags)
            if isinstance(one, CalibError):
                if not keep_going:
                    more = "; --keep-going leaves such a file out" if len(files) > 1 else ""
                    raise FileError(f"{advised(one)}{more}") from one
                say(f"left out: {advised(one)}")
            else:
                found.append(one)
            continue
        found += _read_directory(path, logs_in(path), flags)
    if not found:
        raise FileError("no file gives a row")
    repeated = [name for name, times in Counter(r.sha256 for r, _ in found).items() if times > 1]
    if repeated:
        twice = [record.name for record, _ in found if record.sha256 == repeated[0]]
        raise InputError(f"the same log is given twice: {', '.join(twice)}")
    _join(found, flags)
    return found


def _join(found: Found, flags: Flags) -> None:
    """Make rows of the calls of single ranks, of all files together. Raises FileError without any."""
    of_run = [(record, imported) for record, imported in found if imported.calls]
    if not of_run:
        return
    first, name = of_run[0][0], of_run[0][0].name
    joined = join([imported for _, imported in of_run], flags, name)
    if not any(imported.blocks for _, imported in of_run):
        some = name if len(of_run) == 1 else f"{name} and {len(of_run) - 1} more"
        raise FileError(f"{some}: no row: {'; '.join(joined.notes)}", joined.wants)
    for (record, _), used in zip(of_run, joined.used, strict=True):
        record.rows = used
    first.notes += [note for note in joined.notes if note not in first.notes]
    calls, rows = sum(joined.used), sum(imported.rows for _, imported in of_run)
    say(
        f"{counted(calls, 'call')} of single ranks in {counted(len(of_run), 'file')} are "
        f"{counted(rows, 'collective')}, each as long as on the rank that waited least"
    )
    for note in joined.notes:
        say(f"note: {note}")


def read_runs(files: list[Path]) -> list[Imported]:
    """All logs among files and directories, also those of runs that failed and have no rows.

    Raises FileError for a file that cannot be read, and where there is no log.
    """
    found, others = [], 0
    paths = [path for file in files for path in (logs_in(file) if file.is_dir() else [file])]
    for path in paths:
        try:
            found.append(read_file(path, NO_FLAGS)[1])
        except NoLogError:
            if path in files:
                raise
            others += 1
    if others:
        say(f"left out, no logs: {counted(others, 'file')}")
    if not found:
        raise FileError("no file is a log that this program reads")
    return found


def _read(path: Path, name: str, flags: Flags) -> tuple[ImportedFile, Imported] | CalibError:
    """A file that gives rows, its faults printed, or why it gives none."""
    try:
        record, imported = read_file(path, flags, name)
    except CalibError as error:
        return error
    if not record.rows:
        return no_row(path, record)
    _print_faults(path, record)
    return record, imported


def _read_directory(directory: Path, paths: list[Path], flags: Flags) -> Found:
    """The logs among the files of a directory. Raises FileError where there is none."""
    found: Found = []
    others: list[str] = []
    failed = ""
    for path in paths:
        name = path.relative_to(directory).as_posix()
        one = _read(path, name, flags)
        if isinstance(one, NoLogError):
            others.append(name)
        elif isinstance(one, CalibError):
            failed = failed or advised(one)
            say(f"left out: {advised(one)}")
        elif same := next((r.name for r, _ in found if r.sha256 == one[0].sha256), ""):
            say(f"left out: {path} is the same log as {same}")
        else:
            found.append(one)
    if others:
        some = ", ".join(others[:NAMED]) + (", ..." if len(others) > NAMED else "")
        say(f"{directory}: left out, no logs: {len(others)} ({some})")
    if not found:
        raise FileError(failed or f"no file in {directory} is a log that this program reads")
    return found


def _print_faults(path: Path, record: ImportedFile) -> None:
    for line, text in record.faults[:SHOWN]:
        say(f"{path}:{line}: {text}")
    if len(record.faults) > SHOWN:
        say(f"{path}: and {len(record.faults) - SHOWN} more (in manifest.json)")
    if record.notes:
        say(f"{path}: note: {'; '.join(record.notes)}")
