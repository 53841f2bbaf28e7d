"""Open MPI's mpirun on several hosts, by a launcher template; its daemons are started as by ssh."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cluster.conftest import minutes
from tests.cluster.namespaces import HOSTS, NamespaceCluster

import calib as calib_package
from calib.foundation.run_files import CLUSTER_FILE
from calib.microbench.cases import CollectiveCase, Plan
from calib.microbench.records.cluster import Cluster
from calib.microbench.records.parts import cases_done

pytestmark = pytest.mark.cluster

MPIRUN = Path("/usr/bin/mpirun.openmpi")  # Debian's openmpi-bin
LIBRARY = Path("/usr/lib/x86_64-linux-gnu/libmpi.so.40")
# what sshd gives a command: nothing of the environment that ssh was called in
AGENT = """\
#!/bin/sh
exec env -i HOME=/root PATH="$PATH" MPI4PY_LIBMPI={library} PYTHONPATH={package} {launch} "$@"
"""


@minutes
def test_ranks_on_other_hosts_know_what_they_were_started_for(
    cluster: NamespaceCluster, tmp_path: Path
) -> None:
    if not (MPIRUN.exists() and LIBRARY.exists()):
        pytest.skip("no Open MPI on this machine (Debian: openmpi-bin)")
    cluster.set_rate(300)
    package = Path(calib_package.__file__).parents[1]
    agent = tmp_path / "agent"
    agent.write_text(AGENT.format(library=LIBRARY, package=package, launch=cluster.script))
    agent.chmod(0o755)
    settings = {
        "plm": "rsh",
        "plm_rsh_agent": str(agent),
        "plm_rsh_no_tree_spawn": "1",
        "pml": "ob1",
        "btl": "tcp,self",
        "btl_tcp_if_include": "eth0",
    }
    options = [word for name, value in settings.items() for word in ("--mca", name, value)]
    start = ["ip", "netns", "exec", cluster.switch, str(MPIRUN), "--allow-run-as-root", *options]
    case = {"ranks": 4, "group_size": 4, "operation": "allreduce", "nbytes": 4096, "tier": 1}
    plan = Plan(
        cases=(CollectiveCase.model_validate(case),),
        launches=1,
        budget_seconds=2,
        seed=1,
        variables={"OMP_NUM_THREADS": "1"},
    )
    run = tmp_path / "run"
    run.mkdir()
    (run / "plan.json").write_text(plan.model_dump_json())
    launcher = f"{shlex.join(start)} --host {','.join(HOSTS)} -n {{n}}"
    words = ["measure", "-o", "run", "--resume", "--launcher", launcher]
    done = subprocess.run(
        [sys.executable, "-m", "calib", *words],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(package)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    log = (run / "ranks.log").read_text() if (run / "ranks.log").exists() else ""
    assert done.returncode == 0, done.stderr + log
    assert len(cases_done(run)) == 1
    hosts = Cluster.read(run / CLUSTER_FILE).hosts
    assert [host.name for host in hosts] == list(HOSTS)
    assert all("Open MPI" in host.versions["mpi"] for host in hosts)
