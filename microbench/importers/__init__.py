"""Logs of other tools as runs: finds the importer of a file, writes the run directory.

An importer is a module with NAME, DESCRIPTION, recognise(log) and read(log, flags) -> Imported: a new
one is a file and a line in IMPORTERS.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import numpy as np

from calib.foundation.errors import FileError
from calib.microbench.importers.jobs import inspector, traces
from calib.microbench.importers.lines.reading import Log, NoLogError, failure_in
from calib.microbench.importers.mpi import imb, osu
from calib.microbench.importers.nccl import json_runs as nccl_tests_json
from calib.microbench.importers.nccl import rccl_results
from calib.microbench.importers.nccl import text_logs as nccl_tests
from calib.microbench.importers.plain import tables as plain
from calib.microbench.importers.plain.header import lacking
from calib.microbench.importers.said import UNSAID, Flags, remark
from calib.microbench.importers.table import Imported, merged
from calib.microbench.records.manifest import ImportedFile

IMPORTERS: tuple[ModuleType, ...] = (
    nccl_tests,
    nccl_tests_json,
    rccl_results,
    osu,
    imb,
    inspector,
    traces,
)
ANY_TABLE = plain  # last, for files that none of them knows: rccl-tests writes CSV, too


def read_log(log: Log, flags: Flags) -> Imported:
    """What all importers that know a log find in it. Raises NoLogError where none knows it."""
    with np.errstate(
        all="ignore"
    ):  # 1e999 in a damaged log: numbers that are not finite are faults
        parts: list[Imported] = [
            importer.read(log, flags) for importer in IMPORTERS if importer.recognise(log)
        ]
        if not parts and ANY_TABLE.recognise(log):
            parts = [ANY_TABLE.read(log, flags)]
    line, failure = (0, "") if any(part.rows for part in parts) else failure_in(log)
    if not parts:
        known = ", ".join(importer.DESCRIPTION for importer in (*IMPORTERS, ANY_TABLE))
        hint = lacking(log) or (f"line {line}: {failure}" if failure else "")
        why = f" ({hint})" if hint else ""
        raise NoLogError(f"{log.name} is not a log that this program reads{why}; it knows {known}")
    whole = merged(parts) if len(parts) > 1 else parts[0]
    if failure and not any(failure in text for *_, text in whole.faults.entries):
        whole.faults.add(line, failure)
    if (flags.algorithm or flags.protocol) and any(b.device != "cuda" for b in whole.blocks):
        remark(whole.notes, "algorithm and protocol are of NCCL: not used for the other tools")
    return whole


def read_file(path: Path, flags: Flags, name: str = "") -> tuple[ImportedFile, Imported]:
    """A file's line of the manifest, and its rows; `name` is what it is called there.

    Raises FileError: no such file, or no such log.
    """
    log = Log.read(path)
    imported = read_log(log, flags)
    record = ImportedFile(
        name=name or log.name,
        sha256=log.sha256,
        tool=imported.tool,
        tool_version=imported.tool_version,
        library_version=imported.library_version,
        of_run=imported.of_run,
        rows=imported.rows,
        faults=imported.faults.listed(),
        notes=imported.notes,
    )
    return record, imported


def logs_in(directory: Path) -> list[Path]:
    """The files in a directory and below it by name, without hidden ones. Raises FileError."""
    found = []
    try:
        for place, below, names in os.walk(directory, onerror=_raise):
            below[:] = sorted(name for name in below if not name.startswith("."))
            found += [Path(place) / name for name in sorted(names) if not name.startswith(".")]
    except OSError as error:
        raise FileError(f"cannot read {error.filename}: {error.strerror}") from error
    return [path for path in found if path.is_file()]


def _raise(error: OSError) -> None:
    raise error


def no_row(path: Path, record: ImportedFile) -> FileError:
    """Why a file gave no row: its first fault, and the flag that would mend it."""
    if not record.faults:
        return FileError(f"{path} gives no row: no table of {record.tool} in it")
    (line, text), more = record.faults[0], len(record.faults) - 1
    wants = next((flag for flag, words in UNSAID.items() if text.startswith(words)), "")
    rest = f", and {more} more faults" if more else ""
    return FileError(f"{path} gives no row: line {line}: {text}{rest}", wants)


__all__: Sequence[str] = ("IMPORTERS", "NoLogError", "logs_in", "no_row", "read_file", "read_log")
