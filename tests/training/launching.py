"""Real ranks for tests: a script of the test's own, or the CLI, under the mpiexec that calib uses."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from calib.microbench.machine.launchers import find_mpiexec

ROOT = Path(__file__).resolve().parents[2]
MPIEXEC = find_mpiexec()
TIMEOUT_S = 900  # of what takes two minutes alone: something else may run beside it

needs_mpiexec = pytest.mark.skipif(MPIEXEC is None, reason="no mpiexec on this machine")


def environment(**more: str) -> dict[str, str]:
    """The environment of a subprocess that imports this tree."""
    threads = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    return {**os.environ, **threads, "PYTHONPATH": str(ROOT), **more}


def run_script(
    ranks: int, script: Path, *arguments: str, **more: str
) -> subprocess.CompletedProcess[str]:
    """`mpiexec -n RANKS python SCRIPT ARGUMENTS`, waited for."""
    assert MPIEXEC is not None
    line = [MPIEXEC, "-n", str(ranks), sys.executable, str(script), *arguments]
    return subprocess.run(
        line,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        env=environment(**more),
        check=False,
    )
