"""Logs of other tools as runs: which importer reads a file, and the run directory that comes of it.

An importer is a module with NAME, DESCRIPTION, recognise(log) and read(log, flags) -> Imported: a new
one is a file and a line in IMPORTERS.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import numpy as np

from foundation.errors import FileError
from microbench.importers import imb, nccl_tests, nccl_tests_json, osu
from microbench.importers.reading import Log
from microbench.importers.said import Flags, remark
from microbench.importers.table import Imported, merged
from microbench.manifest import ImportedFile

IMPORTERS: tuple[ModuleType, ...] = (nccl_tests, nccl_tests_json, osu, imb)


def read_log(log: Log, flags: Flags) -> Imported:
    """What all importers that know a log find in it. Raises FileError where none knows it."""
    with np.errstate(all="ignore"):  # 1e999 in a spoilt log: what is not finite is no row
        parts: list[Imported] = [
            importer.read(log, flags) for importer in IMPORTERS if importer.recognise(log)
        ]
    if not parts:
        known = ", ".join(importer.DESCRIPTION for importer in IMPORTERS)
        raise FileError(f"{log.name} is no log that this program reads ({known})")
    whole = merged(parts) if len(parts) > 1 else parts[0]
    if (flags.algorithm or flags.protocol) and any(b.device != "cuda" for b in whole.blocks):
        remark(whole.notes, "--algorithm and --protocol are of NCCL: not used for the other tools")
    return whole


def read_file(path: Path, flags: Flags) -> tuple[ImportedFile, Imported]:
    """A file's line of the manifest, and its rows. Raises FileError: no such file, or no such log."""
    log = Log.read(path)
    imported = read_log(log, flags)
    record = ImportedFile(
        name=log.name, sha256=log.sha256, tool=imported.tool, tool_version=imported.tool_version,
        library_version=imported.library_version, rows=imported.rows,
        faults=imported.faults.listed(), notes=imported.notes,
    )  # fmt: skip
    return record, imported


def reason_of(record: ImportedFile) -> str:
    """Why a file gave no row: its first fault."""
    if not record.faults:
        return f"no table of {record.tool} in it"
    line, text = record.faults[0]
    more = len(record.faults) - 1
    return f"line {line}: {text}" + (f", and {more} more faults" if more else "")


__all__: Sequence[str] = ("IMPORTERS", "read_file", "read_log", "reason_of")
