"""Importing a log of a million rows: rows per second and memory, beside splitting the same lines.

The logs are made here, as nccl-tests and OSU print them. Prints; asserts nothing.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter

ROWS = 1_000_000
OSU_SIZES = 25


def importing() -> list[str]:
    """One line for each tool."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name, write in (("nccl-tests", write_nccl), ("osu", write_osu)):
            path = Path(folder) / f"{name}.txt"
            write(path)
            line = [sys.executable, "-m", "benchmarks.importing", str(path)]
            done = subprocess.run(line, check=True, capture_output=True, text=True)
            rows.append(f"{name}: {done.stdout.strip()}")
    return rows


def write_nccl(path: Path) -> None:
    """One run of allreduce on 8 ranks with a row for every KiB."""
    ranks = [
        f"#  Rank {rank:2d} Group  0 Pid   4000 on node0 device {rank:2d} [0000:1b:00] NVIDIA H100\n"
        for rank in range(8)
    ]
    header = " ".join(["# size count type redop root", *["time algbw busbw #wrong"] * 2])
    with path.open("w") as stream:
        stream.write("# Collective test starting: all_reduce_perf\n# Using devices\n")
        stream.writelines([*ranks, header + "\n"])
        for index in range(1, ROWS // 2 + 1):  # a line gives two rows
            size = 1024 * index
            micros = round(20 + size / 2e5, 2)
            algbw = size / micros * 1e-3
            half = f"{micros:8.2f}  {algbw:6.2f}  {algbw * 1.75:6.2f}       0"
            stream.write(f"{size:12d}  {size // 4:12d}     float     sum      -1  {half}  {half}\n")


def write_osu(path: Path) -> None:
    """Runs of the allreduce test, one after the other."""
    title = "# OSU MPI Allreduce Latency Test v7.3\n# Size       Avg Latency(us)\n"
    rows = [f"{4 << power:<10d}{5 + (4 << power) / 2e3:16.2f}\n" for power in range(OSU_SIZES)]
    with path.open("w") as stream:
        for _ in range(ROWS // OSU_SIZES):
            stream.writelines([title, *rows])


def _measure(path: Path) -> None:
    from calib.microbench.importers import read_file
    from calib.microbench.importers.machine import cluster_of, write_run
    from calib.microbench.importers.said import Flags

    start = perf_counter()
    with path.open() as stream:
        for line in stream:
            line.split()
    split = perf_counter() - start
    start = perf_counter()
    record, imported = read_file(path, Flags(ranks=8, nodes=1))
    cluster = cluster_of([imported], "made")
    write_run(path.parent / f"run-{path.stem}", [record], [imported], cluster, "0")
    seconds = perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"{record.rows} rows in {seconds:.1f} s, {record.rows / seconds:.0f} rows/s, {peak:.0f} MB, "
        f"{seconds / split:.1f} times as long as splitting the lines"
    )


if __name__ == "__main__":
    _measure(Path(sys.argv[1]))
