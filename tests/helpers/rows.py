"""Sample rows made by hand: every number is chosen, none is measured."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from calib.microbench.cases import CollectiveCase, InPlaceCase, LayerCase, SparseCase, TensorsCase
from calib.microbench.records.samples import Sample, Samples, read_samples, schema, write_table

Case = CollectiveCase | LayerCase | TensorsCase | InPlaceCase | SparseCase


def table_of(rows: Iterable[Sample]) -> pa.Table:
    """The table that ranks or an importer would have made of these rows."""
    return pa.Table.from_pylist(list(map(dataclasses.asdict, rows)), schema=schema())


def as_samples(rows: Iterable[Sample]) -> Samples:
    """Rows as the fitting takes them."""
    return Samples(table_of(rows))


def write_rows(path: Path, rows: Iterable[Sample]) -> None:
    """A samples file, or a part."""
    write_table(path, table_of(rows))


def listed(table: pa.Table) -> list[Sample]:
    """The rows of a table, one by one."""
    return [Sample(**row) for row in table.to_pylist()]


def rows_in(run: Path) -> list[Sample]:
    """All rows of a run directory, one by one."""
    return listed(read_samples(run).table)


def sample(**fields: Any) -> Sample:
    """An allreduce of 8 B that took one second on two ranks, but for `fields`."""
    content: dict[str, Any] = {
        "case_id": "0" * 16,
        "kind": "collective",
        "operation": "allreduce",
        "key": "",
        "library": "mpi",
        "level": "node",
        "ranks": 2,
        "active_ranks": 2,
        "nbytes": 8,
        "launch": 0,
        "repetition": 0,
        "calls": 1,
        "seconds": 1.0,
        "skew_seconds": 0.0,
        "rank_seconds": [1.0, 1.0],
        "started_unix_s": 0.0,
    }
    assert set(fields) <= {field.name for field in dataclasses.fields(Sample)}
    return Sample(**{**content, **fields})


def repetitions(case_id: str, launch: int = 0, n: int = 3) -> list[Sample]:
    """n repetitions of one case: every number of them is known, so that rows compare equal."""
    known = {"late_seconds": 0.0, "host_seconds": 0.0, "resolution_s": 0.0}
    return [
        sample(case_id=case_id, launch=launch, repetition=i, seconds=0.1 * i, **known)
        for i in range(n)
    ]


def rows_of(
    case: Case, operation: str, rank_seconds: Sequence[Sequence[float]], **fields: Any
) -> list[Sample]:
    """One row for every repetition in `rank_seconds` (repetition -> seconds of each rank)."""
    about: dict[str, Any] = {"case_id": case.id, "kind": case.kind, "ranks": case.ranks}
    about["active_ranks"] = case.ranks
    if isinstance(case, LayerCase | TensorsCase | InPlaceCase):
        about["dtype"] = case.execution
    if isinstance(case, CollectiveCase):
        about.update(
            nbytes=case.nbytes,
            ranks=case.group_size,
            groups=case.groups,
            stride=case.stride,
            library=case.library,
            cold=case.cold,
            start=case.start,
        )
    elif isinstance(case, LayerCase):
        about.update(key=case.key, batch=case.batch, library="torch")
    elif isinstance(case, TensorsCase):
        items = sum(_product(shape) for shape in case.shapes)
        about.update(key=case.key, ntensors=len(case.shapes), nbytes=4 * items, library="torch")
    elif isinstance(case, SparseCase):
        about.update(key=case.key, ntensors=case.partitions)
    else:
        about.update(key=case.model, batch=case.batch, library="torch")
    return [
        sample(
            **{
                **about,
                "operation": operation,
                "repetition": number,
                "seconds": max(row),
                "skew_seconds": max(row) - min(row),
                "rank_seconds": list(row),
                **fields,
            }
        )
        for number, row in enumerate(rank_seconds)
    ]


def constant(
    case: Case, operation: str, seconds: float, repetitions: int = 8, **fields: Any
) -> list[Sample]:
    """Repetitions that all took `seconds` on every rank."""
    return rows_of(case, operation, [[seconds] * case.ranks] * repetitions, **fields)


def _product(shape: Sequence[int]) -> int:
    result = 1
    for size in shape:
        result *= size
    return result
