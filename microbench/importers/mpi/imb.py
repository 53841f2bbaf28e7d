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
from calib.microbench.importers.mpi.grid import (
    DTYPES,
    OTHER_TOOL,
    PER_RANK,
    REDUCTIONS,
    CommonHead,
    GridColumn,
    GridReader,
    GridRows,
    GridTable,
    TableShape,
    stream_seconds,
)
from calib.microbench.importers.said import (
    TOO_FEW,
    Flags,
    SaidPlaces,
    choose,
    choose_nodes,
    each_word,
    file_name,
    launch_line,
    nodes_of_pair,
    overruled,
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

SAME_NAME = (PER_RANK | REDUCTIONS | {"sendrecv", "exchange", "barrier"}) - {"alltoallw"}
OPERATIONS = {name: name for name in SAME_NAME} | each_word(
    {
        "p2p": "pingpong pingpongspecificsource pingponganysource",
        "p2p_both": "pingping pingpingspecificsource pingpinganysource",
        "p2p_stream": "uniband",
        "p2p_both_stream": "biband",
        "all_to_all": "alltoall",
        "broadcast": "bcast",
    }
)
RENAMED = {"bytes": "size", "repetitions": "iterations"}  # columns, as OSU has them
# bytes that Mbytes/sec counts of a message
COUNTED = {"p2p": 1, "p2p_both": 1, "sendrecv": 2, "exchange": 4}
MEGA = (1e6, float(1 << 20))


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
            timeless = NO_TIME.search(line)
            text = "not a row of this table: other columns"
            self.faults.add(number, "no time: out of memory or time" if timeless else text)

    def _header(self, number: int, parts: list[str]) -> None:
        if self.head is None or self.grid is not None:
            self.open(number, ImbHead())
        names = (part.lstrip("#").lower() for part in parts)
        self.begin(tuple(RENAMED.get(name, name) for name in names))

    def shape(self, head: ImbHead, table: GridTable) -> TableShape | str:
        """Operation, ranks and nodes of a block, or what is missing."""
        notes, flags = self.result.notes, self.flags
        word = head.benchmark.lower().removesuffix("_pure")
        base = OPERATIONS.get(word) or OPERATIONS.get(word.removeprefix("i"), "")
        if not base:
            return "a benchmark that is not imported" if word else "the benchmark is not named"
        name = base if word in OPERATIONS else f"i{base}"
        overruled(name, flags.operation, notes)
        named, pair = file_name(self.log.name), base.startswith("p2p")
        own = head.processes or (2 if pair and "stream" not in base else 0)
        before = head.launched
        ranks = choose("ranks", own or before.ranks, flags.ranks, named.ranks, notes)
        if ranks in TOO_FEW:
            return TOO_FEW[ranks]
        between = nodes_of_pair(self.log.name) if pair else 0
        every = choose_nodes(before.nodes, flags.nodes, named.nodes or between, notes)
        # of these nodes, which all that were started fill, those that the busy ones are on
        busy = ranks * head.groups
        started = max(busy + head.waiting, before.ranks or named.ranks)
        nodes = SaidPlaces(started, every, before.per_node if before.nodes else 0).on_nodes(busy)
        return TableShape(
            operation=name,
            base=base,
            library=flags.library or "mpi",
            device="cpu",
            dtype=self.dtypes[base in REDUCTIONS],
            ranks=2 if pair else ranks,
            groups=head.groups * (ranks // 2 if pair else 1),
            nodes=max(min(nodes, every), min(between, every)),
        )

    def seconds(self, shape: TableShape, table: GridTable) -> GridColumn | None:
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
