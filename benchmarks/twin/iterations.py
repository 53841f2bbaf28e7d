"""Iterations played by SimGrid: python -m benchmarks.twin.iterations PLATFORM RANKS [STRATEGY...].

Adds to the table. A row is platform, strategy, ranks, microseconds of the slowest rank. The
predictions rest on collectives of at most 64 ranks.
"""

from __future__ import annotations

import csv
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import NamedTuple

from benchmarks.twin.platforms import PER_NODE, PLATFORMS
from benchmarks.twin.played import COMPUTES, STRATEGIES, computing, played
from benchmarks.twin.simulated import compiled, run
from benchmarks.twin.tables import FOLDER, fitted
from benchmarks.twin.tables import read as read_collectives
from calib.fitting.parameters.file import Parameters
from calib.oracle.costs.machine import Machine
from calib.oracle.projection import PhaseTime
from calib.reports.scoring.choice import kendall_tau

ITERATIONS = FOLDER / "iterations.csv"
COLUMNS = ("platform", "strategy", "ranks", "microseconds")
OPTIONS = (
    "--cfg=smpi/host-speed:1Gf",  # that of the platforms: seconds are as given
    "--cfg=smpi/cpu-threshold:0",
)
LIMIT_S = 400.0


class Iteration(NamedTuple):
    """One iteration as SimGrid played it."""

    platform: str
    strategy: str
    ranks: int
    microseconds: float


def read(path: Path = ITERATIONS) -> list[Iteration]:
    """The rows of a table."""
    with path.open(newline="") as stream:
        return [
            Iteration(
                row["platform"], row["strategy"], int(row["ranks"]), float(row["microseconds"])
            )
            for row in csv.DictReader(stream)
        ]


def play(
    platform: str, strategy: str, ranks: int, machine: Machine, folder: Path, limit_s: float
) -> Iteration | None:
    """A strategy played by SimGrid; None where it is impossible. Raises TimeoutExpired."""
    each = played(strategy, ranks, PER_NODE)
    if each is None:
        return None
    program, steps = folder / "iteration", folder / "steps"
    if not program.exists():
        compiled("iteration.c", folder)
    steps.write_text("\n".join(each.steps(machine)) + "\n")
    nodes, per_node = max(1, ranks // PER_NODE), min(PER_NODE, ranks)
    command = [*OPTIONS, str(program), str(steps)]
    said = run(PLATFORMS[platform], nodes, per_node, command, folder, limit_s)
    return Iteration(platform, strategy, ranks, round(1e6 * float(said.split()[1]), 2))


@dataclass(frozen=True)
class ScoredIteration:
    """An iteration, and what was predicted of it; `compute_s` is the same on both sides."""

    row: Iteration
    predicted: PhaseTime
    compute_s: float
    batch: int

    @property
    def accuracy(self) -> float:
        """1 - |predicted / simulated - 1|."""
        return 1.0 - abs(self.predicted.value / (1e-6 * self.row.microseconds) - 1.0)

    def held(self, level: float) -> bool:
        """Whether the interval of that level has the simulated time in it."""
        low, high = self.predicted.interval(level)
        return low <= 1e-6 * self.row.microseconds <= high


def scored(rows: Sequence[Iteration], network: Parameters) -> list[ScoredIteration]:
    """The iterations of one platform, predicted from its fitted collectives."""
    machine, found = Machine(computing(network)), []
    for row in rows:
        each = played(row.strategy, row.ranks, PER_NODE)
        if each is None:
            continue
        projection = each.prediction(machine)
        assert projection.total is not None
        compute_s = sum(projection.phases[n].value for n in COMPUTES if n in projection.phases)
        found.append(ScoredIteration(row, projection.total, compute_s, each.division.batch))
    return found


def table(found: Sequence[ScoredIteration]) -> list[str]:
    """Each iteration, the mean of the strategies' means, and the order of strategies (per sample)."""
    lines = [
        "platform     strategy     ranks  simulated ms  predicted ms  compute ms  accuracy  90%"
    ]
    for each in found:
        lines.append(
            f"{each.row.platform:12s} {each.row.strategy:12s} {each.row.ranks:5d} "
            f"{each.row.microseconds / 1e3:13.2f} {each.predicted.value * 1e3:13.2f} "
            f"{each.compute_s * 1e3:11.2f} {100 * each.accuracy:8.1f}% {each.held(0.9):4d}"
        )
    means = {
        name: fmean(each.accuracy for each in found if each.row.strategy == name)
        for name in dict.fromkeys(each.row.strategy for each in found)
    }
    if means:
        lines.append(", ".join(f"{name} {100 * mean:.1f}%" for name, mean in means.items()))
        lines.append(f"mean of strategy means: {100 * fmean(means.values()):.1f}%")
    for key in sorted({(each.row.platform, each.row.ranks) for each in found}):
        of = [each for each in found if (each.row.platform, each.row.ranks) == key]
        tau = kendall_tau(
            [each.predicted.value / each.batch for each in of],
            [each.row.microseconds / each.batch for each in of],
        )
        if len(of) > 2 and tau is not None:
            lines.append(f"{key[0]} {key[1]} ranks: tau {tau:.2f} of {len(of)} strategies")
    return lines


def record(platform: str, ranks: int, strategies: Sequence[str]) -> None:
    """Play strategies and add them to the table."""
    rows = [row for row in read_collectives() if row.platform == platform]
    machine = Machine(computing(fitted(rows)))
    with TemporaryDirectory(prefix="calib-twin-") as folder:
        for strategy in strategies:
            try:
                row = play(platform, strategy, ranks, machine, Path(folder), LIMIT_S)
            except subprocess.TimeoutExpired:
                print(f"{platform} {strategy} {ranks}: more than {LIMIT_S:.0f} s", flush=True)
                continue
            if row is not None:
                new = not ITERATIONS.exists()
                with ITERATIONS.open("a", newline="") as stream:
                    writer = csv.writer(stream, lineterminator="\n")
                    writer.writerows([COLUMNS, row] if new else [row])
                print(*row, flush=True)


if __name__ == "__main__":
    record(sys.argv[1], int(sys.argv[2]), sys.argv[3:] or STRATEGIES)
