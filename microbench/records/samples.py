"""The Sample record: one timed repetition of one case, raw, in samples.parquet.

Columns are declared once, as the fields of Sample. The rows of a case are kept as one part file when
the case is done (microbench/records/parts.py).
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import Field

from calib.foundation.errors import FileError
from calib.foundation.files import write_whole
from calib.foundation.names import DeviceKind, DtypeName, LevelName, OperationName, Oversubscribed
from calib.foundation.quantities import FiniteOrNull
from calib.foundation.run_files import (
    CLUSTER_FILE,
    MANIFEST_FILE,
    PARTS_DIRECTORY,
    PLAN_FILE,
    SAMPLES_FILE,
)

SAMPLES_FORMAT = 1
FORMAT_KEY = "calib_samples_format"
SPOILING = {"throttled", "shared_gpu", "ranks_share_gpu"}
# files of which a directory that holds one is a run directory, though it has no samples yet
OF_A_RUN = (MANIFEST_FILE, PLAN_FILE, CLUSTER_FILE)
# what a row may hold of the numbers that feed a law; times in seconds, where 0 is under the timer
LEAST = {
    "ranks": 1,
    "active_ranks": 1,
    "nodes": 1,
    "groups": 1,
    "stride": 1,
    "nbytes": 0,
    "ntensors": 0,
    "batch": 0,
    "background_nbytes": 0,
    "launch": 0,
}
MOST_COUNT = 10**9
MOST = {"nbytes": 2**62, "background_nbytes": 2**62}
SECONDS = (1e-15, 1e9)
A_TIME = f"a time: 0, or from {SECONDS[0]:g} to {SECONDS[1]:g} s"
OF_EACH_RANK = ("layer", "tensors", "in_place")
HIERARCHICAL = "hierarchical_allreduce"


@dataclass  # not frozen: a run has a million rows, and freezing makes each five times as slow
class Sample:
    """One repetition. SI units; seconds are per call and the MAXIMUM over ranks, NaN where not known."""

    case_id: Annotated[str, Field(description="16 hex digits of what is measured")]
    kind: Annotated[str, Field(description="collective, layer, tensors, in_place or sparse")]
    operation: OperationName
    key: Annotated[
        str,
        Field(
            description="a layer key, a hash of tensor shapes, the name of a model, ROWSxWIDTH@SHARE "
            "of a sparse exchange; empty for a collective"
        ),
    ]
    library: Annotated[str, Field(description="library that sends messages, or torch")]
    level: LevelName
    ranks: Annotated[
        int, Field(description="p: of a collective the ranks of a group, else of the launch")
    ]
    active_ranks: Annotated[int, Field(description="ranks of one node that worked at once")]
    nbytes: Annotated[
        int, Field(description="B of the whole buffer; sparse: of a rank's gradients")
    ]
    ntensors: Annotated[int, Field(description="how many tensors; sparse: parts; 0 of other kinds")]
    batch: Annotated[int, Field(description="samples; 0 of other kinds")]
    launch: Annotated[int, Field(description="index of the start of the ranks, from 0")]
    repetition: Annotated[int, Field(description="from 0")]
    warmup: Annotated[bool, Field(description="not to be fitted")]
    oversubscribed: Oversubscribed
    calls: Annotated[int, Field(description="how many calls one timing held")]
    seconds: Annotated[float, Field(description="s per call, the maximum over ranks", ge=0)]
    skew_seconds: Annotated[
        FiniteOrNull, Field(description="s between the first and the last rank; null: not known")
    ]
    rank_seconds: Annotated[
        list[Annotated[float, Field(ge=0)]],
        Field(description="s per call on each rank that timed it"),
    ]
    started_unix_s: Annotated[float, Field(description="s since 1970, UTC")]
    device: DeviceKind = "cpu"
    dtype: DtypeName = "float32"
    groups: Annotated[int, Field(description="how many groups worked at once")] = 1
    stride: Annotated[int, Field(description="how far apart the ranks of a group are")] = 1
    nodes: Annotated[int, Field(description="nodes that a group spans")] = 1
    cold: Annotated[
        bool, Field(description="whether caches were evicted before each repetition")
    ] = False
    background_nbytes: Annotated[
        int, Field(description="B of the messages that other ranks exchanged all the while; 0 none")
    ] = 0
    start: Annotated[
        str,
        Field(
            description="how a repetition begins: at a barrier, or in a window on synchronised clocks"
        ),
    ] = "barrier"
    mode: Annotated[
        str, Field(description="of CUDA: kernels launched one by one (eager), or as a graph")
    ] = "eager"
    late_seconds: Annotated[
        FiniteOrNull,
        Field(
            description="s that the last rank started after the first, on synchronised clocks; null: "
            "not known"
        ),
    ] = math.nan
    host_seconds: Annotated[
        FiniteOrNull,
        Field(
            description="s of the host's own part of a call on a GPU, the maximum over ranks; null: not "
            "known"
        ),
    ] = math.nan
    marks: Annotated[
        str, Field(description="what spoils the row, comma-separated: throttled, shared_gpu, ...")
    ] = ""

    @property
    def spoiled(self) -> bool:
        """Whether it must not calibrate anything: oversubscribed, or so marked.

        A power cap is no such mark: it is how a loaded GPU works, in training too.
        """
        return self.oversubscribed or bool(self.marks and {*self.marks.split(",")} & SPOILING)


@cache
def schema() -> pa.Schema:
    """The Arrow schema of samples.parquet: the fields of Sample."""

    arrow = {
        str: pa.string(),
        int: pa.int64(),
        float: pa.float64(),
        bool: pa.bool_(),
        list[float]: pa.list_(pa.float64()),
    }
    columns = [(name, arrow[of]) for name, of in get_type_hints(Sample).items()]
    return pa.schema(columns, metadata={FORMAT_KEY: str(SAMPLES_FORMAT)})


def write_samples(
    path: Path, samples: list[Sample], metadata: dict[str, str] | None = None
) -> None:
    """Write rows to one Parquet file, whole or not at all; `metadata` is kept in its schema."""
    columns = {name: [getattr(s, name) for s in samples] for name in schema().names}
    table = pa.table(columns, schema=schema())
    if metadata:
        table = table.replace_schema_metadata({**(table.schema.metadata or {}), **metadata})
    write_table(path, table)


def write_table(path: Path, table: pa.Table) -> None:
    """Write an Arrow table with the columns of a Sample, whole or not at all."""
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd")
    write_whole(path, buffer.getvalue())


def read_table(path: Path, columns: list[str] | None = None) -> pa.Table:
    """Read one samples file, or some columns. Raises FileError for another format or file."""

    if not path.is_file():
        raise FileError(f"samples file {path} does not exist", wants="run")
    try:
        table = pq.read_table(path, columns=columns)
        known = set(table.schema.names)
    except (pa.ArrowException, OSError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise FileError(f"samples file {path} is truncated or not Parquet ({reason})") from error
    except UnicodeDecodeError as error:
        raise FileError(f"samples file {path}: the name of a column is not UTF-8") from error
    metadata = table.schema.metadata or {}
    version = metadata.get(FORMAT_KEY.encode(), b"none").decode(errors="replace")
    if version != str(SAMPLES_FORMAT):
        raise FileError(
            f"samples file {path} has format {version}; this program reads {SAMPLES_FORMAT}: "
            "measure again"
        )
    names = columns or schema().names
    missing = set(names) - known
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
    return pa.schema([whole.field(name) for name in names], metadata=whole.metadata)


def read_run_table(run: Path) -> pa.Table:
    """All rows of a run directory: samples.parquet and the parts of an unfinished measurement."""
    return pa.concat_tables([read_table(path) for path in _paths(run)])


def _paths(run: Path) -> list[Path]:
    """The samples files of a run directory. Raises FileError where it has none."""
    parts = sorted((run / PARTS_DIRECTORY).glob("*.parquet"))
    paths = [path for path in [run / SAMPLES_FILE] if path.exists()] + parts
    if paths:
        return paths
    if any((run / name).exists() for name in OF_A_RUN):
        raise FileError(f"{run} holds no samples: nothing was measured there yet", wants="run")
    raise FileError(f"{run} is no run directory: it holds no samples", wants="run of logs")


def check_rows(path: Path, table: pa.Table) -> None:
    """Raise FileError where a row of the file `path` holds what no measurement gives.

    It names the column, how many rows, and the first bad value. Whole columns at once: a run has a
    million rows. What may be unknown (late_seconds, host_seconds, skew_seconds) may be NaN.
    """

    def refuse(name: str, bad: Any, wanted: str) -> None:
        rows = np.flatnonzero(bad)
        if len(rows):
            first = table.column(name)[int(rows[0])].as_py()
            raise FileError(
                f"samples file {path}: column {name} is wrong in {len(rows)} of {len(table)} rows, "
                f"first in row {rows[0]} (from 0): {first!r} is not {wanted}"
            )

    for name in table.schema.names:
        if table.column(name).null_count:
            refuse(name, table.column(name).is_null().to_numpy(), "a value")
    for name, least in LEAST.items():
        values = table.column(name).to_numpy()
        bad = (values < least) | (values > MOST.get(name, MOST_COUNT))
        refuse(name, bad, f"from {least} to {MOST.get(name, MOST_COUNT)}")
    refuse(
        "nodes",
        table.column("nodes").to_numpy() > table.column("ranks").to_numpy(),
        "at most the ranks of the row",
    )
    refuse("seconds", _no_time(table.column("seconds").to_numpy()), A_TIME)
    of_ranks = table.column("rank_seconds").combine_chunks()
    times = pc.list_flatten(of_ranks).to_numpy(zero_copy_only=False)
    if _no_time(times).any():
        bad = np.zeros(len(table), dtype=bool)
        bad[pc.list_parent_indices(of_ranks).to_numpy()[_no_time(times)]] = True
        refuse("rank_seconds", bad, A_TIME.replace("a time", "a list of times"))
    if (lone := pc.equal(pc.list_value_length(of_ranks), 0)).true_count:
        of_each = pc.is_in(table.column("kind").combine_chunks(), pa.array(OF_EACH_RANK))
        refuse(
            "rank_seconds",
            pc.and_(lone, of_each).to_numpy(zero_copy_only=False),
            "the times of one rank or more",
        )
    _check_hierarchies(table, refuse)


def _no_time(values: Any) -> Any:
    """Which of the seconds are no time: NaN, negative, or of another order than anything timed."""
    low, high = SECONDS
    return ~((values >= low) & (values <= high) | (values == 0))


def _check_hierarchies(table: pa.Table, refuse: Callable[[str, Any, str], None]) -> None:
    """The key of a hierarchical allreduce says how many ranks its inner groups have."""

    operations = table.column("operation")
    mine = pc.starts_with(operations, pattern=HIERARCHICAL).to_numpy()
    if not mine.any():
        return
    refuse("operation", mine & pc.not_equal(operations, HIERARCHICAL).to_numpy(), HIERARCHICAL)
    good = pc.match_substring_regex(table.column("key"), "^inner=[1-9][0-9]{0,8}$").to_numpy()
    refuse("key", mine & np.logical_not(good), "inner=RANKS, as a hierarchical allreduce has it")


def read_samples(run: Path, kind: str | None = None) -> list[Sample]:
    """The rows of a run directory as records: all, or those of one kind of case.

    Raises FileError, also where a row holds what cannot be (`check_rows`).
    """

    tables = []
    for path in _paths(run):
        tables.append(read_table(path))
        check_rows(path, tables[-1])
    table = pa.concat_tables(tables)
    if kind is not None:
        table = table.filter(pc.equal(table.column("kind"), kind))
    columns = [_values(table.column(field.name).combine_chunks()) for field in fields(Sample)]
    return [Sample(*row) for row in zip(*columns, strict=True)]


def _values(column: pa.Array) -> list[Any]:
    """A column as Python values; several times faster than to_pylist, which boxes one by one."""
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
