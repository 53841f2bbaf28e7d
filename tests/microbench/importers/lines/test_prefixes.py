"""What launchers and loggers put before every line, of all tools alike; encodings and .gz."""

from __future__ import annotations

import gzip

import pytest
from tests.microbench.importers.logs import imported, table
from tests.microbench.importers.made.early import early
from tests.microbench.importers.made.imb import SUITE, block
from tests.microbench.importers.made.osu import log

from calib.foundation.errors import FileError
from calib.microbench.importers import read_log
from calib.microbench.importers.lines.reading import Log
from calib.microbench.importers.said import Flags

BARRIER = "# OSU MPI Barrier Latency Test v5.9\n# Avg Latency(us)\n             12.34\n"
IMB_BARRIER = (
    "# Benchmarking Barrier \n# #processes = 4 \n#repetitions  t_min[usec]  t_max[usec]"
    "  t_avg[usec]\n 1000 2.00 3.00 2.50\n"
)
LOGS = {
    "nccl": table(),
    "early nccl": early(),
    "osu": log("MPI Allgather Latency Test") + log("MPI-CUDA Latency Test") + BARRIER,
    "imb": SUITE + block("Alltoall") + block("Sendrecv") + IMB_BARRIER,
}
PREFIXES = [
    "00:55:22  ",
    "[1,0]<stdout>:",
    "[1,0]<stdout>: ",
    "0: ",
    " 0: ",
    "12: ",
    "0:\t",
    "[0] ",
    "[ 0] ",
    "[1, 0]<stdout>: ",
    "[prterun-node1-123@1,0]<stdout>: ",
    "[rank0]: ",
    "[default0]:",
    "rank 0: ",
    "2026-11-21T14:31:00.1234567Z ",
    "2026-11-21 14:31:00 ",
    "[2026-11-21 14:31:00.250] ",
    "[14:31:00] ",
    "2026-11-21 14:31:00,250 INFO bench.py:12 ",
    "node017: ",
    "gpu-node-3 | ",
    "Nov 21 14:31:00 node1 slurmstepd[4321]: ",
    "[pod/nccl-worker-0/main] ",
    "Sat Nov 21 14:31:00 2026[1,0]<stdout>:",
    "Sat Nov 21 14:31:00 2026<stdout>: ",
    "\x1b[36mnode-a\x1b[0m: ",
    "10.0.0.7: ",
    "(RayWorker pid=4321, ip=10.0.0.7) ",
    "14:31:00.5 [1,0]<stdout>: 0: ",
    "rank=0 ",
]


def rows(text: str) -> list[tuple[object, ...]]:
    """All that is read of a log: what, size, time."""
    return [
        (b.operation, b.ranks, b.groups, int(n), float(t), b.variants[v].mode)
        for b in imported(text, ranks=4).blocks
        for n, t, v in zip(b.nbytes, b.seconds, b.variant, strict=True)
    ]


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("name", LOGS)
def test_a_prefix_before_every_line(name: str, prefix: str) -> None:
    """The same rows, with the numbers of the prefix counting up; empty lines with it and without."""
    expected = rows(LOGS[name])
    assert len(expected) > 10
    lines = LOGS[name].split("\n")
    counted = [
        prefix.replace("22", f"{at % 60:02d}").replace("14:31:00", f"14:{at % 60:02d}:07") + line
        for at, line in enumerate(lines[:-1])
    ]
    assert rows("\n".join([*counted, ""])) == expected
    bare = [before if line else "" for before, line in zip(counted, lines, strict=False)]
    assert rows("\n".join([*bare, ""])) == expected


@pytest.mark.parametrize("name", LOGS)
def test_lines_of_other_ranks_are_no_rows(name: str) -> None:
    """Ranks that talk, each with its own tag, between the rows of the one that prints."""
    noisy = "".join(
        f"[1,0]<stdout>:{line}\n[1,{at % 4}]<stderr>:node{at % 4}:77:78 [3] NCCL INFO Channel 12\n"
        for at, line in enumerate(LOGS[name].split("\n")[:-1])
    )
    assert rows(noisy) == rows(LOGS[name])


@pytest.mark.parametrize(
    "tag",
    [
        "[1,0]<stdout>:",
        "[0] ",
        "Sat Nov 21 14:31:00 2026[1,0]<stdout>:",
        "Sat Nov  7 14:31:00 2026<stdout>:",
        "\x1b[0m",
    ],
)
def test_a_tag_in_the_middle_of_rows(tag: str) -> None:
    """nccl-tests writes a row in three pieces, and a launcher may put its tag before each."""
    tagged = []
    for line in LOGS["nccl"].split("\n"):
        words = line.split()
        pieces = [words[:5], words[5:9], words[9:]] if "float" in words else [[line]]
        tagged.append(tag + tag.join(" ".join(piece) for piece in pieces))
    assert rows("\n".join(tagged)) == rows(LOGS["nccl"])


def test_some_lines_with_a_prefix_and_some_without() -> None:
    lines = LOGS["osu"].split("\n")
    mixed = [("00:55:22  " if at % 2 else "") + line for at, line in enumerate(lines)]
    assert rows("\n".join(mixed)) == rows(LOGS["osu"])


@pytest.mark.parametrize("name", LOGS)
@pytest.mark.parametrize("prefix", ["rank0", "0", "7 ", "    12\t", "1.5 ", "-3 "])
def test_numbers_that_could_be_a_row_are_not_taken_off(name: str, prefix: str) -> None:
    """`cat -n`, or digits right before digits: no row may change, rather there is none."""
    text = "\n".join(prefix + line for line in LOGS[name].split("\n"))
    try:
        found = rows(text)
    except FileError:
        return
    known = set(rows(LOGS[name]))
    assert set(found) <= known


@pytest.mark.parametrize("name", LOGS)
@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_encodings(name: str, encoding: str, ending: str) -> None:
    data = LOGS[name].replace("\n", ending).encode(encoding)
    found = read_log(Log.of("some.txt", data), Flags(ranks=4))
    assert found.rows == len(rows(LOGS[name]))


def test_packed_logs() -> None:
    """Of a .gz, and of several in one file, what is in them; the hash is that of zcat | sha256sum."""
    data = LOGS["nccl"].encode()
    whole, plain = Log.of("a.gz", gzip.compress(data)), Log.of("a", data)
    assert (whole.text, whole.sha256) == (plain.text, plain.sha256)
    twice = Log.of("a.gz", gzip.compress(data) + gzip.compress(data))
    assert twice.text == 2 * plain.text


@pytest.mark.parametrize("end", [3, 15, 40, -20, -1])
def test_a_packed_log_that_is_cut(end: int) -> None:
    with pytest.raises(FileError, match=r"some\.gz is a broken \.gz"):
        Log.of("some.gz", gzip.compress(LOGS["nccl"].encode())[:end])


def test_a_packed_log_that_never_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small file of a great many zeros."""
    monkeypatch.setattr("calib.microbench.importers.lines.reading.MOST_TEXT", 1 << 20)
    with pytest.raises(FileError, match="holds more than"):
        Log.of("some.gz", gzip.compress(bytes(1 << 22)))
