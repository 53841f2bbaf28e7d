"""One file per finished case: its rows and how it ended, written together.

A kill at any moment costs the case it happens in: a part is there whole or not at all, and
`consolidate` (parts -> samples.parquet and manifest.json) can be killed and begun again.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from calib.foundation.errors import FileError
from calib.foundation.file_system import look_afresh
from calib.foundation.files import ensure_directory, no_link
from calib.foundation.locks import one_at_a_time
from calib.foundation.run_files import MANIFEST_FILE, PARTS_DIRECTORY, SAMPLES_FILE
from calib.microbench.records.looks import Look, disturbed_between
from calib.microbench.records.manifest import CaseEnd, LaunchRecord, Manifest, Seen
from calib.microbench.records.samples import (
    FORMAT_KEY,
    SAMPLES_FORMAT,
    check_rows,
    read_table,
    schema,
    write_table,
)

MERGING_LOCK = ".merging.lock"
END_KEY, LOOKS_KEY = "calib_case_end", "calib_looks"
# how an end begins that later commands leave as it is: for them, too, the plan's time is spent
OUT_OF_TIME = "skipped: the time of this launch was spent"


def part_path(run: Path, case_id: str, launch: int) -> Path:
    """Where the rows of one case of one launch stand until they are consolidated."""
    return run / PARTS_DIRECTORY / f"{launch:02d}-{case_id}.parquet"


def write_part(
    run: Path, end: CaseEnd, table: pa.Table | None = None, seen: Seen | None = None
) -> None:
    """Keep a case that has ended: its rows (none, if it failed), how it ended, and what was seen."""
    path = part_path(run, end.case_id, end.launch)
    no_link(path.parent)
    table = schema().empty_table() if table is None else table
    said = {END_KEY: end.model_dump_json()}
    if seen is not None and seen.looks:
        said[LOOKS_KEY] = seen.model_dump_json()
    write_table(path, table.replace_schema_metadata({**table.schema.metadata, **said}))


def part_paths(run: Path) -> list[Path]:
    """The parts of a run directory, sorted; half-written ones (.NAME.RANDOM) are none."""
    look_afresh(run / PARTS_DIRECTORY)
    return sorted((run / PARTS_DIRECTORY).glob("*.parquet"))


def read_end(path: Path) -> CaseEnd:
    """How the case of a part ended. Raises FileError where the file does not say."""
    return _read(path)[0]


def _read(path: Path) -> tuple[CaseEnd, Seen | None]:
    """How the case of a part ended, and what was seen before."""
    try:
        metadata = pq.read_schema(path).metadata or {}
        seen = metadata.get(LOOKS_KEY.encode())
        return (
            CaseEnd.model_validate_json(metadata[END_KEY.encode()]),
            None if seen is None else Seen.model_validate_json(seen),
        )
    except (pa.ArrowException, OSError, KeyError, ValueError) as error:  # no UTF-8, no record
        raise FileError(f"{path} does not say how its case ended; remove it") from error


def read_ends(run: Path) -> list[CaseEnd]:
    """How the cases of all parts ended."""
    return [read_end(path) for path in part_paths(run)]


def ended_before(run: Path, launch: int, case_ids: Collection[str]) -> list[CaseEnd]:
    """How those of these cases ended in a launch that have."""
    ends = (end for end in read_ends(run) if end.launch == launch)
    return [end for end in ends if end.case_id in case_ids]


def cases_done(run: Path, parts: bool = True) -> set[tuple[str, int]]:
    """(case_id, launch) of the cases whose rows are in samples.parquet.

    With `parts` also of those that were left out for want of time, and that have ended since the last
    `consolidate`, whichever way: a failed case has an end and no rows, so it is done for the
    command that met it, whose parts are still there, and is tried again by the next one, which
    consolidates first.
    """
    done: set[tuple[str, int]] = set()
    whole = run / SAMPLES_FILE
    if whole.exists():
        table = read_table(whole, ["case_id", "launch"])
        pairs = table.group_by(["case_id", "launch"]).aggregate([]).to_pylist()
        done |= {(row["case_id"], row["launch"]) for row in pairs}
    if parts:
        for path in part_paths(run):
            launch, _, case_id = path.stem.partition("-")
            if not (launch.isascii() and launch.isdecimal()):
                raise FileError(f"{path} is no part of a measurement; remove it")
            done.add((case_id, int(launch)))
        if (run / MANIFEST_FILE).exists():
            ends = Manifest.read(run).cases
            done |= {(e.case_id, e.launch) for e in ends if e.stopped_by.startswith(OUT_OF_TIME)}
    return done


def consolidate(run: Path) -> int:
    """Merge the parts into samples.parquet and manifest.json; returns the rows it then holds.

    Killed between the rename and the removal, it leaves rows twice; a part whose case and launch
    already stand in samples.parquet is therefore dropped, not added. Only the parts that were
    merged are removed: ranks that are at work may write others meanwhile.
    """
    if not part_paths(run):
        return 0  # nothing to write: a finished run may be read-only
    no_link(run / PARTS_DIRECTORY)  # what it holds is removed
    with _alone(run):
        return _merge(run, part_paths(run))


def _merge(run: Path, paths: list[Path]) -> int:
    if (run / MANIFEST_FILE).exists():
        manifest = Manifest.read(run)
        found = list(map(_read, paths))
        manifest.saw(seen for _, seen in found if seen is not None)
        looks = [look for launch in manifest.launches for look in launch.looks]
        manifest.keep(_judged(end, looks) for end, _ in found)
        manifest.samples_sha256 = ""  # until a whole measurement is done
        manifest.write(run)
    whole = run / SAMPLES_FILE
    tables: list[pa.Table] = [read_table(whole)] if whole.exists() else []
    done = cases_done(run, parts=False)
    for path in paths:
        table = read_table(path)
        check_rows(path, table)  # before the part is removed
        first = table.slice(0, 1).to_pylist()
        if first and (first[0]["case_id"], first[0]["launch"]) not in done:
            tables.append(table)
    rows = 0
    if tables:
        plain = {FORMAT_KEY: str(SAMPLES_FORMAT)}
        table = pa.concat_tables([t.replace_schema_metadata(plain) for t in tables])
        write_table(whole, table)
        rows = int(table.num_rows)
    for path in paths:
        path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        # fails where ranks at work write, or killed ones have left half a file
        (run / PARTS_DIRECTORY).rmdir()
    return rows


def _judged(end: CaseEnd, looks: Sequence[Look]) -> CaseEnd:
    """How a case ended, with what the looks around it saw."""
    if end.started_unix_s is None:
        return end
    of_it = disturbed_between(looks, end.started_unix_s, end.started_unix_s + end.elapsed_s)
    return end.model_copy(update={"disturbed": of_it})


def remove_unfinished(run: Path) -> None:
    """Remove what killed ranks have half written. Only when no rank is at work."""
    for path in no_link(run / PARTS_DIRECTORY).glob(".*"):
        path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        (run / PARTS_DIRECTORY).rmdir()


@contextlib.contextmanager
def changed_manifest(run: Path, first: Manifest | None = None) -> Iterator[Manifest]:
    """manifest.json to change, written at the end; nobody else changes it meanwhile.

    `first` is taken where there is none yet.
    """
    with _alone(run):
        exists = (run / MANIFEST_FILE).exists() or first is None
        manifest = Manifest.read(run) if exists else first
        assert manifest is not None
        yield manifest
        manifest.write(run)


def finish_launch(run: Path, record: LaunchRecord) -> None:
    """Put a launch that is done in manifest.json, to which others may have added meanwhile."""
    same = (record.launch, record.ranks, record.started)
    with changed_manifest(run) as manifest:
        last = max(
            index
            for index, each in enumerate(manifest.launches)
            if (each.launch, each.ranks, each.started) == same
        )
        manifest.launches[last] = record


def _alone(run: Path) -> contextlib.AbstractContextManager[None]:
    """One process at a time; two that merge the same parts would lose those in between.

    The lock is on a file: one on the directory is each host's own on NFS.
    """
    me = f"process {os.getpid()} on {socket.gethostname()}"
    return one_at_a_time(ensure_directory(run) / MERGING_LOCK, me)
