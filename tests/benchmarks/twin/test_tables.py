"""The twin's tables: read, written as logs, fitted; and simulated again where SimGrid is."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.twin.platforms import PER_NODE, PLATFORMS
from benchmarks.twin.played import STRATEGIES, computing, played
from benchmarks.twin.scores import by_hand, log_log, scored
from benchmarks.twin.simulated import compiled, is_here, run
from benchmarks.twin.tables import TITLES, Timed, fitted, logs, read, rows_of

from calib.microbench.importers import read_file
from calib.microbench.importers.said import Flags
from calib.oracle.costs.machine import Machine

needs_simgrid = pytest.mark.skipif(
    not is_here(), reason="SimGrid is not here: smpicc and smpirun (Debian's libsimgrid-dev)"
)
ROWS = read()


def rows(platform: str, nodes: int, ranks: int) -> list[Timed]:
    return [row for row in ROWS if (row.platform, row.nodes, row.ranks) == (platform, nodes, ranks)]


@pytest.mark.parametrize("platform", PLATFORMS)
def test_all_that_is_measured_is_there_and_no_time_is_negative(platform: str) -> None:
    full = rows(platform, 8, 64)
    assert {row.operation for row in full} == set(TITLES) - {"p2p"}
    assert len({row[:5] for row in ROWS}) == len(ROWS)
    assert min(row.microseconds for row in ROWS) > 0


def test_a_table_as_logs_is_imported_as_it_was(tmp_path: Path) -> None:
    mine = rows("fat_tree", 2, 16)
    (path,) = logs(mine, tmp_path)
    _, imported = read_file(path, Flags(), path.name)
    got = {
        (block.operation, block.nodes, block.ranks, int(nbytes), round(1e6 * float(seconds), 2))
        for block in imported.blocks
        for nbytes, seconds in zip(block.nbytes, block.seconds, strict=True)
    }
    assert got == {row[1:] for row in mine}


def test_what_was_fitted_is_predicted_beyond() -> None:
    few = [
        row
        for row in ROWS
        if row.platform == "slow_link"
        and row.operation == "broadcast"
        and row.ranks == PER_NODE * row.nodes
        and row.ranks <= 64
    ]
    found = scored(few, fitted(few, 32), 32)
    assert [each.row.ranks for each in found] == [64] * len({row.nbytes for row in few})
    assert all(0 <= each.cost.low <= each.cost.seconds <= each.cost.high for each in found)
    assert all(each.error(each.seconds) == 0 for each in found)


def made(ranks: int, nbytes: int) -> Timed:
    """A ring of 2 us a step and 1 ns/B."""
    steps = 2 * (ranks - 1)
    return Timed(
        "", "allreduce", ranks // 8, ranks, nbytes, 2.0 * steps + 1e-3 * nbytes * steps / ranks
    )


def test_rules_of_thumb() -> None:
    measured = [made(ranks, nbytes) for ranks in (16, 32, 64) for nbytes in (0, 2**20)]
    # a ring has the default algorithm's steps and volume: scaled by hand it is exact
    assert by_hand(measured, made(512, 2**20)) == pytest.approx(
        1e-6 * made(512, 2**20).microseconds
    )
    power = [row._replace(microseconds=float(row.ranks) ** 0.5) for row in measured]
    assert log_log(power, made(1024, 0)) == pytest.approx(32e-6)


@needs_simgrid
@pytest.mark.parametrize("platform", PLATFORMS)
def test_simulated_again_it_is_the_table(platform: str, tmp_path: Path) -> None:
    mine = [row for row in rows(platform, 2, 4) if row.nbytes <= 2**20]
    names = list(dict.fromkeys(row.operation for row in mine))
    sizes = sorted({row.nbytes for row in mine})
    command = [str(compiled("collectives.c", tmp_path)), ",".join(names), *map(str, sizes)]
    log = run(PLATFORMS[platform], 2, 2, command, tmp_path)
    new = rows_of(log, platform, 2, 4)
    # the first calls of a run and the order of operations may shift a time by a little
    kept = {row[:5]: row.microseconds for row in mine}
    assert {row[:5]: row.microseconds for row in new} == pytest.approx(kept, rel=0.1)


@pytest.fixture(scope="module")
def machine() -> Machine:
    """Few collectives, so that the fit is quick."""
    few = [row for row in ROWS if row.platform == "fat_tree" and row.ranks in (2, 16)]
    return Machine(computing(fitted([row for row in few if row.nbytes >= 2**22])))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy_can_be_played(strategy: str, machine: Machine) -> None:
    each = played(strategy, 1 if strategy == "serial" else 128, PER_NODE)
    assert each is not None
    steps = list(each.steps(machine))
    seconds = sum(float(line.split()[1]) for line in steps if line.startswith("compute"))
    phases = each.prediction(machine).phases
    if strategy != "pipeline":
        alone = sum(phases[name].value for name in ("forward", "backward", "pack", "update"))
        assert seconds == pytest.approx(alone)
    else:
        assert len(steps) == 2 + 128
