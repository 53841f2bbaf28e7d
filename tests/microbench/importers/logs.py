"""Logs for the tests of importers: the published ones, and made ones that print as the tools do."""

from __future__ import annotations

from typing import Any

from tests.helpers.published import DATA

from calib.microbench.importers import read_log
from calib.microbench.importers.lines.reading import Log
from calib.microbench.importers.said import Flags
from calib.microbench.importers.table import Block, Imported

# the columns of a time, out of place and in place, stand twice
HEADER = (
    f"#{'out-of-place':>74s}{'in-place':>31s}\n"
    f"#{'size':>11s}{'count':>14s}{'type':>10s}{'redop':>8s}{'root':>8s}"
    + f"{'time':>9s}{'algbw':>8s}{'busbw':>8s}{'#wrong':>8s}"
    * 2
    + f"\n#{'(B)':>11s}{'(elements)':>14s}{'(us)':>35s}{'(GB/s)':>8s}{'(GB/s)':>8s}"
    f"{'(us)':>17s}{'(GB/s)':>8s}{'(GB/s)':>8s}\n"
)


def start(program: str = "all_reduce", ranks: int = 4, nodes: int = 1, iterations: int = 20) -> str:
    """What nccl-tests 2.17 says before its table (src/util.cu)."""
    each = ranks // nodes
    lines = [
        "# nccl-tests version 2.17.8 nccl-headers=22902 nccl-library=22902",
        f"# Collective test starting: {program}_perf",
        "# nThread 1 nGpus 1 minBytes 8 maxBytes 134217728 step: 2(factor) warmup iters: 1 "
        f"iters: {iterations} agg iters: 1 validation: 1 graph: 0",
        "#",
        "# Using devices",
    ]
    lines += [
        f"#  Rank {rank:2d} Group  0 Pid {4000 + rank:6d} on node{rank // each} device {rank % each:2d} "
        "[0000:1b:00] NVIDIA H100"
        for rank in range(ranks)
    ]
    return "\n".join([*lines, "#", ""])


def width(value: float, room: int) -> str:
    """getFloatStr of nccl-tests: as many decimals as fit."""
    for places in (2, 1, 0):
        text = f"{value:{room}.{places}f}"
        if len(text) <= room:
            return text
    return f"{value:{room}.1e}"


def row(
    size: int,
    micros: float,
    factor: float = 1.5,
    parts: int = 1,
    redop: str = "sum",
    root: int = -1,
    wrong: str = "0",
    dtype: str = "float",
    item: int = 4,
) -> str:
    """One row of nccl-tests 2.17; in place it takes 1 us less."""
    line = f"{size:12d}  {size // item // parts:12d}  {dtype:>8s}  {redop:>6s}  {root:6d}"
    for time in (micros, micros - 1):
        algbw = size / time * 1e-3
        line += f"  {width(time, 7):>7s}  {width(algbw, 6):>6s}  {width(algbw * factor, 6):>6s}"
        line += f"  {wrong:>6s}"
    return line


TIMES = [(1 << power, 10 + (1 << power) / 1e4) for power in range(10, 27, 2)]
END = "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 12.3\n#\n"


def table() -> str:
    """A whole run: allreduce on 4 ranks, sizes 1 KiB to 64 MiB."""
    return start() + HEADER + "".join(row(size, time) + "\n" for size, time in TIMES) + END


def imported(text: str, name: str = "some.txt", **flags: Any) -> Imported:
    """What is read of a text; `flags` are those of Flags."""
    return read_log(Log.of(name, text.encode()), Flags(**flags))


def published(path: str, **flags: Any) -> Imported:
    """What is read of a published log; `flags` are those of Flags."""
    return read_log(Log.read(DATA / path), Flags(**flags))


def one(found: Imported) -> Block:
    """The only block."""
    (block,) = found.blocks
    return block


def times(block: Block, mode: str = "eager") -> dict[int, float]:
    """nbytes -> microseconds of a block's rows of one mode."""
    return {
        int(nbytes): float(seconds) * 1e6
        for nbytes, seconds, variant in zip(block.nbytes, block.seconds, block.variant, strict=True)
        if block.variants[variant].mode == mode
    }
