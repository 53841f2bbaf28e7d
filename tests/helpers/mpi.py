"""Starts tests/helpers/mpi_program.py under mpiexec, on as few cores as a test wants."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.training.launching import RANK

from calib.microbench.machine.launchers import find_mpiexec
from calib.microbench.machine.placement import distinct_cores, usable_cores

PROGRAM = Path(__file__).with_name("mpi_program.py")
TIMEOUT_S = 180


def start(
    checks: Sequence[str],
    ranks: int,
    cores: int | None = None,
    variables: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run checks one after another on `ranks` ranks that share the first `cores` physical cores.

    None: all cores; fewer than `cores` where the machine has no more.
    """
    mpiexec = find_mpiexec()
    if mpiexec is None:
        pytest.skip("no mpiexec on this machine")
    usable = distinct_cores(usable_cores())

    def share_cores() -> None:
        os.sched_setaffinity(0, usable[:cores])

    return subprocess.run(
        [mpiexec, "-n", str(ranks), *RANK, str(PROGRAM), *checks],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", **(variables or {})},
        preexec_fn=None if cores is None else share_cores,
    )


def run(
    checks: Sequence[str],
    ranks: int,
    cores: int | None = None,
    variables: Mapping[str, str] | None = None,
) -> dict[str, list[Any]]:
    """What every check ("NAME" or "NAME,ARGUMENT,...") returned, rank by rank, in one launch."""
    done = start(checks, ranks, cores, variables)
    assert done.returncode == 0, done.stdout + done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("result ")]
    found = json.loads(line.removeprefix("result "))
    assert [len(of_ranks) for of_ranks in found] == [ranks] * len(checks)
    return dict(zip(checks, found, strict=True))


def needs_cores(number: int) -> None:
    """Skip the test where the machine has fewer physical cores."""
    usable = len(distinct_cores(usable_cores()))
    if usable < number:
        pytest.skip(f"{number} physical cores are needed; this machine has {usable}")
