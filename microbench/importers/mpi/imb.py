"""Intel MPI Benchmarks (IMB-MPI1 and IMB-NBC; Pallas before): blocks of `#bytes #repetitions ...`.

The processes stand above each block. IMB's Mbytes/sec is checked against its times: 1e6 bytes since
2018, 2^20 before.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import numpy as np

from calib.foundation.arrays import Mask
from calib.microbench.importers.lines.reading import Log, Numbers, within
from calib.microbench.importers.mpi.grid import GridColumn, GridRows, GridTable, TableShape
from calib.microbench.importers.mpi.reader import OTHER_TOOL, CommonHead, GridReader, stream_seconds
from calib.microbench.importers.said import (
    TOO_FEW,
    Flags,
    SaidPlaces,
    choose,
    file_name,
    launch_line,
    nodes_of_pair,
    remark,
)
from calib.microbench.importers.table import Imported

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
    "pingpong": "p2p",
    "pingpongspecificsource": "p2p",
    "pingponganysource": "p2p",
    "pingping": "p2p_both",
    "pingpingspecificsource": "p2p_both",
    "pingpinganysource": "p2p_both",
    "sendrecv": "sendrecv",
    "exchange": "exchange",
    "uniband": "p2p_stream",
    "biband": "p2p_both_stream",
    "barrier": "barrier",
    "allreduce": "allreduce",
    "reduce": "reduce",
    "reduce_scatter": "reduce_scatter",
    "reduce_scatter_block": "reduce_scatter_block",
    "allgather": "allgather",
    "allgatherv": "allgatherv",
    "gather": "gather",
    "gatherv": "gatherv",
    "scatter": "scatter",
    "scatterv": "scatterv",
    "alltoall": "all_to_all",
    "alltoallv": "alltoallv",
    "bcast": "broadcast",
}
PER_RANK = {
    "allgather",
    "allgatherv",
    "gather",
    "gatherv",
    "scatter",
    "scatterv",
    "all_to_all",
    "alltoallv",
}
REDUCTIONS = {"allreduce", "reduce", "reduce_scatter", "reduce_scatter_block"}
SENT_WHEN_EMPTY = {
    "p2p",
    "p2p_both",
    "p2p_stream",
    "p2p_both_stream",
    "sendrecv",
    "exchange",
    "barrier",
}
# bytes that Mbytes/sec counts of a message
COUNTED = {"p2p": 1, "p2p_both": 1, "sendrecv": 2, "exchange": 4}
PAIRED = {"p2p", "p2p_both", "p2p_stream", "p2p_both_stream"}
MEGA = (1e6, float(1 << 20))
DTYPES = {"BYTE": "uint8", "CHAR": "uint8", "FLOAT": "float32", "DOUBLE": "float64", "INT": "int32"}


def recognise(log: Log) -> bool:
    """Whether a log has blocks of IMB."""
    return "#repetitions" in log.text or bool(SUITE.search(log.text))


@dataclass(frozen=True)
class ImbHead(CommonHead):
    """What stands above a block."""

    benchmark: str = ""
    processes: int = 0
    groups: int = 1
    waiting: int = 0  # processes that were launched and take no part


def read(log: Log, flags: Flags) -> Imported:
    """All blocks of a log."""
    return _ImbReader(log, flags).read()


class _ImbReader(GridReader[ImbHead]):
    """IMB's heads, its columns, and what follows from them."""

    tool = NAME
    size, calls = "bytes", "repetitions"
    sent_when_empty = SENT_WHEN_EMPTY
    empty_untimed = True

    def __init__(self, log: Log, flags: Flags) -> None:
        super().__init__(log, flags)
        self.dtypes = {False: "uint8", True: "float32"}  # plain, of reductions

    def loses_digits(self, grid: GridRows, parts: list[str]) -> bool:
        """Of decimals the column tells that later; a whole number may have had more digits."""
        return "." not in parts[-1]

    def words(self, number: int, line: str, parts: list[str]) -> None:
        if suite := SUITE.search(line):
            self.result.tool_version = suite[1].strip()
        elif dtype := DATATYPE.search(line):
            self.dtypes[bool(dtype[1])] = DTYPES.get(dtype[2], dtype[2].lower())
        elif benchmark := BENCHMARK.search(line):
            self.open(number, ImbHead(benchmark[1], launched=self.launched))
        elif HEADER.search(line):
            self._header(number, parts)
        elif OSU_TITLE.search(line) or OTHER_TOOL.search(line):
            self.close()
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
            text = (
                "no time: out of memory or time"
                if NO_TIME.search(line)
                else ("no row of this table: it has other columns")
            )
            self.faults.add(number, text)

    def _header(self, number: int, parts: list[str]) -> None:
        if self.head is None or self.grid is not None:
            self.open(number, ImbHead())
        self.begin(tuple(part.lstrip("#").lower() for part in parts))

    def shape(self, head: ImbHead, line: int, table: GridTable) -> TableShape | str:
        """Operation, ranks and nodes of a block, or what is missing."""
        notes, flags = self.result.notes, self.flags
        word = head.benchmark.lower().removesuffix("_pure")
        base = OPERATIONS.get(word) or OPERATIONS.get(word.removeprefix("i"), "")
        if not base:
            known = "a benchmark that is not imported" if word else "the benchmark is not said"
            return known
        name = base if word in OPERATIONS else f"i{base}"
        if flags.operation and flags.operation != name:
            remark(notes, f"the file says {name}; {flags.operation} is not used")
        named, pair = file_name(self.log.name), base in PAIRED
        own = head.processes or (2 if pair and "stream" not in base else 0)
        ranks = choose("ranks", own, flags.ranks, head.launched.ranks, named.ranks, notes)
        if ranks in TOO_FEW:
            return TOO_FEW[ranks]
        groups = head.groups * (ranks // 2 if pair else 1)
        before, between = head.launched, nodes_of_pair(self.log.name) if pair else 0
        hint = named.nodes or between
        every = choose("nodes", 0, flags.nodes, before.nodes, hint, notes)
        # of these nodes, which all that were started fill, those that the busy ones are on
        busy = ranks * head.groups
        started = max(busy + head.waiting, before.ranks or named.ranks)
        nodes = SaidPlaces(started, every, before.per_node if before.nodes else 0).on_nodes(busy)
        nodes = max(min(nodes, every), min(between, every))
        if not nodes:
            remark(notes, "the nodes are not said, taken as one")
        each = 2 if pair else ranks
        return TableShape(
            name,
            flags.library or "mpi",
            "cpu",
            each,
            max(1, min(nodes, each)),
            groups,
            min(nodes, each * groups),
            self.dtypes[base in REDUCTIONS],
            base in PER_RANK,
            mean=not pair or groups > 1,
            line=line,
            base=base,
        )

    def seconds(self, shape: TableShape, table: GridTable) -> tuple[Numbers, Numbers] | None:
        """From a time, checked against Mbytes/sec, or of a stream from that."""
        columns = table.columns
        if "defects" in columns:
            table.refuse(columns["defects"][0] != 0, "wrong results")
        names = ("t_avg[usec]", "t_pure[usec]", "t[usec]")
        name = next((name for name in names if name in columns), "")
        bandwidth = columns.get("mbytes/sec")
        if not name and bandwidth is not None:
            return stream_seconds(shape, table, bandwidth, columns.get("msg/sec"))
        if not name:
            return None
        value, half = columns[name]
        least, most, skew = table.spread(name, "t_min[usec]", "t_max[usec]")
        if bandwidth is not None and shape.operation in COUNTED:
            nbytes = COUNTED[shape.operation] * table.sizes
            bad = _other_bandwidth(nbytes, least, most, half, bandwidth, table.good)
            table.refuse(bad, "Mbytes/sec and the time do not agree")
        return value * 1e-6, skew


def _other_bandwidth(
    nbytes: Numbers,
    least: Numbers,
    most: Numbers,
    half_time: Numbers,
    bandwidth: GridColumn,
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
