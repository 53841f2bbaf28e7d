"""The cluster leaves nothing behind, also where a test process was killed."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from tests.cluster import namespaces
from tests.cluster.namespaces import PREFIX, CannotBuild, NamespaceCluster, remove_abandoned

pytestmark = pytest.mark.cluster


def listed() -> set[str]:
    done = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
    return {line.split()[0] for line in done.stdout.splitlines()}


def test_what_a_killed_process_left_is_removed(cluster: NamespaceCluster) -> None:
    dead = subprocess.Popen(["true"])
    dead.wait()
    left = f"{PREFIX}{dead.pid}-h0"
    subprocess.run(["ip", "netns", "add", left], check=True)
    assert left in listed()
    remove_abandoned()
    assert left not in listed()
    assert cluster.switch in listed(), "of a process that lives"


def test_a_failed_build_leaves_nothing(
    cluster: NamespaceCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the third host, whose interface cannot have such a name: two are there by then."""
    before = listed()
    monkeypatch.setattr(namespaces, "PREFIX", "calib-test-failing-")
    monkeypatch.setattr(namespaces, "HOSTS", ("h0", "h1", "a name too long"))
    with pytest.raises(CannotBuild, match="a name too long"), NamespaceCluster(tmp_path):
        pytest.fail("it was built")
    assert listed() == before
