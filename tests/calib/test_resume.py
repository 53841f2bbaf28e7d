"""Ranks and drivers that are killed, under the real mpiexec: nothing is lost, nothing done twice."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import pytest
from tests.calib import inside
from tests.calib.driving import (
    GO_ON,
    MIB,
    allreduce,
    begun,
    check_rows,
    driver,
    ended,
    ends_of,
    family,
    gone,
    killed_again_and_again,
    rank,
    wait,
)
from tests.calib.running import calib, refused
from tests.training.launching import ROOT, needs_mpiexec

from calib.driver.lock import only_driver
from calib.microbench.cases import TensorsCase
from calib.microbench.records.parts import part_paths

pytestmark = [pytest.mark.mpi, pytest.mark.waits, needs_mpiexec]
HANG_S = 3.0


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (
            signal.SIGKILL,
            r"(a rank|rank 1 on \S+) died: mpiexec ended with status 9; run/ranks.log says: ",
        ),
        (signal.SIGSTOP, r"no progress for \d+ s: rank 1( on \S+)? does not answer$"),
    ],
)
def test_a_rank_that_dies_or_hangs(tmp_path: Path, number: signal.Signals, reason: str) -> None:
    """In the middle of a case: that one fails with a line, all others are measured."""
    # so large that the time ends a case, not the most repetitions that one may have
    cases = [allreduce(nbytes * MIB) for nbytes in (24, 28, 32)]
    run = begun(tmp_path, cases, budget_seconds=18.0)
    with driver(tmp_path, "--hang-seconds", str(HANG_S)) as process:
        wait(process, (run / "manifest.json").exists)
        victim = rank(process, 1)  # to find it may take as long as a case
        members = family(process.pid)
        wait(process, lambda: len(part_paths(run)) == 1)
        time.sleep(2.0)  # a case takes 6 s; on a loaded machine the next one begins after 0.5 s
        victim.send_signal(number)
        lines = ended(process)
        assert gone(members), "something outlived the driver"
    failed = [pair for pair, how in ends_of(run).items() if how.startswith("failed")]
    assert len(failed) == 1 and len(ends_of(run)) == 3, ends_of(run)
    (case,) = [case for case in cases if (case.id, 0) == failed[0]]
    said = [line for line in lines if line.startswith("failed: ")]
    assert len(said) == 1
    assert re.match(f"failed: {re.escape(case.label)}, launch 1: {reason}", said[0])
    assert (
        f"failed (--resume tries again; why: run/manifest.json): {case.label} (launch 1)" in lines
    )
    check_rows(run, {(one.id, 0) for one in cases if one is not case})

    if number == signal.SIGSTOP:
        return  # going on is the same
    again = calib(tmp_path, *GO_ON)
    assert again.returncode == 0, again.stderr
    assert set(ends_of(run).values()) == {"budget"}
    check_rows(run, {(one.id, 0) for one in cases})


def test_killed_again_and_again(tmp_path: Path) -> None:
    """`make torture` does it oftener."""
    killed_again_and_again(tmp_path, 0, kills=4)


def test_a_driver_that_is_killed_takes_its_ranks_along(tmp_path: Path) -> None:
    """Nobody reads what rank 0 says any more, so mpiexec ends, and with it the ranks."""
    run = begun(tmp_path, [allreduce(4 * MIB), allreduce(5 * MIB)], budget_seconds=200.0)
    with driver(tmp_path) as process:
        wait(process, (run / "manifest.json").exists)
        members = family(process.pid)
        assert len(members) >= 3  # mpiexec and two ranks
        process.kill()
        assert gone(members)


def test_a_second_driver_is_refused(tmp_path: Path) -> None:
    """This process is the first one, and holds the run until the second has been told."""
    run = begun(tmp_path, [allreduce(8)])
    with only_driver(run):
        line = refused(inside.calib(tmp_path, *GO_ON))
    assert f"process {os.getpid()} on " in line and "is measuring in run" in line
    assert not (run / "manifest.json").exists()


def test_a_case_that_fails_on_all_ranks(tmp_path: Path) -> None:
    """No memory for it: the ranks go on by themselves, in every launch."""
    huge = TensorsCase(operation="pack", key="huge", shapes=((2**45,),), ranks=2)
    run = begun(tmp_path, [huge, allreduce(8)], launches=2, budget_seconds=2.0)
    done = calib(tmp_path, *GO_ON)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    ends = ends_of(run)
    assert all("can't allocate memory" in ends[huge.id, launch] for launch in range(2))
    check_rows(run, {(allreduce(8).id, launch) for launch in range(2)})
    assert any(f"{huge.label} (launch 1, 2)" in line for line in done.stderr.splitlines())


def test_no_row_at_all(tmp_path: Path) -> None:
    huge = TensorsCase(operation="pack", key="huge", shapes=((2**45,),), ranks=1)
    begun(tmp_path, [huge], launches=1, budget_seconds=1.0)
    done = calib(tmp_path, *GO_ON)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("calib: error: no case of run gave a row: failed: ")


def test_messages_of_mpi_are_measured_without_torch(tmp_path: Path) -> None:
    """Neither the driver nor the ranks load it: that takes seconds, on each of them."""
    (tmp_path / "without/torch").mkdir(parents=True)
    (tmp_path / "without/torch/__init__.py").write_text("raise SystemExit('torch was loaded')")
    run = begun(tmp_path, [allreduce(8)], budget_seconds=1.0)
    paths = f"{tmp_path / 'without'}:{ROOT}"
    done = calib(tmp_path, *GO_ON, PYTHONPATH=paths)
    assert done.returncode == 0, done.stderr
    check_rows(run, {(allreduce(8).id, 0)})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--resume",), "run holds no plan.json to go on with; leave out --resume"),
        (("--resume", "--budget", "9"), "leave out --budget"),
        (("--resume", "--plan", "plan.toml", "--quick"), "leave out --plan, --quick"),
        (("--plan", "plan.toml", "--models", "x", "-p", "2"), "leave out --models, -p"),
        (("--plan", "plan.toml"), "plan file plan.toml does not exist"),
        (("--budget", "soon"), "'soon' is not a time"),
    ],
)
def test_options_that_cannot_be(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    assert message in refused(inside.calib(tmp_path, "measure", "-o", "run", *arguments))
    assert os.listdir(tmp_path) == []
