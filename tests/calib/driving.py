"""A driver in the background, its ranks, and what a run directory must hold after it ended."""

from __future__ import annotations

import contextlib
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import psutil
from tests.helpers.rows import rows_in
from tests.training.launching import TIMEOUT_S, environment

from calib.foundation.run_files import PARTS_DIRECTORY
from calib.microbench.cases import Case, CollectiveCase, Held, Plan
from calib.microbench.records.manifest import Manifest
from calib.microbench.records.parts import cases_done

MIB = 2**20
GO_ON = ("measure", "-o", "run", "--resume")


def allreduce(nbytes: int) -> Case:
    return CollectiveCase(operation="allreduce", nbytes=nbytes, ranks=2, group_size=2)


def begun(cwd: Path, cases: list[Case], launches: int = 1, budget_seconds: float = 4.0) -> Path:
    """A run directory with a plan whose cases use up their time: no median is ever so sure.

    What the budget holds is chosen already: on a loaded machine that would not be all of them.
    """
    run = cwd / "run"
    run.mkdir()
    plan = Plan(
        cases=tuple(cases),
        launches=launches,
        held=(Held(ranks=2, launches=launches, seconds=budget_seconds / launches),),
        budget_seconds=budget_seconds,
        seed=3,
        target_half_width=1e-9,
    )
    (run / "plan.json").write_text(plan.model_dump_json())
    return run


@contextlib.contextmanager
def driver(
    cwd: Path, *more: str, arguments: tuple[str, ...] = GO_ON
) -> Iterator[subprocess.Popen[str]]:
    """`calib measure` in a session of its own, as from a terminal; nothing outlives the test."""
    process = subprocess.Popen(
        [sys.executable, "-m", "calib", *arguments, *more],
        cwd=cwd,
        env=environment(),
        text=True,
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    try:
        yield process
    finally:
        for one in [*family(process.pid), process]:
            with contextlib.suppress(psutil.Error, OSError):
                one.kill()
        process.communicate(timeout=TIMEOUT_S)


def family(pid: int) -> list[psutil.Process]:
    """The launcher and the ranks of a driver."""
    with contextlib.suppress(psutil.Error):
        return list(psutil.Process(pid).children(recursive=True))
    return []


def wait(process: subprocess.Popen[str], until: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not until():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)


def rank(process: subprocess.Popen[str], number: int) -> psutil.Process:
    """The process of one rank."""
    for one in family(process.pid):
        with contextlib.suppress(psutil.Error):
            if one.environ().get("PMI_RANK") == str(number) and "--launch" in one.cmdline():
                return one
    raise AssertionError(f"no rank {number}")


def ended(process: subprocess.Popen[str]) -> list[str]:
    """The lines that a driver wrote until its end, which must be a good one."""
    _, errors = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, errors
    assert "Traceback" not in errors
    return errors.splitlines()


def measured_more(run: Path, kept: int) -> bool:
    return len(cases_done(run)) > kept


def gone(processes: list[psutil.Process]) -> bool:
    return not psutil.wait_procs(processes, timeout=30)[1]


def ends_of(run: Path) -> dict[tuple[str, int], str]:
    """(case, launch) -> how it ended, each once."""
    cases = Manifest.read(run).cases
    assert max(Counter((end.case_id, end.launch) for end in cases).values()) == 1
    return {(end.case_id, end.launch): end.stopped_by for end in cases}


def check_rows(run: Path, expected: set[tuple[str, int]]) -> None:
    """Every case of every launch stands in samples.parquet once: its repetitions from 0 on."""
    numbers: dict[tuple[str, int, str], list[int]] = {}
    for row in rows_in(run):
        place = (row.case_id, row.launch, row.operation)
        numbers.setdefault(place, []).append(row.repetition)
    assert {place[:2] for place in numbers} == expected == cases_done(run, parts=False)
    assert all(found == list(range(len(found))) for found in numbers.values())
    assert not (run / PARTS_DIRECTORY).exists()


def killed_again_and_again(cwd: Path, seed: object, kills: int) -> None:
    """kill -9 of the driver, the launcher or the ranks, at any moment, then --resume.

    At the end every case of every launch must be there, once.
    """
    cases = [allreduce(nbytes) for nbytes in (8, MIB, 2 * MIB, 3 * MIB)]
    run = begun(cwd, cases, launches=2, budget_seconds=4.0)
    dice = random.Random(f"{seed}")
    for _ in range(kills):
        with driver(cwd) as process:
            kept = len(cases_done(run))
            if dice.random() < 0.5:  # while it measures, or as it starts or ends
                with contextlib.suppress(AssertionError):
                    wait(process, partial(measured_more, run, kept))
            time.sleep(dice.uniform(0.0, 3.0))
            members = family(process.pid)
            dice.shuffle(members)
            process.kill()
            for one in members[: dice.randrange(len(members) + 1)]:
                with contextlib.suppress(psutil.Error):
                    one.kill()
            process.wait()
            if dice.random() < 0.5:
                assert gone(members), "ranks outlived their driver"
    with driver(cwd) as process:
        ended(process)
    expected = {(case.id, launch) for case in cases for launch in range(2)}
    check_rows(run, expected)
    assert set(ends_of(run)) == expected
