"""The words of OSU: titles, headers, and the operations that they name."""

from __future__ import annotations

import re
from functools import lru_cache

TITLE = re.compile(
    r"OSU (?P<library>MPI|NCCL|RCCL|MSCCLPP|OpenSHMEM|UPC\+*|OMPI|xCCL)(?P<side>_\w+)?"
    r"(?P<device>-[A-Z]+)?(?P<what>[\w ()/,.-]*?)(?:\s+v(?P<version>\d[\w.]*))?\s*$"
)
COLUMN = re.compile(
    r"(?:(?:[A-Z][\w.]*|P\d[\d.]*) ){0,2}(?:[A-Z][\w.]*|P\d[\d.]*) ?\((?:us|MB/s|%)\)"
    r"|MPI_\w+\(us\)|Iterations|Validation|MB/s|Messages/s|Transmit Size"
)
# words of a title -> operation; the first that fits. Titles of 5.x to 7.x, spelled alike
COLLECTIVES = (
    ("all-to-allv|alltoallv", "alltoallv"),
    ("all-to-allw|alltoallw", "alltoallw"),
    ("all-to-all|alltoall", "all_to_all"),
    ("allgatherv", "allgatherv"),
    ("allgather", "allgather"),
    ("allreduce", "allreduce"),
    ("barrier", "barrier"),
    ("broadcast|bcast", "broadcast"),
    ("gatherv", "gatherv"),
    ("gather", "gather"),
    ("reduce[_-]scatter[_-]block", "reduce_scatter_block"),
    ("reduce[_-]scatter", "reduce_scatter"),
    ("reduce", "reduce"),
    ("scatterv", "scatterv"),
    ("scatter", "scatter"),
)
POINTS = (
    ("multiple bandwidth", "p2p_stream"),
    ("bi-?directional bandwidth", "p2p_both_stream"),
    ("bandwidth", "p2p_stream"),
    ("multi-threaded latency", "p2p_threads"),
    ("multi-process latency", "p2p_processes"),
    ("multi[ -]latency", "p2p_pairs"),
    ("latency", "p2p"),
)
BUFFERS = re.compile(r"Buffer on \w+ \((\w+)\)")
DTYPES = {
    "CHAR": "uint8",
    "SIGNED_CHAR": "int8",
    "UNSIGNED_CHAR": "uint8",
    "BYTE": "uint8",
    "INT": "int32",
    "FLOAT": "float32",
    "DOUBLE": "float64",
    "LONG": "int64",
    "SHORT": "int16",
    "INT8_T": "int8",
    "INT32_T": "int32",
    "INT64_T": "int64",
    "HALF": "float16",
}
# the tool's size is one rank's part of these (formulas.md has the whole buffer)
PER_RANK = {
    "allgather",
    "allgatherv",
    "gather",
    "gatherv",
    "scatter",
    "scatterv",
    "all_to_all",
    "alltoallv",
    "alltoallw",
}
REDUCTIONS = {"allreduce", "reduce", "reduce_scatter", "reduce_scatter_block"}
SENT_WHEN_EMPTY = {
    "p2p",
    "p2p_threads",
    "p2p_processes",
    "p2p_pairs",
    "p2p_stream",
    "p2p_both_stream",
    "barrier",
}
REFUSED = re.compile("congestion|partitioned|hello|init|one-sided|atomic|put|get|accumulate", re.I)


@lru_cache(maxsize=256)
def title_of(line: str) -> tuple[str, str, str, str] | None:
    """What a title says: the test, the library, the device of the buffers and the version."""
    title = TITLE.search(line)
    if title is None:
        return None
    library = title["library"].lower()
    device = "cuda" if title["device"] or library not in ("mpi", "ompi") else "cpu"
    what = f"{title['side'] or ''} {title['what']}".strip()
    return what, library, device, title["version"] or ""


def device_of(line: str) -> str:
    """Where a line says that the buffers are: cpu if all on the host, cuda if one is not; or ""."""
    found = BUFFERS.findall(line)
    if not found:
        return ""
    return "cpu" if set(found) == {"H"} else "cuda"


@lru_cache(maxsize=256)
def columns_of(line: str) -> tuple[str, ...]:
    """The names of a header's columns, in small letters: size, avg latency(us), iterations."""
    columns = [" ".join(name.split()).lower() for name in COLUMN.findall(line)]
    first = ["size"] if "Size" in line else []
    return tuple(first + [name.replace(" (", "(") for name in columns])


def operation_of(what: str) -> tuple[str, str]:
    """Operation and its base from the words of a title, or "" and why not.

    Non-blocking is i<operation>, on neighbours neighbor_<operation>, and persistent
    <operation>_persistent: other calls, not to be fitted as the plain one.
    """
    words = what.lower()
    if what.startswith("_") or REFUSED.search(re.sub(r"latency|bandwidth", "", words)):
        return "", "a test that is not imported (one-sided, start-up, partitioned or congestion)"
    base = next((name for text, name in COLLECTIVES if re.search(text, words)), "")
    if base:
        name = f"neighbor_{base}" if "neighbo" in words else base
        name = f"i{name}" if re.search(r"non-?blocking", words) else name
    else:
        base = name = next((name for text, name in POINTS if re.search(text, words)), "")
    if not base:
        return "", "a test that is not known"
    return (f"{name}_persistent" if "persistent" in words else name), base
