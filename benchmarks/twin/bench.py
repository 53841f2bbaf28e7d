"""The oracle against the twin: fitted on at most 64 ranks, asked for 128 to 1,024.

From the tables in docs/results, so that SimGrid is only needed to make them again; where it is here, one
layout of each platform is simulated anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.twin import iterations, scores
from benchmarks.twin.platforms import PLATFORMS
from benchmarks.twin.simulated import compiled, is_here, run
from benchmarks.twin.tables import Timed, fitted, read, rows_of

AGAIN = (2, 8)  # nodes and ranks per node


def twin() -> list[str]:
    """Collectives, what the laws say of themselves, iterations, and whether the tables still hold."""
    rows = read()
    of = {name: [row for row in rows if row.platform == name] for name in PLATFORMS}
    fits = {name: fitted(mine) for name, mine in of.items()}
    found = [each for name, fit in fits.items() for each in scores.scored(of[name], fit)]
    told = [
        each
        for name, platform in PLATFORMS.items()
        for each in scores.scored(of[name], fitted(of[name], cluster=platform.cluster))
    ]
    played = [
        each
        for name, fit in fits.items()
        for each in iterations.scored([r for r in iterations.read() if r.platform == name], fit)
    ]
    return [
        *scores.table(found),
        *scores.words(found),
        "with the topology declared",
        *scores.table(told),
        *iterations.table(played),
        *again(rows),
    ]


def again(rows: Sequence[Timed]) -> list[str]:
    """How far each platform, simulated now, is from its table."""
    if not is_here():
        return ["SimGrid is not here (Debian's libsimgrid-dev): the tables are taken as they are"]
    lines, (nodes, per_node) = [], AGAIN
    with TemporaryDirectory(prefix="calib-twin-") as folder:
        program = compiled("collectives.c", Path(folder))
        for platform in PLATFORMS.values():
            kept = [row for row in rows if row[:1] + row[2:4] == (platform.name, *_layout())]
            kept = [row for row in kept if row.operation == "allreduce"]
            sizes = [str(row.nbytes) for row in kept]
            log = run(platform, nodes, per_node, [str(program), "allreduce", *sizes], Path(folder))
            new = rows_of(log, platform.name, nodes, nodes * per_node)
            worst = max(
                abs(a.microseconds / b.microseconds - 1) for a, b in zip(new, kept, strict=True)
            )
            lines.append(
                f"{platform.name}: simulated again, at most {100 * worst:.2g}% from its table"
            )
    return lines


def _layout() -> tuple[int, int]:
    """Nodes and ranks of AGAIN."""
    nodes, per_node = AGAIN
    return nodes, nodes * per_node
