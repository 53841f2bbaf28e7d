"""Starts tests/helpers/mpi_program.py under mpiexec, on as few cores as a test wants."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from microbench.launchers import find_mpiexec
from microbench.placement import distinct_cores, usable_cores

PROGRAM = Path(__file__).with_name("mpi_program.py")
TIMEOUT_S = 180


def start(
    check: str,
    ranks: int,
    cores: int | None = None,
    arguments: Sequence[str] = (),
    variables: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run one check on `ranks` ranks that share the first `cores` physical cores (None: all)."""
    mpiexec = find_mpiexec()
    if mpiexec is None:
        pytest.skip("no mpiexec on this machine")
    usable = distinct_cores(usable_cores())
    if cores is not None and cores > len(usable):
        pytest.skip(f"{cores} physical cores are needed; this machine has {len(usable)}")

    def share_cores() -> None:
        os.sched_setaffinity(0, usable[:cores])

    return subprocess.run(
        [mpiexec, "-n", str(ranks), sys.executable, str(PROGRAM), check, *arguments],
        capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", **(variables or {})},
        preexec_fn=None if cores is None else share_cores,
    )  # fmt: skip


def run(
    check: str,
    ranks: int,
    cores: int | None = None,
    arguments: Sequence[str] = (),
    variables: Mapping[str, str] | None = None,
) -> list[Any]:
    """What a check returned on every rank."""
    done = start(check, ranks, cores, arguments, variables)
    assert done.returncode == 0, done.stdout + done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("result ")]
    found = json.loads(line.removeprefix("result "))
    assert isinstance(found, list) and len(found) == ranks
    return found
