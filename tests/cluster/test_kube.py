"""What `calib kube` writes, run as the MPI Operator runs it, in pods of namespaces."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.calib.inside import calib
from tests.cluster.namespaces import CannotBuild, NamespaceCluster
from tests.cluster.pods import Pods

from calib.microbench.records.cluster import Cluster

pytestmark = pytest.mark.cluster


def test_the_ranks_run_in_the_workers(cluster: NamespaceCluster, tmp_path: Path) -> None:
    """Two ranks in each of two pods, started by ssh; the launcher has none, and the words arrive."""
    cluster.set_rate(1000)
    volume, files = tmp_path / "volume", tmp_path / "files"
    volume.mkdir()
    files.mkdir()
    words = ["--nodes", "2", "--ranks-per-node", "2", "--job-name", "pods", "--"]
    done = calib(tmp_path, "kube", *words, "probe", "-o", "a $(POD_IP) $b.json")
    assert done.returncode == 0, done.stderr
    manifest = json.loads((tmp_path / "job.yaml").read_text())
    try:
        with Pods(cluster, manifest, files, volume) as pods:
            status, said = pods.launch(timeout_s=120)
    except CannotBuild as reason:
        pytest.skip(f"no pods: {reason}")
    assert status == 0, said
    (path,) = volume.glob("*.json")
    assert path.name == "a $(POD_IP) $b.json"
    found = Cluster.read(path)
    assert [host.name for host in found.hosts] == ["pods-worker-0", "pods-worker-1"]
