"""Tables of simulated collectives, and the logs of OSU that they were made from.

A row is platform, operation, nodes, ranks, nbytes (of the whole buffer), microseconds (the mean over
the ranks, as OSU prints it).
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from calib.fitting.parameters.file import Parameters
from calib.microbench.records.cluster import Cluster
from calib.replay.logs import parameters_of

FOLDER = Path(__file__).parents[2] / "docs" / "results" / "2026-11-27-twin"
COLLECTIVES = FOLDER / "collectives.csv"
COLUMNS = ("platform", "operation", "nodes", "ranks", "nbytes", "microseconds")
LARGEST = 64  # ranks that are measured; more are predicted
TITLES = {
    "allreduce": "Allreduce",
    "allgather": "Allgather",
    "reduce_scatter": "Reduce_scatter",
    "all_to_all": "All-to-All Personalized Exchange",
    "broadcast": "Broadcast",
    "p2p": "",
}
# OSU prints the bytes of one rank for these
PER_RANK = ("allgather", "all_to_all")


class Timed(NamedTuple):
    """One simulated collective."""

    platform: str
    operation: str
    nodes: int
    ranks: int
    nbytes: int
    microseconds: float


def read(path: Path = COLLECTIVES) -> list[Timed]:
    """The rows of a table."""
    with path.open(newline="") as stream:
        return [
            Timed(
                row["platform"],
                row["operation"],
                int(row["nodes"]),
                int(row["ranks"]),
                int(row["nbytes"]),
                float(row["microseconds"]),
            )
            for row in csv.DictReader(stream)
        ]


def append(path: Path, rows: Iterable[Timed]) -> None:
    """Add rows to a table, which may be new."""
    new = not path.exists()
    with path.open("a", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerows([COLUMNS, *rows] if new else rows)


def rows_of(log: str, platform: str, nodes: int, ranks: int) -> list[Timed]:
    """The rows of what collectives.c printed."""
    found, operation = list[Timed](), ""
    for line in log.splitlines():
        words = line.split()
        if line.startswith("# OSU MPI "):
            title = line.removeprefix("# OSU MPI ").split("Latency Test")[0].strip()
            operation = next(name for name, of in TITLES.items() if of == title)
        elif len(words) == 5 and words[0].isdigit():
            nbytes = int(words[0]) * (ranks if operation in PER_RANK else 1)
            found.append(Timed(platform, operation, nodes, ranks, nbytes, float(words[1])))
    return found


def logs(rows: Sequence[Timed], folder: Path) -> list[Path]:
    """Rows of one platform as logs of OSU, one for each number of nodes and ranks."""
    layouts: dict[tuple[int, int], dict[str, list[Timed]]] = defaultdict(dict)
    for row in rows:
        layouts[row.nodes, row.ranks].setdefault(row.operation, []).append(row)
    paths = []
    for (nodes, ranks), operations in layouts.items():
        path = folder / f"{nodes}n{ranks}p.txt"
        lines = [f"mpirun -np {ranks} -N {ranks // nodes} ./collectives"]
        for operation, timed in operations.items():
            lines += [
                f"# OSU MPI {f'{TITLES[operation]} Latency'.strip()} Test v7.5",
                "# Datatype: MPI_FLOAT.",
                "# Size       Avg Latency(us)",
            ]
            for row in sorted(timed, key=lambda each: each.nbytes):
                nbytes = row.nbytes // (ranks if operation in PER_RANK else 1)
                lines.append(f"{nbytes:<10d}{row.microseconds:18.2f}")
        path.write_text("\n".join(lines) + "\n")
        paths.append(path)
    return paths


def fitted(
    rows: Sequence[Timed], most: int = LARGEST, cluster: Cluster | None = None
) -> Parameters:
    """What calib fits to the rows of one platform of at most so many ranks: imported, then fitted.

    `cluster` declares the platform's links; without it nothing is known but the logs.
    """
    with TemporaryDirectory(prefix="calib-twin-") as folder:
        paths = logs([row for row in rows if row.ranks <= most], Path(folder))
        return parameters_of(paths, cluster)
