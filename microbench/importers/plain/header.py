"""Header of a plain table: what each column is, and its unit."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from calib.microbench.importers.lines.reading import HEAD, Log, cells_of

DELIMITERS = ",;\t| "
# units as an option gives them, in bytes and in seconds
SIZE_UNITS = {
    "B": 1,
    "KiB": 1 << 10,
    "MiB": 1 << 20,
    "GiB": 1 << 30,
    "kB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
}
TIME_UNITS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
# as a header spells them; of kB, MB and GB it does not tell whether they are 1000 or 1024
SIZE_WORDS = {
    "B": "B",
    "byte": "B",
    "bytes": "B",
    "Byte": "B",
    "Bytes": "B",
    "KiB": "KiB",
    "kib": "KiB",
    "MiB": "MiB",
    "mib": "MiB",
    "GiB": "GiB",
    "gib": "GiB",
}
TIME_WORDS = {
    "ns": "ns",
    "nsec": "ns",
    "nanoseconds": "ns",
    "us": "us",
    "usec": "us",
    "µs": "us",
    "μs": "us",
    "microseconds": "us",
    "ms": "ms",
    "msec": "ms",
    "milliseconds": "ms",
    "s": "s",
    "sec": "s",
    "secs": "s",
    "second": "s",
    "seconds": "s",
}
SIZES = {
    "size",
    "message_size",
    "msg_size",
    "data_size",
    "buffer_size",
    "message",
    "nbytes",
    "num_bytes",
    "n_bytes",
    "bytes",
    "msg",
}
TIMES = (
    "time",
    "latency",
    "duration",
    "elapsed",
    "elapsed_time",
    "runtime",
    "wall_time",
    "avg_time",
    "mean_time",
    "avg_latency",
    "mean_latency",
    "average_time",
    "average_latency",
    "t_avg",
    "avg",
    "mean",
    "average",
    "median_time",
    "median",
    "lat",
    "t",
)
OTHERS = {
    "operation": "operation",
    "collective": "operation",
    "coll": "operation",
    "ranks": "ranks",
    "nranks": "ranks",
    "num_ranks": "ranks",
    "gpus": "ranks",
    "ngpus": "ranks",
    "num_gpus": "ranks",
    "processes": "ranks",
    "nprocs": "ranks",
    "np": "ranks",
    "world_size": "ranks",
    "nodes": "nodes",
    "nnodes": "nodes",
    "num_nodes": "nodes",
    "hosts": "nodes",
    "type": "type",
    "dtype": "type",
    "datatype": "type",
    "data_type": "type",
    "busbw": "busbw",
    "bus_bw": "busbw",
    "algbw": "algbw",
    "alg_bw": "algbw",
    "count": "count",
    "elements": "count",
    "wrong": "wrong",
}
# what may differ between rows of one size: which of several times a row is, and other results
IGNORED = {"repetition", "rep", "iter", "iteration", "run", "trial", "index", "timestamp", "date"}
NUMBER = re.compile(r"[0-9_]+(?:e[0-9_]+)?")  # as a name, with _ for all but letters and digits
UNIT = re.compile(r"^(.*?)[\s_]*[(\[]\s*([^()\[\]]+?)\s*[)\]]$")


@dataclass(frozen=True)
class HeaderColumn:
    """A name in small letters with _, and the unit that stands beside it, "" where none does."""

    name: str
    unit: str = ""


@dataclass
class Header:
    """Where the columns stand; `known` are those of OTHERS, `unknown` the rest."""

    line: int
    delimiter: str
    width: int
    size: int
    size_unit: str
    time: int
    time_unit: str
    known: dict[str, int] = field(default_factory=dict)
    unknown: list[int] = field(default_factory=list)
    times: int = 1


def header_of(log: Log) -> Header | None:
    """The header in the first line that is neither empty nor a remark, where that is one."""
    for number, line in enumerate(log.text[:HEAD].split("\n"), 1):
        remark = line.lstrip().startswith("#")
        text = line.lstrip(" \t#")
        found = next((h for d in DELIMITERS if (h := _header(number, text, d))), None)
        if found is not None or (text.strip() and not remark):
            return found
    return None


def lacking(log: Log) -> str:
    """What the first line of a table has not, with its line; "" of other files."""
    for number, line in enumerate(log.text[:HEAD].split("\n"), 1):
        columns = max(
            ([column_of(cell) for cell in cells_of(line, d)] for d in DELIMITERS.strip(" ")),
            key=len,
        )
        if not line.strip() or (line.lstrip().startswith("#") and len(columns) < 2):
            continue
        if len(columns) > 1 and all(NUMBER.fullmatch(column.name) for column in columns):
            return f"line {number} is no header: a table needs one, such as size(B),time(us)"
        names = {column.name for column in columns}
        missing = [
            what for what, words in (("sizes", SIZES), ("times", set(TIMES))) if not names & words
        ]
        one = len(columns) > 1 and len(missing) == 1
        return f"line {number} has no column of {missing[0]}" if one else ""
    return ""


def column_of(cell: str) -> HeaderColumn:
    """Name and unit of `size(B)`, `time [us]`, `latency_ns`, `Message size (bytes)` or `nbytes`."""
    match = UNIT.match(cell)
    words, unit = (match[1], match[2]) if match else (cell, "")
    name = re.sub(r"[^a-z0-9]+", "_", words.lower()).strip("_")
    if not unit:
        base, _, last = name.rpartition("_")
        if last in TIME_WORDS and (base in TIMES or not base):
            return HeaderColumn(base or "time", TIME_WORDS[last])
        if last in ("b", "kib", "mib", "gib", "bytes") and base in SIZES:
            return HeaderColumn(base, {"b": "B"}.get(last, last))
        if name.endswith("bytes") and name in SIZES:
            return HeaderColumn(name, "B")
    return HeaderColumn(name, unit)


def _header(line: int, text: str, delimiter: str) -> Header | None:
    columns = [column_of(cell) for cell in cells_of(text, delimiter)]
    names = [column.name for column in columns]
    sizes = [index for index, name in enumerate(names) if name in SIZES]
    times = sorted((TIMES.index(name), index) for index, name in enumerate(names) if name in TIMES)
    if len(columns) < 2 or not sizes or not times:
        return None
    size = min(sizes, key=lambda index: columns[index].unit not in SIZE_WORDS)
    time = times[0][1]
    if delimiter == " " and not (columns[size].unit and columns[time].unit):
        return None  # words of a sentence
    header = Header(
        line,
        delimiter,
        len(columns),
        size,
        columns[size].unit,
        time,
        columns[time].unit,
        times=len(times),
    )
    for index, column in enumerate(columns):
        other = OTHERS.get(column.name, "")
        bandwidth = other in ("busbw", "algbw")
        if bandwidth and (index < time or column.unit not in ("GB/s", "")):
            other = ""
        if other:
            header.known.setdefault(other, index)
        elif index not in (size, time) and column.name not in {*SIZES, *TIMES, *IGNORED, *OTHERS}:
            header.unknown.append(index)
    return header
