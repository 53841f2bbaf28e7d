"""The Sample record: one timed repetition of one case, raw, in samples.parquet.

Columns are declared once, in SCHEMA. The rows of a case are appended as one part file when the case
is done; `consolidate` turns the parts into samples.parquet. A crash costs the case it happened in.
"""

from __future__ import annotations

import io
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from foundation.errors import FileError
from foundation.files import write_whole

if TYPE_CHECKING:
    import pyarrow as pa

SAMPLES_FORMAT = 1
SAMPLES_FILE = "samples.parquet"
MANIFEST_FILE = "manifest.json"
PARTS_DIRECTORY = "samples.parts"


@dataclass(frozen=True)
class Sample:
    """One repetition. SI units; `seconds` is per call and the MAXIMUM over ranks.

    `key` says what was timed: a layer key, a hash of tensor shapes, a model's name, or empty for a
    collective. `active_ranks` are the ranks of one node that ran it at once; `ranks` all of them.
    `calls` is how many calls one timing held. `rank_seconds` has the ranks that timed it.
    """

    case_id: str
    kind: str  # collective, layer, tensors, in_place, loop
    operation: str  # allreduce, p2p, forward, backward, update, pack, unpack, ...
    key: str
    library: str  # mpi, torch
    level: str  # node, system
    ranks: int
    active_ranks: int
    nbytes: int
    ntensors: int
    batch: int
    launch: int
    repetition: int
    warmup: bool
    oversubscribed: bool
    calls: int
    seconds: float
    skew_seconds: float
    rank_seconds: list[float]
    started_unix_s: float


def schema() -> pa.Schema:
    """The Arrow schema of samples.parquet."""
    import pyarrow as pa

    text, whole, real, flag = pa.string(), pa.int64(), pa.float64(), pa.bool_()
    fields = {
        "case_id": text, "kind": text, "operation": text, "key": text, "library": text,
        "level": text, "ranks": whole, "active_ranks": whole, "nbytes": whole, "ntensors": whole,
        "batch": whole, "launch": whole, "repetition": whole, "warmup": flag,
        "oversubscribed": flag, "calls": whole, "seconds": real, "skew_seconds": real,
        "rank_seconds": pa.list_(real), "started_unix_s": real,
    }  # fmt: skip
    return pa.schema(list(fields.items()), metadata={"calib_samples_format": str(SAMPLES_FORMAT)})


def write_samples(path: Path, samples: list[Sample]) -> None:
    """Write rows to one Parquet file, whole or not at all."""
    import pyarrow as pa

    write_table(path, pa.Table.from_pylist([asdict(s) for s in samples], schema=schema()))


def write_table(path: Path, table: pa.Table) -> None:
    """Write an Arrow table with the columns of SCHEMA, whole or not at all."""
    import pyarrow.parquet as pq

    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd")
    write_whole(path, buffer.getvalue())


def read_table(path: Path) -> pa.Table:
    """Read one samples file. Raises FileError when it is not one, or of another format."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not path.is_file():
        raise FileError(f"samples file {path} does not exist; `calib measure` makes one")
    try:
        table = pq.read_table(path)
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise FileError(f"samples file {path} is truncated or not Parquet ({reason})") from error
    metadata = table.schema.metadata or {}
    version = metadata.get(b"calib_samples_format", b"none").decode()
    if version != str(SAMPLES_FORMAT):
        raise FileError(
            f"samples file {path} has format {version}; this program reads {SAMPLES_FORMAT}"
        )
    missing = set(schema().names) - set(table.schema.names)
    if missing:
        raise FileError(f"samples file {path} has no column {', '.join(sorted(missing))}")
    try:
        return table.select(schema().names).cast(schema())
    except pa.ArrowException as error:
        reason = str(error).splitlines()[0]
        raise FileError(f"samples file {path}: a column has another type ({reason})") from error


def part_path(run: Path, case_id: str, launch: int) -> Path:
    """Where the rows of one case of one launch stand until they are consolidated."""
    return run / PARTS_DIRECTORY / f"{launch:02d}-{case_id}.parquet"


def read_run_table(run: Path) -> pa.Table:
    """All rows of a run directory: samples.parquet and the parts of an unfinished measurement."""
    import pyarrow as pa

    parts = sorted((run / PARTS_DIRECTORY).glob("*.parquet"))
    paths = [path for path in [run / SAMPLES_FILE] if path.exists()] + parts
    if not paths:
        raise FileError(f"{run} holds no samples; run `calib measure -o {run}` first")
    return pa.concat_tables([read_table(path) for path in paths])


def read_samples(run: Path) -> list[Sample]:
    """All rows of a run directory as records."""
    return [Sample(**row) for row in read_run_table(run).to_pylist()]


def consolidate(run: Path) -> int:
    """Merge the parts into samples.parquet and remove them; returns the number of rows merged.

    Killed between the rename and the removal, it leaves rows twice; a part whose case and launch
    already stand in samples.parquet is therefore dropped, not added.
    """
    import pyarrow as pa

    parts = sorted((run / PARTS_DIRECTORY).glob("*.parquet"))
    whole = run / SAMPLES_FILE
    if not parts:
        return 0  # nothing to write: a finished run may be read-only
    tables: list[pa.Table] = [read_table(whole)] if whole.exists() else []
    done = cases_done(run, parts=False)
    for path in parts:
        table = read_table(path)
        first = table.slice(0, 1).to_pylist()
        if first and (first[0]["case_id"], first[0]["launch"]) not in done:
            tables.append(table)
    table = pa.concat_tables(tables)
    write_table(whole, table)
    shutil.rmtree(run / PARTS_DIRECTORY)  # also the half-written files of ranks that were killed
    return int(table.num_rows)


def cases_done(run: Path, parts: bool = True) -> set[tuple[str, int]]:
    """(case_id, launch) of the cases whose rows are kept in a run directory."""
    done: set[tuple[str, int]] = set()
    whole = run / SAMPLES_FILE
    if whole.exists():
        table = read_table(whole).select(["case_id", "launch"])
        pairs = table.group_by(["case_id", "launch"]).aggregate([]).to_pylist()
        done |= {(row["case_id"], row["launch"]) for row in pairs}
    if parts:
        for path in (run / PARTS_DIRECTORY).glob("*.parquet"):
            launch, _, case_id = path.stem.partition("-")
            done.add((case_id, int(launch)))
    return done
