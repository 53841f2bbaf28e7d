"""Projections as a tidy table: a row each, in seconds and bytes."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import IO

from calib.foundation.errors import FileError, InputError
from calib.foundation.files import destination, is_special, whole
from calib.foundation.records import Estimate
from calib.foundation.text import Cell, csv_row
from calib.oracle.projection import PHASES, Projection

# rows that parquet files are written by
GROUP = 10_000

TEXT = (
    "model",
    "strategy",
    "form",
    "schedule",
    "grid",
    "optimizer",
    "execution",
    "basis",
    "bottleneck",
    "reason",
)
TRUTH = ("overlap", "sharded_optimizer", "sequence_parallel", "feasible")
WHOLE = ("p", "inner", "batch", "segments", "accumulation", "limit_ranks", "bytes_per_rank")
COLUMNS = (
    "model",
    "strategy",
    "form",
    "p",
    "inner",
    "batch",
    "batch_per_rank",
    "segments",
    "accumulation",
    "schedule",
    "grid",
    "overlap",
    "sharded_optimizer",
    "sequence_parallel",
    "optimizer",
    "execution",
    "feasible",
    *Estimate.columns("total", "s"),
    "basis",
    *(f"{phase}_s" for phase in PHASES),
    "epoch_s",
    "bytes_per_rank",
    *Estimate.columns("peak", "bytes"),
    "limit_ranks",
    "bottleneck",
    "bottleneck_share",
    "reason",
)


def row_of(of: Projection) -> list[Cell]:
    """The values of COLUMNS; None where there is none."""
    division, total, peak, phases = of.division, of.total, of.peak_bytes, of.phases
    worst = next((b for b in of.bottlenecks if b.share is not None), None)
    return [
        of.model,
        division.strategy,
        of.form,
        division.p,
        division.inner,
        division.batch,
        float(division.batch_per_rank),
        division.segments,
        division.accumulation,
        division.schedule if division.traits.stages else "",
        "x".join(map(str, division.cells)),
        division.overlap,
        division.sharded_optimizer,
        division.sequence_parallel,
        of.optimizer,
        of.execution,
        of.feasible,
        *((*total.numbers, total.basis) if total else (None,) * 4),
        *(phases[phase].value if phase in phases else None for phase in PHASES),
        of.epoch.value if of.epoch else None,
        of.bytes_per_rank if total else None,
        *(peak.numbers if peak else (None,) * 3),
        of.limit.ranks,
        worst.name if worst else "",
        worst.share if worst else None,
        "; ".join(of.limits),
    ]


class _Csv:
    def __init__(self, stream: IO[str]) -> None:
        self._writer = csv.writer(stream, lineterminator="\n")
        self._writer.writerow(COLUMNS)

    def add(self, projection: Projection) -> None:
        self._writer.writerow(csv_row(row_of(projection)))

    def close(self) -> None:
        pass


class _Json:
    """A list of objects, one on a line."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream, self._before = stream, "["

    def add(self, projection: Projection) -> None:
        row = dict(zip(COLUMNS, row_of(projection), strict=True))
        self._stream.write(f"{self._before}\n{json.dumps(row, allow_nan=False)}")
        self._before = ","

    def close(self) -> None:
        self._stream.write("\n]\n" if self._before == "," else "[]\n")


class _Parquet:
    """Row groups of GROUP rows."""

    def __init__(self, path: Path) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        kinds = {
            **dict.fromkeys(TEXT, pa.string()),
            **dict.fromkeys(TRUTH, pa.bool_()),
            **dict.fromkeys(WHOLE, pa.int64()),
        }
        self._schema = pa.schema([(name, kinds.get(name, pa.float64())) for name in COLUMNS])
        self._writer, self._rows = pq.ParquetWriter(path, self._schema), list[list[Cell]]()
        self._table = pa.Table

    def add(self, projection: Projection) -> None:
        self._rows.append(row_of(projection))
        if len(self._rows) == GROUP:
            self._flush()

    def _flush(self) -> None:
        columns = dict(zip(COLUMNS, zip(*self._rows, strict=True), strict=True))
        self._writer.write_table(self._table.from_pydict(columns, schema=self._schema))
        self._rows.clear()

    def close(self) -> None:
        if self._rows:
            self._flush()
        self._writer.close()


SweepWriter = _Csv | _Json | _Parquet


def csv_text(projections: Iterable[Projection]) -> str:
    """The table with its header."""
    stream = io.StringIO()
    table = _Csv(stream)
    for projection in projections:
        table.add(projection)
    return stream.getvalue()


@contextmanager
def table_of(path: Path | None) -> Iterator[SweepWriter]:
    """A CSV table on stdout, or a table in a file of that suffix, written whole or not at all.

    Raises InputError for another suffix, FileError where the file cannot be written.
    """
    if path is None:
        yield _Csv(sys.stdout)
        return
    if path.suffix not in (".csv", ".json", ".parquet"):
        raise InputError(f"-o {path}: the name must end in .csv, .json or .parquet")
    place = destination(path)
    if is_special(place):
        raise FileError(f"cannot write {path}: it is no regular file")
    if place.is_dir():
        raise FileError(f"cannot write {path}: it is a directory")
    with whole(place) as temporary:
        if path.suffix == ".parquet":
            with closing(_Parquet(temporary)) as parquet:
                yield parquet
        else:
            with temporary.open("w", encoding="utf-8", newline="") as stream:
                table = _Csv(stream) if path.suffix == ".csv" else _Json(stream)
                yield table
                table.close()
