"""Simulate the collectives of every platform: python -m benchmarks.twin.record [PLATFORM...].

Adds to the table what it lacks, small layouts first; a run that takes longer than LIMIT_S is named.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.twin.platforms import PER_NODE, PLATFORMS
from benchmarks.twin.simulated import compiled, run
from benchmarks.twin.tables import COLLECTIVES, append, read, rows_of

# nodes x ranks per node
MEASURED = (
    *((1, 2), (1, 4), (1, 8), (2, 1), (4, 1), (8, 1), (16, 1)),
    *((2, 2), (4, 2), (8, 2), (2, 4), (4, 4), (8, 4), (16, 4), (2, 8), (4, 8), (8, 8)),
)
PREDICTED = tuple((ranks // PER_NODE, PER_NODE) for ranks in (128, 256, 512, 1024))
SIZES = tuple(
    4**power for power in range(6, 13)
)  # 4 KiB, one item for each of 1,024 ranks, to 16 MiB
# bytes that are simulated from so many ranks on: every other size, then three of them
FEWER = ((512, SIZES[2::2]), (256, SIZES[::2]))
# what runs in one process; of many ranks each by itself, the quick ones first
TOGETHER = (("allreduce", "allgather", "reduce_scatter", "broadcast", "p2p"), ("all_to_all",))
QUICK, SLOW = (("broadcast",), ("allreduce",)), (("allgather",), ("reduce_scatter",))
LIMIT_S = 400.0


def record(path: Path, platforms: Sequence[str]) -> None:
    """Add to a table what it lacks of these platforms."""
    done = {row[:4] for row in read(path)} if path.exists() else set()
    steps = [
        (layout, operations, PLATFORMS[name])
        for layouts, groups in (
            (MEASURED, TOGETHER),
            *(((one,), QUICK) for one in PREDICTED),
            *(((one,), SLOW) for one in PREDICTED),
            (PREDICTED, (("all_to_all",),)),
        )
        for operations in groups
        for layout in layouts
        for name in platforms
    ]
    with TemporaryDirectory(prefix="calib-twin-") as folder:
        program = compiled("collectives.c", Path(folder))
        for (nodes, per_node), operations, platform in steps:
            ranks = nodes * per_node
            wanted = [
                name
                for name in operations
                if (platform.name, name, nodes, ranks) not in done and (name != "p2p" or ranks == 2)
            ]
            if not wanted:
                continue
            sizes = next((fewer for least, fewer in FEWER if ranks >= least), SIZES)
            command = [str(program), ",".join(wanted), *map(str, sizes)]
            start, late = time.perf_counter(), ""
            try:
                log = run(platform, nodes, per_node, command, Path(folder), LIMIT_S)
            except subprocess.TimeoutExpired as error:
                log = error.stdout.decode() if isinstance(error.stdout, bytes) else ""
                late = ", stopped"
            append(path, rows_of(log, platform.name, nodes, ranks))
            took = time.perf_counter() - start
            what = f"{platform.name} {nodes}x{per_node} {','.join(wanted)}"
            print(f"{what}: {took:.1f} s{late}", flush=True)


if __name__ == "__main__":
    record(COLLECTIVES, sys.argv[1:] or list(PLATFORMS))
