"""A whole calibration on hosts of one machine: network namespaces behind links of a known rate.

    python -m benchmarks.hosts FOLDER HOSTS MEGABITS [OPTION OF CALIBRATE...]

The hosts share one machine. A calibration would mark its rows and use none of them; here each host says
that it is a machine of its own. So FOLDER/run is of no machine: it shows what the laws are worth between
hosts, where ranks wait for a network, and its parameter file is for nothing else. Each host has a core
of its own where there are enough; else each takes the ranks of the others for strangers on its cores,
and what ranks wait for cores is taken out of the calibration and not of the trainings. MPICH chooses the
algorithms of collectives itself.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

from tests.cluster import namespaces
from tests.cluster.namespaces import ENVIRONMENT, HOSTS, NamespaceCluster

STRATEGIES = "serial,data,spatial,pipeline,filter,channel,data+filter,data+spatial"
OPTIONS = ("--strategies", STRATEGIES, "--budget", "10m", "--iterations", "20")


def main(folder: Path, hosts: int, megabits: float, options: list[str]) -> int:
    """Calibrate into FOLDER/run; the exit status is that of `calib calibrate`."""
    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    pinned = hosts <= len(os.sched_getaffinity(0))
    chosen = {name: value for name, value in ENVIRONMENT.items() if "ALGORITHM" not in name}
    # the smallest buckets: what they hold passes after every pause at the speed of memory
    with (
        patch.object(namespaces, "BURST_SECONDS", 0.0),
        patch.object(namespaces, "ENVIRONMENT", chosen),
        NamespaceCluster(folder, apart=True, hosts=HOSTS[:hosts], pinned=pinned) as built,
    ):
        built.set_rate(megabits)
        variables = [f"--env={name}={value}" for name, value in chosen.items()]
        return subprocess.run(
            [
                *(sys.executable, "-m", "calib", "calibrate", "--output", str(folder / "run")),
                *("--name", f"{hosts}-hosts", "--ranks", str(hosts)),
                *("--launcher", built.launcher(HOSTS[:hosts])),
                *(*variables, *OPTIONS, *options),
            ],
            check=False,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        ).returncode


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit((__doc__ or "").strip())
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), sys.argv[4:]))
