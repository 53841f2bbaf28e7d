"""The Sample record: one timed repetition of one case, raw, in samples.parquet.

Columns are declared once, as the fields of Sample. The rows of a case are kept as one part file when
the case is done (microbench/parts.py). Format history: 1 2026-11; 2 2026-11: device, dtype, groups,
stride, nodes, cold, background, start, mode, late and host seconds, marks; more operations.
"""

from __future__ import annotations

import io
import math
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foundation.errors import FileError
from foundation.files import write_whole

if TYPE_CHECKING:
    import pyarrow as pa

SAMPLES_FORMAT = 2
FORMAT_KEY = "calib_samples_format"
SAMPLES_FILE = "samples.parquet"
MANIFEST_FILE = "manifest.json"
PARTS_DIRECTORY = "samples.parts"
SPOILING = {"throttled", "shared_gpu", "ranks_share_gpu"}


@dataclass  # not frozen: a run has a million rows, and freezing makes each five times as slow
class Sample:
    """One repetition. SI units; `seconds` is per call and the MAXIMUM over ranks.

    `key` says what was timed: a layer key, a hash of tensor shapes, a model's name, or empty for a
    collective. `ranks` is p: of a collective the ranks of a group, else of the launch;
    `active_ranks` are the ranks of one node that worked at once, `nodes` the nodes that a group
    spans, `groups` how many groups worked at once, `stride` how far apart the ranks of a group
    are. `calls` is how many calls one timing held. `rank_seconds` has the ranks that timed it.
    `late_seconds` is how much later than the first the last rank started, on synchronised clocks;
    `host_seconds` the maximum over ranks of the host's own time of a call on a GPU: NaN where not
    known. `marks` are words, comma-separated, on what spoils the row ("throttled", "shared_gpu").
    """

    case_id: str
    kind: str  # collective, layer, tensors, in_place, loop
    operation: str  # allreduce, p2p, forward, backward, update, pack, unpack, ...
    key: str
    library: str  # mpi, nccl, torch_gloo, ..., torch
    level: str  # node, rack, system
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
    device: str = "cpu"
    dtype: str = "float32"
    groups: int = 1
    stride: int = 1
    nodes: int = 1
    cold: bool = False
    background_nbytes: int = 0
    start: str = "barrier"
    mode: str = "eager"
    late_seconds: float = math.nan
    host_seconds: float = math.nan
    marks: str = ""

    @property
    def spoiled(self) -> bool:
        """Whether it must not calibrate anything: oversubscribed, or so marked.

        A power cap is no such mark: it is how a loaded GPU works, in training too.
        """
        return self.oversubscribed or bool(self.marks and {*self.marks.split(",")} & SPOILING)


_ARROW = {"str": "string", "int": "int64", "float": "float64", "bool": "bool_"}


def schema() -> pa.Schema:
    """The Arrow schema of samples.parquet: the fields of Sample."""
    import pyarrow as pa

    columns = [
        (field.name, pa.list_(pa.float64()) if field.type == "list[float]"
         else getattr(pa, _ARROW[str(field.type)])())
        for field in fields(Sample)
    ]  # fmt: skip
    return pa.schema(columns, metadata={FORMAT_KEY: str(SAMPLES_FORMAT)})


def write_samples(
    path: Path, samples: list[Sample], metadata: dict[str, str] | None = None
) -> None:
    """Write rows to one Parquet file, whole or not at all; `metadata` is kept in its schema."""
    import pyarrow as pa

    columns = {name: [getattr(s, name) for s in samples] for name in schema().names}
    table = pa.table(columns, schema=schema())
    if metadata:
        table = table.replace_schema_metadata({**(table.schema.metadata or {}), **metadata})
    write_table(path, table)


def write_table(path: Path, table: pa.Table) -> None:
    """Write an Arrow table with the columns of a Sample, whole or not at all."""
    import pyarrow.parquet as pq

    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd")
    write_whole(path, buffer.getvalue())


def read_table(path: Path, columns: list[str] | None = None) -> pa.Table:
    """Read one samples file, or some columns. Raises FileError for another format or file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not path.is_file():
        raise FileError(f"samples file {path} does not exist; `calib measure` makes one")
    try:
        table = pq.read_table(path, columns=columns)
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise FileError(f"samples file {path} is truncated or not Parquet ({reason})") from error
    metadata = table.schema.metadata or {}
    version = metadata.get(FORMAT_KEY.encode(), b"none").decode()
    if version != str(SAMPLES_FORMAT):
        raise FileError(
            f"samples file {path} has format {version}; this program reads {SAMPLES_FORMAT}: "
            "measure again"
        )
    names = columns or schema().names
    missing = set(names) - set(table.schema.names)
    if missing:
        raise FileError(f"samples file {path} has no column {', '.join(sorted(missing))}")
    try:
        whole = schema()
        return table.select(names).cast(whole if columns is None else _only(whole, names))
    except pa.ArrowException as error:
        reason = str(error).splitlines()[0]
        raise FileError(f"samples file {path}: a column has another type ({reason})") from error


def _only(whole: pa.Schema, names: list[str]) -> pa.Schema:
    """Some fields of a schema."""
    import pyarrow as pa

    return pa.schema([whole.field(name) for name in names], metadata=whole.metadata)


def read_run_table(run: Path) -> pa.Table:
    """All rows of a run directory: samples.parquet and the parts of an unfinished measurement."""
    import pyarrow as pa

    parts = sorted((run / PARTS_DIRECTORY).glob("*.parquet"))
    paths = [path for path in [run / SAMPLES_FILE] if path.exists()] + parts
    if not paths:
        raise FileError(f"{run} holds no samples; run `calib measure -o {run}` first")
    return pa.concat_tables([read_table(path) for path in paths])


def read_samples(run: Path, kind: str | None = None) -> list[Sample]:
    """The rows of a run directory as records: all, or those of one kind of case."""
    import pyarrow.compute as pc

    table = read_run_table(run)
    if kind is not None:
        table = table.filter(pc.equal(table.column("kind"), kind))
    columns = [_values(table.column(field.name).combine_chunks()) for field in fields(Sample)]
    return [Sample(*row) for row in zip(*columns, strict=True)]


def _values(column: pa.Array) -> list[Any]:
    """A column as Python values; several times faster than to_pylist, which boxes one by one."""
    import pyarrow as pa

    if column.null_count or not len(column):
        return list(column.to_pylist())
    if pa.types.is_string(column.type):
        encoded = column.dictionary_encode()
        words = encoded.dictionary.to_pylist()
        return [words[index] for index in encoded.indices.to_numpy().tolist()]
    if pa.types.is_list(column.type):
        values = column.values.to_numpy().tolist()
        ends = column.offsets.to_numpy().tolist()
        return [values[ends[row] : ends[row + 1]] for row in range(len(column))]
    return list(column.to_numpy(zero_copy_only=False).tolist())
