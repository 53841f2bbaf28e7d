"""What is planted in a cluster of namespace hosts, and whom `calib cluster check` names.

    python -m benchmarks.planted FOLDER [CONDITION...] [--runs 10]

Conditions: good (four equal hosts at 300 Mbit/s), link (one of them has half the rate), alone (two hosts
with a core each), host (a disturber has one of these cores all the time). Each run plants its culprit on
another host, by its number. FOLDER/CONDITION-N.json are the checks; those that are there are not made
again. Prints how often the planted one and nobody else was named, and who else.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.cluster.namespaces import ENVIRONMENT, HOSTS, NamespaceCluster
from tests.helpers.disturber import disturbed, usable_cores

from calib.fitting.outliers.check import ClusterCheck

MEGABITS, SLOWER = 300.0, 0.5
LONGEST_S = 600.0
CONDITIONS = {"good": 4, "link": 4, "alone": 2, "host": 2}  # and on how many hosts


def checked(path: Path, condition: str, number: int) -> ClusterCheck:
    """The check of one run; made now unless it is there."""
    if path.exists():
        return ClusterCheck.read(path)
    hosts = HOSTS[: CONDITIONS[condition]]
    of_core = len(hosts) == 2
    with (
        TemporaryDirectory() as folder,
        NamespaceCluster(Path(folder), apart=True, pinned=of_core) as cluster,
        ExitStack() as stack,
    ):
        cluster.set_rate(MEGABITS)
        planted = number % len(hosts)
        if condition == "link":
            cluster.set_rate(MEGABITS * SLOWER, [hosts[planted]])
        if condition == "host":
            core = usable_cores()[planted]
            stack.enter_context(disturbed(1.0, LONGEST_S, number, core=core))
        line = [sys.executable, "-m", "calib", "cluster", "check", "-o", str(path)]
        line += ["--ranks", str(len(hosts)), "--launcher", cluster.launcher(hosts)]
        done = subprocess.run(
            line, env={**os.environ, **ENVIRONMENT}, capture_output=True, text=True, check=False
        )
        if done.returncode not in (0, 1):
            sys.exit(f"{path}: {done.stderr}")
        print(done.stderr[-600:], file=sys.stderr, flush=True)
    return ClusterCheck.read(path)


def main() -> None:
    """Make the runs and count."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("conditions", nargs="*", default=list(CONDITIONS))
    parser.add_argument("--runs", type=int, default=10)
    asked = parser.parse_intermixed_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    for condition in asked.conditions:
        right, others = 0, list[str]()
        for number in range(asked.runs):
            found = checked(asked.folder / f"{condition}-{number}.json", condition, number)
            hosts = HOSTS[: CONDITIONS[condition]]
            wanted = {hosts[number % len(hosts)]} if condition in ("link", "host") else set[str]()
            named = {f"{each.kind} {each.name}" for each in found.culprits}
            right += named == {f"node {host}" for host in wanted}
            others += sorted(named - {f"node {host}" for host in wanted})
        print(f"{condition}: right in {right} of {asked.runs}; others named: {others or 'none'}")


if __name__ == "__main__":
    main()
