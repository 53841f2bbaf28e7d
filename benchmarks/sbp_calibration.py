"""Collectives between four hosts of one machine: network namespaces, measured and fitted as any cluster.

The ranks are more than the cores; the rows say so, and a fit leaves such rows out. Here they are
taken: the ranks wait for the links nearly all the time. So these parameters are of no machine: they go
into no parameter file.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import numpy as np
from tests.cluster import namespaces
from tests.cluster.namespaces import ENVIRONMENT, HOSTS, NamespaceCluster

from calib.fitting.fit import fit
from calib.fitting.measured_run import read_run
from calib.fitting.parameters.file import Parameters
from calib.foundation.errors import MeasurementError
from calib.microbench.cases import CollectiveCase, Plan
from calib.microbench.machine.launchers import launch_line
from calib.microbench.records.parts import consolidate

PROGRAM = Path(namespaces.__file__).with_name("program.py")
OPERATIONS = ("allreduce", "allgather", "reduce_scatter", "all_to_all")
MEMBERS = (2, 4)
NBYTES = tuple(2**power for power in (19, 20, 21, 22, 23))
CASE_SECONDS, TIMEOUT_S = 1.2, 170
# the algorithms that formulas.md names, at every size
PAIRWISE = {
    "MPIR_CVAR_REDUCE_SCATTER_BLOCK_INTRA_ALGORITHM": "pairwise",
    "MPIR_CVAR_ALLTOALL_INTRA_ALGORITHM": "pairwise",
}


@contextlib.contextmanager
def cluster(folder: Path, megabits: float) -> Iterator[NamespaceCluster]:
    """Four hosts whose links pass the fewest bytes at the speed of memory. Raises CannotBuild.

    A bucket of 20 ms, as tests have, would pass 1 MB of 400 Mbit/s for nothing after each pause: of
    an iteration's messages that is a tenth and more, of messages one after the other nothing.
    """
    with patch.object(namespaces, "BURST_SECONDS", 0.0), NamespaceCluster(folder) as built:
        built.set_rate(megabits)
        yield built


def start(built: NamespaceCluster, words: Sequence[str]) -> None:
    """Run python with `words` on four ranks, one on each host. Raises MeasurementError."""
    line = launch_line(built.launcher(HOSTS), len(HOSTS))
    done = subprocess.run(
        [*line, sys.executable, *words],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **ENVIRONMENT, **PAIRWISE, "OMP_NUM_THREADS": "1"},
        timeout=TIMEOUT_S,
    )
    if done.returncode:
        raise MeasurementError((done.stdout + done.stderr).strip())


def calibrate(built: NamespaceCluster, run: Path, seed: int = 7) -> Parameters:
    """Measure every operation on 2 and 4 hosts into the run directory, and fit it."""
    run.mkdir()
    cases = [
        CollectiveCase.model_validate(
            {"ranks": len(HOSTS), "operation": name, "nbytes": nbytes, "group_size": members}
        )
        for name in OPERATIONS
        for members in MEMBERS
        for nbytes in NBYTES
    ]
    plan = Plan(cases=tuple(cases), launches=1, budget_seconds=CASE_SECONDS * len(cases), seed=seed)
    (run / "plan.json").write_text(plan.model_dump_json())
    (run / "racks.json").write_text(json.dumps({}))
    start(built, [str(PROGRAM), str(run)])
    consolidate(run)
    return fit_oversubscribed(run)


def fit_oversubscribed(run: Path) -> Parameters:
    """The fit of a run's rows as if each rank had a core."""
    measured = read_run(run)
    none = np.zeros(len(measured.samples), dtype=bool)
    samples = measured.samples.with_column("oversubscribed", none)
    return fit([replace(measured, samples=samples)])
