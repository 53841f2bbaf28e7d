"""A flow of others on a link of the ranks is seen while it lasts, and not before.

Beside it a process that takes a core for 40% of the time: both are told apart from a quiet machine.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import pytest
from tests.cluster.namespaces import ENVIRONMENT, NamespaceCluster
from tests.helpers.disturber import disturbed

from calib.microbench.machine.launchers import launch_line
from calib.microbench.records.looks import Look

pytestmark = pytest.mark.cluster

PROGRAM = Path(__file__).with_name("watching.py")
MEGABITS, PORT = 200, 5321
QUIET_S, FLOW_S = 8.0, 20.0
DRAIN_S = 1.0  # of the queue of a link, and of what waits for it
FLOW = [sys.executable, "-m", "tests.helpers.disturber"]


def looks_beside(cluster: NamespaceCluster, also_a_core: bool) -> tuple[list[Look], list[Look]]:
    """Looks of a rank on h0 and one on h1: before a flow from h2 to h0 begins, and while it lasts."""
    cluster.set_rate(MEGABITS)

    def inside(host: str, *words: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(["ip", "netns", "exec", cluster.prefix + host, *FLOW, *words])

    sink = inside("h0", "0.0.0.0", str(PORT), "120", "0")
    line = launch_line(cluster.launcher(["h0", "h1"]), 2)
    ranks = subprocess.Popen(
        [*line, sys.executable, str(PROGRAM), str(QUIET_S + FLOW_S + 6.0)],
        stdout=subprocess.PIPE,
        env={**os.environ, **ENVIRONMENT, "OMP_NUM_THREADS": "1"},
    )
    try:
        time.sleep(QUIET_S)
        with disturbed(0.4, 60.0, seed=5) if also_a_core else nullcontext():
            begin = time.time()
            flow = inside("h2", "10.0.0.1", str(PORT), str(FLOW_S), "0")
            flow.wait(60)
            end = time.time()
        out, _ = ranks.communicate(timeout=120)
    finally:
        for process in (ranks, sink):
            process.kill()
            process.wait()
    looks = [Look.model_validate(each) for each in json.loads(out)]
    quiet = [look for look in looks if look.unix_s < begin]
    busy = [
        look
        for look in looks
        if look.unix_s - look.window_s > begin + DRAIN_S and look.unix_s < end
    ]
    return quiet, busy


@pytest.mark.parametrize("also_a_core", [False, True], ids=["flow", "flow and core"])
def test_a_flow_of_others_is_seen(cluster: NamespaceCluster, also_a_core: bool) -> None:
    quiet, busy = looks_beside(cluster, also_a_core)
    # beside the flow what ranks tell one another waits, too, so looks are rare
    assert len(quiet) >= 3 and len(busy) >= 2
    marked = sum(bool({"network", "cores"}.intersection(look.disturbed)) for look in busy)
    assert marked >= 0.95 * len(busy)
    assert sum("network" in look.disturbed for look in quiet) <= 0.05 * len(quiet)
