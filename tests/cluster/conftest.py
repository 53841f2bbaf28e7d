"""One cluster of namespaces for all tests of this folder, and a launch of a plan on it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from tests.cluster.namespaces import ENVIRONMENT, CannotBuild, NamespaceCluster

from calib.microbench.cases import CollectiveCase, Plan
from calib.microbench.machine.launchers import launch_line
from calib.microbench.records.parts import consolidate

PROGRAM = Path(__file__).with_name("program.py")
TIMEOUT_S = 180
# of minutes each, on machines that have Slurm or Open MPI
minutes = pytest.mark.skipif(
    "CALIB_LONG_TESTS" not in os.environ, reason="takes minutes; CALIB_LONG_TESTS=1 runs it"
)

Launch = Callable[..., Path]


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NamespaceCluster]:
    """Hosts h0 to h3; skips, with the reason, where they cannot be."""
    try:
        with NamespaceCluster(tmp_path_factory.mktemp("cluster")) as built:
            yield built
    except CannotBuild as reason:
        pytest.skip(f"no cluster of namespaces: {reason}")


@pytest.fixture(scope="session")
def launch(cluster: NamespaceCluster, tmp_path_factory: pytest.TempPathFactory) -> Launch:
    """launch(megabits, hosts, cases, racks, budget_s): the run directory, rank r on hosts[r].

    A case has 2.5 s by default.
    """

    def start(
        megabits: float,
        hosts: Sequence[str],
        cases: Sequence[CollectiveCase],
        racks: Mapping[str, str] | None = None,
        budget_s: float | None = None,
    ) -> Path:
        run = tmp_path_factory.mktemp("run")
        # a case makes 6 repetitions whatever the budget; it holds more where the machine is noisy
        budget_s = budget_s or 2.5 * len(cases)
        plan = Plan(cases=tuple(cases), launches=1, budget_seconds=budget_s, seed=7)
        (run / "plan.json").write_text(plan.model_dump_json())
        (run / "racks.json").write_text(json.dumps(racks or {}))
        cluster.set_rate(megabits)
        line = launch_line(cluster.launcher(hosts), len(hosts))
        done = subprocess.run(
            [*line, sys.executable, str(PROGRAM), str(run)],
            capture_output=True,
            text=True,
            env={**os.environ, **ENVIRONMENT, "OMP_NUM_THREADS": "1"},
            timeout=TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        consolidate(run)
        return run

    return start
