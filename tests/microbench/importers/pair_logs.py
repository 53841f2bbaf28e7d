"""Logs of pairs of nodes as nccl-tests prints them, one file a pair: made, with what is planted."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from pathlib import Path

from tests.microbench.importers.logs import END, HEADER, row

SIZES = [1 << power for power in range(20, 29, 2)]
US_PER_BYTE, START_US = 80e-6, 15.0
FAILURE = (
    "n2: Test NCCL failure sendrecv.cu:57 'remote process exited or there was a network error / '\n"
    " .. n2 pid 2: Test failure common.cu:484\n"
)


def start(
    one: str, other: str, program: str = "sendrecv", buses: tuple[str, str] = ("1b", "43")
) -> str:
    """What a run of two nodes with a GPU each says before its table."""
    devices = "".join(
        f"#  Rank {rank:2d} Group  0 Pid {4000 + rank:6d} on {host} device  0 [0000:{bus}:00] "
        "NVIDIA H100\n"
        for rank, (host, bus) in enumerate(zip((one, other), buses, strict=True))
    )
    return (
        "# nccl-tests version 2.17.8 nccl-headers=22902 nccl-library=22902\n"
        f"# Collective test starting: {program}_perf\n"
        "# nThread 1 nGpus 1 minBytes 8 maxBytes 134217728 step: 2(factor) warmup iters: 1 "
        f"iters: 20 agg iters: 1 validation: 1 graph: 0\n#\n# Using devices\n{devices}#\n"
    )


def slow_node(name: str, factor: float) -> Callable[[str, str], float]:
    """How many times as long pairs take, where those of one node do and all others do not."""
    return lambda one, other: factor if name in (one, other) else 1.0


def pair_log(one: str, other: str, factor: float = 1.0) -> str:
    """A whole run of two nodes; its bytes take `factor` times as long as usual."""
    rows = "".join(
        row(size, START_US + factor * US_PER_BYTE * size, factor=1.0) + "\n" for size in SIZES
    )
    return start(one, other) + HEADER + rows + END


def failed_log(one: str, other: str) -> str:
    """A run that ends before its first row."""
    return start(one, other) + HEADER + FAILURE


def write_pairs(
    folder: Path, hosts: int, factor: Callable[[str, str], float], failing: tuple[str, ...] = ()
) -> Path:
    """A file for every pair of n0, n1, ...; those of `failing`, as "n0 n2", fail."""
    folder.mkdir()
    for one, other in combinations([f"n{number}" for number in range(hosts)], 2):
        fails = f"{one} {other}" in failing
        text = failed_log(one, other) if fails else pair_log(one, other, factor(one, other))
        (folder / f"{one}_{other}.txt").write_text(text)
    return folder
