"""What a run of ranks on several hosts writes in the directory that they share."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cluster.namespaces import ENVIRONMENT, CannotBuild, NamespaceCluster

from calib.foundation.run_files import CLUSTER_FILE, MANIFEST_FILE, PLAN_FILE, SAMPLES_FILE
from calib.microbench.cases import CollectiveCase, Plan
from calib.microbench.probe import probe
from calib.microbench.records.manifest import Manifest

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).parents[2]
RECORDED = Path(__file__).with_name("recorded")  # its sitecustomize.py tells who writes what
HOSTS = [f"h{number}" for number in range(6)]
TIMEOUT_S = 180


@pytest.fixture
def six_hosts(tmp_path: Path) -> Iterator[NamespaceCluster]:
    try:
        with NamespaceCluster(tmp_path, hosts=HOSTS) as built:
            yield built
    except CannotBuild as reason:
        pytest.skip(f"no cluster of namespaces: {reason}")


def test_rank_0_and_the_driver_alone_write(six_hosts: NamespaceCluster, tmp_path: Path) -> None:
    """So there is never a file for each rank, and at most one host beside the driver's writes any."""
    run = tmp_path / "run"
    run.mkdir()
    ranks = len(HOSTS)
    case = CollectiveCase(
        library="mpi", operation="allreduce", nbytes=4096, ranks=ranks, group_size=ranks
    )
    plan = Plan(cases=(case,), launches=1, budget_seconds=2.0, seed=7)
    (run / PLAN_FILE).write_text(plan.model_dump_json())
    probe().write(run / CLUSTER_FILE)  # the ranks are started once
    told = {"CALIB_TEST_WRITES": str(tmp_path / "writes"), "CALIB_TEST_DIRECTORY": str(run)}
    path = os.pathsep.join(map(str, [RECORDED, ROOT / "src", ROOT]))
    more = ["--launcher", six_hosts.launcher(HOSTS), "--hang-seconds", str(TIMEOUT_S)]
    done = subprocess.run(
        [sys.executable, "-m", "calib", "measure", "-o", str(run), "--resume", *more],
        env={**os.environ, **ENVIRONMENT, **told, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (launch,) = Manifest.read(run).launches
    assert [place.host for place in launch.places] == HOSTS
    assert [launch.clocks[0].error_s, len(launch.clocks)] == [0.0, ranks]
    writers = defaultdict(set)
    for line in (tmp_path / "writes").read_text().splitlines():
        host, rank, _, name = line.split("\t")
        writers[rank].add((host, Path(name).name))
    assert set(writers) == {"driver", "0"}
    assert {host for host, _ in writers["0"]} == {"h0"}
    assert MANIFEST_FILE in {name for _, name in writers["0"]}
    assert SAMPLES_FILE in {name for _, name in writers["driver"]}
    left = {name for name in os.listdir(run) if not name.startswith(".")}
    assert left == {CLUSTER_FILE, PLAN_FILE, MANIFEST_FILE, SAMPLES_FILE, "ranks.log"}
