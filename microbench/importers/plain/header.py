"""Header of a plain table: what each column is, and its unit."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from calib.microbench.importers.lines.reading import HEAD, Log, cells_of
from calib.microbench.importers.said import each_word

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
SIZE_WORDS = each_word(
    {"B": "B byte bytes Byte Bytes", "KiB": "KiB kib", "MiB": "MiB mib", "GiB": "GiB gib"}
)
TIME_WORDS = each_word(
    {
        "ns": "ns nsec nanoseconds",
        "us": "us usec µs μs microseconds",
        "ms": "ms msec milliseconds",
        "s": "s sec secs second seconds",
    }
)
# name of a column -> what it is
COLUMNS = each_word(
    {
        "size": "size message_size msg_size data_size buffer_size message nbytes num_bytes n_bytes "
        "bytes msg",
        # of several, the first of these is used
        "time": "time latency duration elapsed elapsed_time runtime wall_time avg_time mean_time "
        "avg_latency mean_latency average_time average_latency t_avg avg mean average median_time "
        "median lat t",
        "operation": "operation collective coll",
        "ranks": "ranks nranks num_ranks gpus ngpus num_gpus processes nprocs np world_size",
        "nodes": "nodes nnodes num_nodes hosts",
        "type": "type dtype datatype data_type",
        "busbw": "busbw bus_bw",
        "algbw": "algbw alg_bw",
        "count": "count elements",
        "wrong": "wrong",
        # may differ between rows of one size: which repetition a row is
        "repetition": "repetition rep iter iteration run trial index timestamp date",
    }
)
TIMES = [name for name, what in COLUMNS.items() if what == "time"]
NUMBER = re.compile(r"[0-9_]+(?:e[0-9_]+)?")  # as a name, with _ for all but letters and digits
UNIT = re.compile(r"^(.*?)[\s_]*[(\[]\s*([^()\[\]]+?)\s*[)\]]$")


@dataclass(frozen=True)
class HeaderColumn:
    """A name in small letters with _, and the unit that stands beside it, "" where none does."""

    name: str
    unit: str = ""


@dataclass
class Header:
    """Where the columns stand; `known` are those of COLUMNS, `unknown` the rest."""

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
    """What the first line of a table lacks; "" for other files."""
    for number, line in enumerate(log.text[:HEAD].split("\n"), 1):
        columns = max(
            ([column_of(cell) for cell in cells_of(line, d)] for d in DELIMITERS.strip(" ")),
            key=len,
        )
        if not line.strip() or (line.lstrip().startswith("#") and len(columns) < 2):
            continue
        if len(columns) > 1 and all(NUMBER.fullmatch(column.name) for column in columns):
            return f"line {number} is no header: a table needs one, such as size(B),time(us)"
        there = {COLUMNS.get(column.name) for column in columns}
        missing = [what for what in ("size", "time") if what not in there]
        one = len(columns) > 1 and len(missing) == 1
        return f"line {number} has no column of {missing[0]}s" if one else ""
    return ""


def column_of(cell: str) -> HeaderColumn:
    """Name and unit of `size(B)`, `time [us]`, `latency_ns`, `Message size (bytes)` or `nbytes`."""
    match = UNIT.match(cell)
    words, unit = (match[1], match[2]) if match else (cell, "")
    name = re.sub(r"[^a-z0-9]+", "_", words.lower()).strip("_")
    if not unit:
        base, _, last = name.rpartition("_")
        if last in TIME_WORDS and (not base or COLUMNS.get(base) == "time"):
            return HeaderColumn(base or "time", TIME_WORDS[last])
        if last in ("b", "kib", "mib", "gib", "bytes") and COLUMNS.get(base) == "size":
            return HeaderColumn(base, {"b": "B"}.get(last, last))
        if name.endswith("bytes") and COLUMNS.get(name) == "size":
            return HeaderColumn(name, "B")
    return HeaderColumn(name, unit)


def _header(line: int, text: str, delimiter: str) -> Header | None:
    columns = [column_of(cell) for cell in cells_of(text, delimiter)]
    names = [column.name for column in columns]
    sizes = [index for index, name in enumerate(names) if COLUMNS.get(name) == "size"]
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
        what = COLUMNS.get(column.name, "")
        foreign = what in ("algbw", "busbw") and (index < time or column.unit not in ("GB/s", ""))
        if not what:
            header.unknown.append(index)
        elif what not in ("size", "time", "repetition") and not foreign:
            header.known.setdefault(what, index)
    return header
