"""Real ranks for tests: a script of the test's own, or the CLI, under the mpiexec that calib uses."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from calib.microbench.machine.launchers import find_mpiexec

ROOT = Path(__file__).resolve().parents[2]
MPIEXEC = find_mpiexec()
# of a rank that raises, mpi4py calls MPI_Abort: the others do not wait for it
RANK = (sys.executable, str(ROOT / "tests/helpers/rank.py"))
TIMEOUT_S = 900  # of what takes two minutes alone: something else may run beside it

needs_mpiexec = pytest.mark.skipif(MPIEXEC is None, reason="no mpiexec on this machine")


def environment(**more: str) -> dict[str, str]:
    """The environment of a subprocess that imports this tree."""
    threads = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    return {**os.environ, **threads, "PYTHONPATH": str(ROOT), **more}


def completed(
    line: Sequence[str], cwd: Path | None = None, **more: Any
) -> subprocess.CompletedProcess[str]:
    """A command, waited for; `more` are options of subprocess.run."""
    options: dict[str, Any] = {"env": environment(), "capture_output": True, "timeout": TIMEOUT_S}
    return subprocess.run(line, cwd=cwd, text=True, check=False, **(options | more))


def python(cwd: Path | None, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    """`python ARGUMENTS`, waited for; `more` are environment variables."""
    return completed([sys.executable, *arguments], cwd, env=environment(**more))


def run_script(
    ranks: int, script: Path | str, *arguments: str, **more: str
) -> subprocess.CompletedProcess[str]:
    """`mpiexec -n RANKS python SCRIPT ARGUMENTS`, waited for. When a rank fails, all end."""
    assert MPIEXEC is not None
    line = [MPIEXEC, "-n", str(ranks), *RANK, str(script), *arguments]
    return completed(line, env=environment(**more))


def said(ranks: int, script: Path | str, *arguments: str, **more: str) -> str:
    """What the ranks of a script print; a test fails with their errors where they do."""
    done = run_script(ranks, script, *arguments, **more)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
