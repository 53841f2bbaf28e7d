"""samples.parquet: one row for every timed repetition of a case, and Samples, which holds such rows.

Columns are declared once, as the fields of Sample. Rows stay columns from the ranks to the estimators.
The rows of a case are kept as one part file when the case is done (microbench/records/parts.py).
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterable
from copy import copy
from dataclasses import MISSING, dataclass, field, fields
from functools import cache, partial
from operator import eq
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pydantic import Field

from calib.foundation.arrays import Floats, Integers, Mask
from calib.foundation.errors import FileError
from calib.foundation.files import write_whole
from calib.foundation.names import DeviceKind, LevelName, OperationName, Oversubscribed
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
# a directory with one of these files is a run directory, though it has no samples yet
OF_A_RUN = (MANIFEST_FILE, PLAN_FILE, CLUSTER_FILE)
# bounds of the numbers that feed a law; times in seconds, where 0 is below the timer's resolution
LEAST = {
    "ranks": 1,
    "active_ranks": 1,
    "nodes": 1,
    "groups": 1,
    "stride": 1,
    "nbytes": 0,
    "ntensors": 0,
    "batch": 0,
    "launch": 0,
}
MOST_COUNT = 10**9
MOST = {"nbytes": 2**62}
SECONDS = (1e-15, 1e9)
A_TIME = f"a time: 0, or from {SECONDS[0]:g} to {SECONDS[1]:g} s"
OF_EACH_RANK = ("layer", "tensors", "in_place")
HIERARCHICAL = "hierarchical_allreduce"


@dataclass(frozen=True, kw_only=True)
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
    ntensors: Annotated[
        int, Field(description="how many tensors; sparse: parts; 0 of other kinds")
    ] = 0
    batch: Annotated[int, Field(description="samples; 0 of other kinds")] = 0
    launch: Annotated[int, Field(description="index of the start of the ranks, from 0")]
    repetition: Annotated[int, Field(description="from 0")]
    warmup: Annotated[bool, Field(description="not to be fitted")] = False
    oversubscribed: Oversubscribed = False
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
    dtype: Annotated[
        str, Field(description="item type; of layers, passes and iterations their whole execution")
    ] = "float32"
    groups: Annotated[int, Field(description="how many groups worked at once")] = 1
    stride: Annotated[int, Field(description="how far apart the ranks of a group are")] = 1
    nodes: Annotated[int, Field(description="nodes that a group spans")] = 1
    cold: Annotated[
        bool, Field(description="whether caches were evicted before each repetition")
    ] = False
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
    resolution_s: Annotated[
        FiniteOrNull,
        Field(
            description="s of the time that its clock cannot tell: on a GPU a step of events over "
            "calls; null: next to nothing"
        ),
    ] = math.nan
    rank_waited: Annotated[
        list[Annotated[float, Field(ge=0)]],
        Field(
            description="s per call that each of rank_seconds waited for a core which something else "
            "had; empty: not counted"
        ),
    ] = field(default_factory=list)
    places: Annotated[
        str,
        Field(
            description="where the ranks of the group ran, in their order, comma-separated: HOST or "
            "HOST/DEVICE; empty: not known, or where the launch ran"
        ),
    ] = ""
    marks: Annotated[
        str, Field(description="what spoils the row, comma-separated: throttled, shared_gpu, ...")
    ] = ""


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


def make_table(size: int, **columns: Any) -> pa.Table:
    """An Arrow table of `size` rows.

    A column is given as an array, or as the one value of every row; those with a default in Sample may
    be left out.
    """
    given = {f.name: f.default for f in fields(Sample) if f.default is not MISSING}
    given |= {"rank_waited": []} | columns
    arrays = [
        given[column.name]
        if isinstance(given[column.name], (pa.Array, np.ndarray))
        else pa.repeat(pa.scalar(given[column.name], column.type), size)
        for column in schema()
    ]
    return pa.table(arrays, schema=schema())


class Samples:
    """Rows of samples files, by columns: what measuring gives and fitting takes.

    `samples["seconds"]` is an array [rows]. A selection (`where`, `groups`) holds the numbers of its
    rows, and shares the columns. So the seconds of each size are

        {size: rows["seconds"] for (size,), rows in samples.groups("nbytes").items()}
    """

    def __init__(self, table: pa.Table | None = None) -> None:
        self._given = table
        self._rows: Integers = np.arange(0 if table is None else len(table))
        self._made: dict[str, Any] = {}  # arrays of whole columns

    @property
    def _whole(self) -> pa.Table:
        """The table in one chunk; none is an empty one, made late: pyarrow imports pandas for it."""
        if "whole" not in self._made:
            given = schema().empty_table() if self._given is None else self._given
            self._made["whole"] = given.combine_chunks()
        return self._made["whole"]

    def _of(self, rows: Integers) -> Samples:
        """Other rows of the same table."""
        selection = copy(self)
        selection._rows = rows
        return selection

    def _coded(self, name: str) -> tuple[Integers, list[Any]]:
        """Per row of the whole the index of its value in a column, and the different values."""
        key = f"coded {name}"
        if key not in self._made:
            encoded = self._whole[name].combine_chunks().dictionary_encode()
            self._made[key] = encoded.indices.to_numpy(), encoded.dictionary.to_pylist()
        found: tuple[Integers, list[Any]] = self._made[key]
        return found

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, name: str) -> NDArray[Any]:
        if name not in self._made:
            self._made[name] = self._whole[name].to_numpy()
        found: NDArray[Any] = self._made[name][self._rows]
        return found

    @property
    def table(self) -> pa.Table:
        """These rows as an Arrow table."""
        return self._whole.take(self._rows)

    @property
    def first(self) -> Sample:
        """The first row; of the rows of one case all are alike in what they are of."""
        row = int(self._rows[0])
        return Sample(**{name: self._whole[name][row].as_py() for name in schema().names})

    @property
    def rank_seconds(self) -> Floats:
        """Seconds [rows, ranks] of the ranks that every row has a time of."""
        if "times" not in self._made:
            lists = self._whole["rank_seconds"].combine_chunks()
            self._made["times"] = lists.offsets.to_numpy(), lists.values.to_numpy()
        ends, times = self._made["times"]
        first = ends[self._rows]
        ranks = (ends[self._rows + 1] - first).min() if len(self) else 0
        found: Floats = times[first[:, None] + np.arange(ranks)]
        return found

    @property
    def spoiled(self) -> Mask:
        """Which rows must not calibrate anything: oversubscribed, or so marked.

        A power cap is no such mark: it is how a loaded GPU works, in training too.
        """
        marked = self.mask("marks", lambda marks: not SPOILING.isdisjoint(marks.split(",")))
        found: Mask = marked | self["oversubscribed"]
        return found

    @property
    def usable(self) -> Samples:
        """The rows that may feed a parameter: not of the warm-up, and not spoiled."""
        return self.where(~self["warmup"] & ~self.spoiled)

    def mask(self, name: str, wanted: Callable[[Any], object]) -> Mask:
        """Which rows have a wanted value in a column; each different value is asked about once."""
        codes, words = self._coded(name)
        return np.array([bool(wanted(word)) for word in words], dtype=bool)[codes[self._rows]]

    def where(self, keep: Mask | None = None, **equal: object) -> Samples:
        """The rows of a mask, or with these values in these columns."""
        mask = np.ones(len(self), dtype=bool) if keep is None else keep
        for name, value in equal.items():
            mask = mask & self.mask(name, partial(eq, value))
        return self._of(self._rows[mask])

    def distinct(self, name: str) -> list[Any]:
        """The different values of a column, sorted."""
        return sorted(value for (value,) in self.groups(name))

    def groups(self, *names: str) -> dict[tuple[Any, ...], Samples]:
        """Values of these columns -> the rows that have them, in the order of their first rows."""
        columns, number = [self._coded(name) for name in names], self.numbered(*names)
        order = np.argsort(number, kind="stable")
        starts = np.flatnonzero(np.diff(number[order], prepend=-1))
        parts = np.split(order, starts[1:]) if len(order) else []
        parts.sort(key=lambda part: int(part[0]))
        rows = [self._rows[part] for part in parts]
        keys = [tuple(words[codes[of[0]]] for codes, words in columns) for of in rows]
        return {key: self._of(of) for key, of in zip(keys, rows, strict=True)}

    def lengths(self, name: str) -> Integers:
        """How many values each row has in a column of lists."""
        found: Integers = self.table[name].combine_chunks().value_lengths().to_numpy()
        return found

    def flat(self, name: str) -> Floats:
        """The values of a column of lists, row after row."""
        found: Floats = self.table[name].combine_chunks().flatten().to_numpy()
        return found

    def numbered(self, *names: str) -> Integers:
        """Per row a number that rows with the same values of these columns have in common."""
        number, count = np.zeros(len(self), dtype=np.int64), 1
        for codes, words in map(self._coded, names):
            if count > 2**31:  # of combinations that could be, few are: number those
                _, number = np.unique(number, return_inverse=True)
                count = len(self)
            number, count = number * len(words) + codes[self._rows], count * len(words)
        return number

    def with_times(self, times: Floats, seconds: Floats) -> Samples:
        """The same rows with other `rank_seconds` [sum of their ranks], row after row, and `seconds`."""
        table = self.table
        ends = pa.array(np.cumsum([0, *self.lengths("rank_seconds")]), pa.int32())
        columns = {
            "rank_seconds": pa.ListArray.from_arrays(ends, pa.array(times)),
            "seconds": pa.array(seconds),
        }
        for name, column in columns.items():
            at = table.schema.get_field_index(name)
            table = table.set_column(at, table.schema.field(at), column)
        return Samples(table)

    def with_column(self, name: str, values: NDArray[Any]) -> Samples:
        """The same rows, with other values in one column."""
        at = self._whole.schema.get_field_index(name)
        column = self._whole[name].to_numpy().copy()
        column[self._rows] = values
        changed = self._whole.set_column(at, self._whole.schema.field(at), pa.array(column))
        return Samples(changed)._of(self._rows)

    def joined(self, others: Iterable[Samples]) -> Samples:
        """These rows and, after them, those of other selections of the same table."""
        return self._of(np.concatenate([self._rows, *(other._rows for other in others)]))


NO_SAMPLES = Samples()


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
        of_them = [schema().field(name) for name in names]
        return table.select(names).cast(pa.schema(of_them, schema().metadata))
    except pa.ArrowException as error:
        reason = str(error).splitlines()[0]
        raise FileError(f"samples file {path}: a column has another type ({reason})") from error


def read_run_table(run: Path) -> pa.Table:
    """All rows of a run directory: samples.parquet and the parts of an unfinished measurement.

    Raises FileError, also where a row holds what cannot be (`check_rows`).
    """
    tables = []
    for path in _paths(run):
        tables.append(read_table(path))
        check_rows(path, tables[-1])
    return pa.concat_tables(tables)


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


def read_samples(*runs: Path, kind: str = "") -> Samples:
    """The rows of run directories: all, or those of one kind of case. Raises FileError."""
    rows = Samples(pa.concat_tables([schema().empty_table(), *map(read_run_table, runs)]))
    return rows.where(kind=kind) if kind else rows
