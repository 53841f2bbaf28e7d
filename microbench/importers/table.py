"""Blocks of imported rows, written to samples.parquet column by column."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from calib.foundation.arrays import Integers
from calib.microbench.importers.lines.reading import Faults, Numbers
from calib.microbench.importers.rank_calls import RankCalls
from calib.microbench.records.samples import Samples, make_table, schema

IMPORTED = "imported"
MEAN_OVER_RANKS = "mean_over_ranks"
OF_RUN = "of_a_run"  # a time of a call in a job that had other things to do, not of a benchmark
LACKS_RANKS = "lacks_ranks"  # of such a call: no time of the rank that came last may be among them
ROWS_PER_GROUP = 131_072


@dataclass(frozen=True)
class TableVariant:
    """What may differ between the rows of one table beside the size."""

    dtype: str
    mode: str = "eager"
    detail: str = ""  # the reduction and the root: part of the case, of no column


@dataclass
class Block:
    """Rows of one or several runs of a tool that were alike: each run is a launch.

    `ranks` are of one group, `groups` how many groups ran at once, `nodes` those that a group spans,
    `active_ranks` the ranks of one node. Arrays have one item per row: `run` numbers the runs of the
    file, `variant` indexes `variants`, `nbytes` is the whole buffer m of formulas.md, `seconds` and
    `skew` are per call. `line` is where the first run's table begins, `key` what makes it another
    operation, "" of none. `places` are those of the ranks (records/peers.py), where the file says.
    `files` is how many files a run's rows are joined of, `resolution_s` what its clock cannot tell.
    """

    operation: str
    library: str
    device: str
    ranks: int
    nodes: int
    active_ranks: int
    groups: int
    variants: list[TableVariant]
    run: Integers
    variant: Integers
    nbytes: Integers
    seconds: Numbers
    skew: Numbers
    calls: Integers
    mean_over_ranks: bool = False
    line: int = 0
    key: str = ""
    places: tuple[str, ...] = ()
    of_run: bool = False
    lacks_ranks: bool = False
    files: int = 1
    resolution_s: float = math.nan

    def __len__(self) -> int:
        return len(self.nbytes)

    @property
    def runs(self) -> int:
        """How many runs they are of."""
        return len(np.unique(self.run))

    @property
    def level(self) -> str:
        """node where a group lies in one node, else system."""
        return "node" if self.nodes == 1 else "system"

    @property
    def marks(self) -> str:
        """The words in the column `marks`."""
        words = {
            MEAN_OVER_RANKS: self.mean_over_ranks,
            OF_RUN: self.of_run,
            LACKS_RANKS: self.lacks_ranks,
        }
        return ",".join([IMPORTED, *(word for word, holds in words.items() if holds)])


class FailedRun(NamedTuple):
    """A run that gave no time, or broke off, and where its ranks were to run."""

    operation: str
    places: tuple[str, ...]
    reason: str


@dataclass
class Imported:
    """What one importer found in one file. `gpus`: host -> names of its GPUs, where the file says.

    `of_run`: the times are of a run (a training job), not of a benchmark. Its `calls` are of single
    ranks, and become blocks when those of all files are joined (jobs/joining.py).
    """

    tool: str
    tool_version: str = ""
    library_version: str = ""
    blocks: list[Block] = field(default_factory=list)
    faults: Faults = field(default_factory=Faults)
    notes: list[str] = field(default_factory=list)
    gpus: dict[str, list[str]] = field(default_factory=dict)
    failed: list[FailedRun] = field(default_factory=list)
    of_run: bool = False
    calls: list[RankCalls] = field(default_factory=list)

    @property
    def rows(self) -> int:
        """How many rows it gives, and calls of single ranks that are to be joined."""
        return sum(map(len, self.blocks)) + sum(map(len, self.calls))


def merged(parts: Sequence[Imported]) -> Imported:
    """One record of a file that holds logs of several tools."""
    whole = Imported(" and ".join(dict.fromkeys(part.tool for part in parts)))
    for part in parts:
        whole.tool_version = whole.tool_version or part.tool_version
        whole.library_version = whole.library_version or part.library_version
        whole.blocks += part.blocks
        whole.faults.entries += part.faults.entries
        whole.faults.dropped += part.faults.dropped
        whole.notes += [note for note in part.notes if note not in whole.notes]
        whole.gpus |= part.gpus
        whole.failed += part.failed
        whole.of_run = whole.of_run or part.of_run
        whole.calls += part.calls
    whole.blocks.sort(key=lambda block: block.line)
    return whole


def repetitions(block: Block) -> Integers:
    """The number of each row among the rows of its case, in the order of the file."""
    order = np.lexsort((block.nbytes, block.variant, block.run))  # stable
    size, variant, run = block.nbytes[order], block.variant[order], block.run[order]
    new = np.ones(len(order), dtype=bool)
    new[1:] = (size[1:] != size[:-1]) | (variant[1:] != variant[:-1]) | (run[1:] != run[:-1])
    starts = np.flatnonzero(new)
    numbers = np.arange(len(order)) - np.repeat(starts, np.diff(np.append(starts, len(order))))
    result = np.empty(len(order), dtype=np.int64)
    result[order] = numbers
    return result


def case_numbers(block: Block) -> NDArray[np.uint64]:
    """64 bits of each row that hash what its case is: all but launch, repetition and times.

    SHA-256 of the words, mixed with the size by splitmix64 (Steele, Lea and Flood, OOPSLA 2014), so
    that a million sizes are a few array operations.
    """
    words = (
        block.operation,
        block.library,
        block.device,
        block.ranks,
        block.nodes,
        block.active_ranks,
        block.groups,
    )
    own = (block.key,) if block.key else ()  # rows without one keep the numbers they always had
    seeds = [
        int.from_bytes(hashlib.sha256(repr((words, *own, variant)).encode()).digest()[:8], "big")
        for variant in block.variants
    ]
    with np.errstate(over="ignore"):
        mixed = np.array(seeds, dtype=np.uint64)[block.variant]
        mixed = mixed + block.nbytes.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def write_blocks(path: Path, files: Sequence[Imported]) -> None:
    """Write samples.parquet at `path`; runs that gave rows are launches 0, 1, ... over all files."""

    waiting: list[pa.Table] = []
    with pq.ParquetWriter(path, schema(), compression="zstd") as writer:
        for block, launches in launched(files):
            for table in tables(block, launches):
                waiting.append(table)
                if sum(each.num_rows for each in waiting) >= ROWS_PER_GROUP:
                    writer.write_table(pa.concat_tables(waiting))
                    waiting = []
        if waiting:
            writer.write_table(pa.concat_tables(waiting))


def rows_of(files: Sequence[Imported]) -> Samples:
    """The rows in memory, as `write_blocks` writes them."""
    parts = [table for block, launches in launched(files) for table in tables(block, launches)]
    return Samples(pa.concat_tables(parts) if parts else None)


def launched(files: Sequence[Imported]) -> Iterator[tuple[Block, Integers]]:
    """Every block and the launch of each of its rows."""
    before = 0
    for imported in files:
        if not imported.blocks:
            continue
        runs = np.unique(np.concatenate([np.unique(block.run) for block in imported.blocks]))
        for block in imported.blocks:
            yield block, before + np.searchsorted(runs, block.run)
        before += len(runs)


def tables(block: Block, launches: Integers) -> Iterator[pa.Table]:
    """The rows of a block as Arrow tables of at most ROWS_PER_GROUP rows."""
    numbers, cases = repetitions(block), case_numbers(block)
    dtypes = pa.array([variant.dtype for variant in block.variants])
    modes = pa.array([variant.mode for variant in block.variants])
    for start in range(0, len(block), ROWS_PER_GROUP):
        part = slice(start, start + ROWS_PER_GROUP)
        size = len(block.nbytes[part])
        variant = pa.array(block.variant[part])
        yield make_table(
            size,
            case_id=_hexadecimal(cases[part]),
            kind="collective",
            operation=block.operation,
            key=block.key,
            library=block.library,
            level=block.level,
            ranks=block.ranks,
            active_ranks=block.active_ranks,
            nbytes=block.nbytes[part],
            launch=launches[part],
            repetition=numbers[part],
            calls=block.calls[part],
            seconds=block.seconds[part],
            skew_seconds=block.skew[part],
            rank_seconds=pa.array([[]] * size, pa.list_(pa.float64())),
            started_unix_s=0.0,
            device=block.device,
            dtype=dtypes.take(variant),
            groups=block.groups,
            nodes=block.nodes,
            mode=modes.take(variant),
            marks=block.marks,
            places=",".join(block.places),
            resolution_s=block.resolution_s,
        )


def _hexadecimal(numbers: NDArray[np.uint64]) -> pa.Array:
    """16 hexadecimal digits of each number."""
    digits = numbers.astype(">u8").tobytes().hex().encode()
    offsets = np.arange(len(numbers) + 1, dtype=np.int32) * 16
    return pa.StringArray.from_buffers(
        len(numbers), pa.py_buffer(offsets.tobytes()), pa.py_buffer(digits)
    )
