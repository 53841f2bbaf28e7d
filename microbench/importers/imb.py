"""Intel MPI Benchmarks (IMB-MPI1 and IMB-NBC; Pallas before): blocks of `#bytes #repetitions ...`.

The processes stand above each block. IMB's Mbytes/sec is checked against its times: 1e6 bytes since
2018, 2^20 before.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import numpy as np

from microbench.importers.grid import (
    Grid,
    Mask,
    Shape,
    cut_short,
    out_of_order,
    out_of_series,
    refuse,
    whole_bytes,
)
from microbench.importers.osu import OTHER_TOOL, stream_seconds
from microbench.importers.reading import Faults, Log, Numbers, within
from microbench.importers.said import (
    NOT_SAID,
    Flags,
    Said,
    choose,
    file_name,
    launch_line,
    nodes_of_pair,
    remark,
)
from microbench.importers.table import Imported

NAME = "imb"
DESCRIPTION = "Intel MPI Benchmarks"

SUITE = re.compile(
    r"(?:Intel ?\(R\)|PALLAS) MPI Benchmark(?:s| Suite),? ([\w. ]+?),? \S+ part", re.I
)
BENCHMARK = re.compile(r"# Benchmarking (?:Multi-)?(\w+)")
PROCESSES = re.compile(r"#processes\s*=\s*(\d{1,7})")
GROUPS = re.compile(r"\(\s*(\d{1,7}) groups of (\d{1,7}) processes each running")
WAITING = re.compile(r"\(\s*(\d{1,7}) additional process")
DATATYPE = re.compile(r"MPI_Datatype( for reductions)?\s*:\s*MPI_(\w+)")
HEADER = re.compile(r"#repetitions\b")
OSU_TITLE = re.compile(r"# OSU ")
NO_TIME = re.compile(r"time-?out|out-of-mem", re.I)

OPERATIONS = {
    "pingpong": "p2p", "pingpongspecificsource": "p2p", "pingponganysource": "p2p",
    "pingping": "p2p_both", "pingpingspecificsource": "p2p_both",
    "pingpinganysource": "p2p_both", "sendrecv": "sendrecv", "exchange": "exchange",
    "uniband": "p2p_stream", "biband": "p2p_both_stream", "barrier": "barrier",
    "allreduce": "allreduce", "reduce": "reduce", "reduce_scatter": "reduce_scatter",
    "reduce_scatter_block": "reduce_scatter_block", "allgather": "allgather",
    "allgatherv": "allgatherv", "gather": "gather", "gatherv": "gatherv", "scatter": "scatter",
    "scatterv": "scatterv", "alltoall": "all_to_all", "alltoallv": "alltoallv",
    "bcast": "broadcast",
}  # fmt: skip
PER_RANK = {"allgather", "allgatherv", "gather", "gatherv", "scatter", "scatterv", "all_to_all",
            "alltoallv"}  # fmt: skip
REDUCTIONS = {"allreduce", "reduce", "reduce_scatter", "reduce_scatter_block"}
SENT_WHEN_EMPTY = {"p2p", "p2p_both", "p2p_stream", "p2p_both_stream", "sendrecv", "exchange",
                   "barrier"}  # fmt: skip
# bytes that Mbytes/sec counts of a message
COUNTED = {"p2p": 1, "p2p_both": 1, "sendrecv": 2, "exchange": 4}
PAIRED = {"p2p", "p2p_both", "p2p_stream", "p2p_both_stream"}
MEGA = (1e6, float(1 << 20))
DTYPES = {"BYTE": "uint8", "CHAR": "uint8", "FLOAT": "float32", "DOUBLE": "float64", "INT": "int32"}


def recognise(log: Log) -> bool:
    """Whether a log has blocks of IMB."""
    return "#repetitions" in log.text or "MPI Benchmarks" in log.text


@dataclass(frozen=True)
class Head:
    """What stands above a block; blocks with the same are read as one table."""

    benchmark: str = ""
    processes: int = 0
    groups: int = 1
    waiting: int = 0  # processes that were launched and take no part
    launched: Said = NOT_SAID
    columns: tuple[str, ...] = ()


def read(log: Log, flags: Flags) -> Imported:
    """All blocks of a log."""
    return _Reader(log, flags).read()


class _Reader:
    """One pass over the lines, then one over the tables."""

    def __init__(self, log: Log, flags: Flags) -> None:
        self.log, self.flags = log, flags
        self.result = Imported(NAME)
        self.faults: Faults = self.result.faults
        self.head: Head | None = None
        self.line = self.rows = 0
        self.grid: Grid | None = None
        self.grids: dict[Head, tuple[int, Grid]] = {}
        self.launched = Said()
        self.dtypes = {False: "uint8", True: "float32"}  # plain, of reductions

    def read(self) -> Imported:
        last = self.log.length if self.log.cut else 0
        for number, line in enumerate(self.log.lines(), 1):
            parts = line.split()
            grid = self.grid
            if not parts:
                continue
            if grid is not None and len(parts) == grid.width and parts[0][0].isdigit():
                self.rows += 1
                if number == last and "." not in parts[-1]:
                    self.faults.add(number, "the row is cut short")
                else:
                    grid.add(number, parts)
            else:
                self._words(number, line, parts)
        self._close()
        for head, (number, grid) in self.grids.items():
            self._import(head, number, grid)
        return self.result

    def _words(self, number: int, line: str, parts: list[str]) -> None:
        if suite := SUITE.search(line):
            self.result.tool_version = suite[1].strip()
        elif dtype := DATATYPE.search(line):
            self.dtypes[bool(dtype[1])] = DTYPES.get(dtype[2], dtype[2].lower())
        elif benchmark := BENCHMARK.search(line):
            self._open(number, Head(benchmark[1], launched=self.launched))
        elif HEADER.search(line):
            self._header(number, parts)
        elif OSU_TITLE.search(line) or OTHER_TOOL.search(line):
            self._close()
        elif (launched := launch_line(line)) is not None:
            self.launched = launched
        elif self.head is None:
            return
        elif waiting := WAITING.search(line):
            self.head = replace(self.head, waiting=int(waiting[1]))
        elif groups := GROUPS.search(line):
            self.head = replace(self.head, groups=int(groups[1]), processes=int(groups[2]))
        elif processes := PROCESSES.search(line):
            self.head = replace(self.head, processes=int(processes[1]))
        elif self.grid is not None and parts[0].isdecimal() and parts[0].isascii():
            text = "no time: out of memory or time" if NO_TIME.search(line) else (
                "no row of this table: it has other columns")  # fmt: skip
            self.faults.add(number, text)

    def _open(self, number: int, head: Head) -> None:
        self._close()
        self.head, self.line, self.rows = head, number, 0

    def _header(self, number: int, parts: list[str]) -> None:
        if self.head is None or self.grid is not None:
            self._open(number, Head())
        assert self.head is not None
        columns = tuple(part.lstrip("#").lower() for part in parts)
        self.head = replace(self.head, columns=columns)
        if self.head not in self.grids:
            self.grids[self.head] = (self.line, Grid(len(columns), self.faults))
        self.grid = self.grids[self.head][1]
        self.grid.run = self.line

    def _close(self) -> None:
        if self.head is not None and not self.rows:
            self.faults.add(self.line, "the run has no rows")
        self.head = self.grid = None

    def _shape(self, table: Head, line: int) -> Shape | str:
        """Operation, ranks and nodes of a block, or what is missing."""
        notes, flags = self.result.notes, self.flags
        word = table.benchmark.lower().removesuffix("_pure")
        base = OPERATIONS.get(word) or OPERATIONS.get(word.removeprefix("i"), "")
        if not base:
            known = "a benchmark that is not imported" if word else "the benchmark is not said"
            return known
        name = base if word in OPERATIONS else f"i{base}"
        if flags.operation and flags.operation != name:
            remark(notes, f"the file says {name}; --operation {flags.operation} is not used")
        named, pair = file_name(self.log.name), base in PAIRED
        own = table.processes or (2 if pair and "stream" not in base else 0)
        ranks = choose("ranks", own, flags.ranks, table.launched.ranks, named.ranks, notes)
        if ranks < 2:
            return "the ranks are not said: give --ranks" if not ranks else (
                "one rank alone communicates with nobody")  # fmt: skip
        groups = table.groups * (ranks // 2 if pair else 1)
        before, between = table.launched, nodes_of_pair(self.log.name) if pair else 0
        hint = named.nodes or between
        every = choose("nodes", 0, flags.nodes, before.nodes, hint, notes)
        # of these nodes, which all that were started fill, those that the busy ones are on
        busy = ranks * table.groups
        started = max(busy + table.waiting, before.ranks or named.ranks)
        nodes = Said(started, every, before.per_node if before.nodes else 0).on_nodes(busy)
        nodes = max(min(nodes, every), min(between, every))
        if not nodes:
            remark(notes, "the nodes are not said, taken as one: give --nodes")
        each = 2 if pair else ranks
        return Shape(
            name, flags.library or "mpi", "cpu", each, max(1, min(nodes, each)), groups,
            min(nodes, each * groups), self.dtypes[base in REDUCTIONS], base in PER_RANK,
            mean=not pair or groups > 1, line=line, base=base,
        )  # fmt: skip

    def _import(self, head: Head, line: int, grid: Grid) -> None:
        """Check the rows of a table and keep the good ones."""
        lines, runs, values, halves = grid.whole()
        if not len(lines):
            return
        shape = self._shape(head, line)
        if isinstance(shape, str):
            for run in np.unique(runs):
                self.faults.add(int(run), shape)
            return
        columns = {
            name: (values[:, index], halves[:, index]) for index, name in enumerate(head.columns)
        }
        faults, count = self.faults, len(lines)
        sizes = columns["bytes"][0] if "bytes" in columns else np.zeros(count)
        text = "a number has other decimals than its column"
        good = refuse(lines, np.ones(count, dtype=bool), cut_short(halves), text, faults)
        good = refuse(lines, good, ~whole_bytes(sizes), "the size is no number of bytes", faults)
        if "bytes" in columns:
            text = "the size is not in the series of this table"
            good = refuse(lines, good, out_of_series(np.where(good, sizes, 0)), text, faults)
            if "group" not in columns:
                text = "the size is not larger than the one before"
                good = refuse(lines, good, out_of_order(sizes, runs, good), text, faults)
        if "defects" in columns:
            good = refuse(lines, good, columns["defects"][0] != 0, "wrong results", faults)
        found = self._seconds(shape, sizes, columns, lines, good)
        if found is None:
            faults.add(line, "its columns are not ones that are known")
            return
        good, seconds, skew = found
        bad = ~(np.isfinite(seconds) & (seconds > 0))
        empty = (sizes == 0) & (shape.base not in SENT_WHEN_EMPTY)
        good = refuse(lines, good, bad & ~empty, "the time is no positive number", faults)
        if (good & empty).any():
            remark(self.result.notes, "rows of size 0 are left out: nothing is sent")
        keep = good & ~empty
        calls = columns["repetitions"][0]
        block = shape.block(runs[keep], sizes[keep], seconds[keep], skew[keep], calls[keep])
        self.result.blocks += [block] if block is not None else []

    def _seconds(
        self,
        shape: Shape,
        sizes: Numbers,
        columns: dict[str, tuple[Numbers, Numbers]],
        lines: np.ndarray,
        good: Mask,
    ) -> tuple[Mask, Numbers, Numbers] | None:
        """Good rows, seconds and skew."""
        skew = np.full(len(sizes), np.nan)
        names = ("t_avg[usec]", "t_pure[usec]", "t[usec]")
        name = next((name for name in names if name in columns), "")
        bandwidth = columns.get("mbytes/sec")
        if not name and bandwidth is not None:
            rate = columns.get("msg/sec")
            return *stream_seconds(shape, sizes, bandwidth, rate, lines, good, self.faults), skew
        if not name:
            return None
        value, half = columns[name]
        least = most = value
        if "t_min[usec]" in columns and "t_max[usec]" in columns:
            least, most = columns["t_min[usec]"][0], columns["t_max[usec]"][0]
            text = "the average is not between minimum and maximum"
            bad = ~within(value, least - half, most + half, half)
            good = refuse(lines, good, bad, text, self.faults)
            skew = (most - least) * 1e-6
        if bandwidth is not None and shape.operation in COUNTED:
            bad = _other_bandwidth(
                COUNTED[shape.operation] * sizes, least, most, half, bandwidth, good
            )
            text = "Mbytes/sec and the time do not agree"
            good = refuse(lines, good, bad, text, self.faults)
        return good, value * 1e-6, skew


def _other_bandwidth(
    nbytes: Numbers,
    least: Numbers,
    most: Numbers,
    half_time: Numbers,
    bandwidth: tuple[Numbers, Numbers],
    good: Mask,
) -> Mask:
    """Rows whose Mbytes/sec is not bytes / time, in the mega that more rows have."""
    found = []
    for mega in MEGA:
        with np.errstate(all="ignore"):
            low = nbytes / (most + half_time) / mega * 1e6
            high = np.where(least > half_time, nbytes / (least - half_time) / mega * 1e6, np.inf)
        found.append(~within(bandwidth[0], low, high, bandwidth[1]))
    return min(found, key=lambda bad: int((bad & good).sum()))
