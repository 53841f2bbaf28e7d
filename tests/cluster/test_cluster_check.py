"""calib cluster check on hosts with a network of their own: a slow link is named, of good ones none."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cluster.namespaces import ENVIRONMENT, HOSTS, NamespaceCluster

from calib.fitting.outliers.check import ClusterCheck
from calib.microbench.peers.timing import PAIR

pytestmark = pytest.mark.cluster

MEGABITS = 300
TIMEOUT_S = 240


@pytest.fixture
def links(cluster: NamespaceCluster) -> Iterator[NamespaceCluster]:
    """All links at one rate, and so afterwards."""
    cluster.set_rate(MEGABITS)
    yield cluster
    cluster.set_rate(MEGABITS)


def checked(cluster: NamespaceCluster, folder: Path) -> ClusterCheck:
    """The result of `calib cluster check --quick` on all four hosts."""
    words = ["cluster", "check", "--quick", "--ranks", str(len(HOSTS))]
    words += ["--launcher", cluster.launcher(HOSTS), "-o", str(folder / "check.json")]
    done = subprocess.run(
        [sys.executable, "-m", "calib", *words],
        capture_output=True,
        text=True,
        env={**os.environ, **ENVIRONMENT},
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    return ClusterCheck.read(folder / "check.json")


def in_bandwidth(of: ClusterCheck) -> list[tuple[str, str]]:
    """Who is slow in large messages. The hosts share two cores: of these, the tests say nothing."""
    return [
        (culprit.kind, culprit.name)
        for culprit in of.culprits
        for symptom in culprit.symptoms
        if (symptom.what, symptom.aspect) == (PAIR, "time")
    ]


def test_a_host_with_half_the_rate_is_named(links: NamespaceCluster, tmp_path: Path) -> None:
    links.set_rate(MEGABITS / 2, ["h2"])
    found = checked(links, tmp_path)
    assert in_bandwidth(found) == [("node", "h2")]
    assert found.code == 1 and "h2" in found.excluded
    culprit = next(each for each in found.culprits if each.name == "h2")
    slowdown = max(s.slowdown.value for s in culprit.symptoms if s.slowdown is not None)
    assert slowdown > 1.6, "half the rate is twice the time, but for the first bucket full"


def test_equal_hosts_are_alike(links: NamespaceCluster, tmp_path: Path) -> None:
    assert in_bandwidth(checked(links, tmp_path)) == []
