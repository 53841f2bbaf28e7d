"""Which rows phi is fitted from, by what must be the same for it to compare like with like."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from calib.fitting.sections.collective_rows import IN_PLACE
from calib.foundation.arrays import Floats
from calib.microbench.records.samples import SPOILING, Sample

COLUMNS = (
    "kind",
    "operation",
    "key",
    "library",
    "level",
    "ranks",
    "active_ranks",
    "nbytes",
    "launch",
    "warmup",
    "oversubscribed",
    "seconds",
    "device",
    "groups",
    "stride",
    "nodes",
    "cold",
    "background_nbytes",
    "start",
    "marks",
    "mode",
    "dtype",
)
NO_ROWS: dict[str, Any] = {name: () for name in COLUMNS}


@dataclass(frozen=True, order=True)
class Layout:
    """What must be the same for phi to compare like with like; a CUDA graph is another operation."""

    operation: str
    library: str
    device: str
    level: str
    ranks: int
    stride: int
    nodes: int
    dtype: str


@dataclass(frozen=True)
class Runs:
    """Rows of one layout and one k: bytes [n], seconds [n], launch [n]; flows on one node's links."""

    nbytes: Floats
    seconds: Floats
    launch: NDArray[np.int64]
    flows: float


def runs_of(
    samples: Sequence[Sample] | pa.Table,
) -> tuple[dict[Layout, dict[int, Runs]], list[str]]:
    """layout -> groups at once -> its plain rows; a note on rows without a finite time."""
    columns = _columns(samples)
    seconds = np.array([math.nan if s is None else s for s in columns["seconds"]], dtype=float)
    plain = ~np.array(columns["warmup"], dtype=bool) & ~np.array(columns["cold"], dtype=bool)
    plain &= ~np.array(columns["oversubscribed"], dtype=bool)
    spoiled = [bool(m) and not SPOILING.isdisjoint(m.split(",")) for m in columns["marks"]]
    plain &= ~np.array(spoiled, dtype=bool)
    plain &= np.array([start == "barrier" for start in columns["start"]], dtype=bool)
    plain &= np.array(columns["background_nbytes"], dtype=float) == 0
    in_place = [mode in IN_PLACE for mode in columns["mode"]]
    plain &= ~np.array(in_place, dtype=bool)
    good = np.isfinite(seconds) & (seconds > 0)
    notes = []
    if (plain & ~good).any():
        notes.append(
            f"contention: {int((plain & ~good).sum())} rows without a finite time left out"
        )
    # as in collective_rows.py: the layout of a halo, the inner size of a hierarchy, a CUDA graph make
    # another operation
    operations = [
        (f"{name} {key}" if key and key != str(ranks) else name) + " graph" * (mode == "graph")
        for name, key, ranks, mode in zip(
            *(columns[name] for name in ("operation", "key", "ranks", "mode")), strict=True
        )
    ]
    names = ("library", "device", "level", "ranks", "stride", "nodes", "dtype", "groups")
    members: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    used = plain & good
    fields = zip(operations, *(columns[name] for name in names), strict=True)
    for index, member in enumerate(fields):
        if used[index]:
            members[member].append(index)
    nbytes, launch = np.array(columns["nbytes"], float), np.array(columns["launch"], np.int64)
    result: dict[Layout, dict[int, Runs]] = defaultdict(dict)
    for (*about, groups), rows in members.items():
        layout = Layout(*about)
        active = max(columns["active_ranks"][index] for index in rows)
        flows = min(max(active * layout.nodes / layout.ranks, 1.0), float(groups))
        result[layout][groups] = Runs(
            nbytes[rows], seconds[rows], launch[rows], flows if active else float(groups)
        )
    return dict(result), notes


def _columns(samples: Sequence[Sample] | pa.Table) -> dict[str, Any]:
    """name -> values [n] of the collectives."""
    if isinstance(samples, Sequence):
        of = attrgetter(*COLUMNS)
        rows = [of(row) for row in samples if row.kind == "collective"]
        return dict(zip(COLUMNS, zip(*rows, strict=True), strict=True)) if rows else NO_ROWS

    table = samples.filter(pc.equal(samples["kind"], "collective"))
    return {name: table[name].to_pylist() for name in COLUMNS}
