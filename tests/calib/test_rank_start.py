"""A rank begins MPI before it imports what else it needs; no other process begins it."""

from __future__ import annotations

import sys

import pytest
from tests.training.launching import MPIEXEC, completed, environment, needs_mpiexec

from calib.driver.ranks import EVENTS_VARIABLE

pytestmark = [pytest.mark.mpi, pytest.mark.waits, needs_mpiexec]
VERSION = [sys.executable, "-X", "importtime", "-m", "calib", "--version"]


def imported(*launcher: str, **more: str) -> list[str]:
    """The modules that `calib --version` imports, in the order in which they were ready."""
    done = completed([*launcher, *VERSION], env=environment(**more))
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("import time:")]
    return [line.rpartition("|")[2].strip() for line in lines]


def test_mpi_is_the_first_library_of_a_rank() -> None:
    assert MPIEXEC is not None
    order = imported(MPIEXEC, "-n", "1", **{EVENTS_VARIABLE: "1"})
    others = [name for name in ("numpy", "pydantic", "typer", "calib.app") if name in order]
    assert "calib.app" in others
    assert all(order.index("mpi4py.MPI") < order.index(name) for name in others)


def test_a_person_s_command_begins_none() -> None:
    assert "mpi4py.MPI" not in imported()
