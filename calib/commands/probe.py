"""Write down what this machine is: hosts, devices, levels, links, versions.

Example: calib probe -o cluster.json
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from calib.driver.ranks import as_rank, default_ranks, join_ranks, run_ranks
from calib.foundation.files import destination
from calib.options import Json, Launcher, Output, Ranks
from calib.terminal.printing import print_json, say

if TYPE_CHECKING:
    from calib.microbench.records.cluster import Cluster


def command(
    output: Output = None,
    name: Annotated[str | None, typer.Option(help="Name of the cluster; default the host.")] = None,
    ranks: Ranks = None,
    launcher: Launcher = "local",
    as_json: Json = False,
) -> None:
    path = destination(output or Path("cluster.json"))
    if as_rank():
        probe_as_rank(path, name)
        return
    cluster = probe_with(path, launcher, ranks or default_ranks(launcher), name)
    if as_json:
        print_json(cluster.model_dump())
        return
    for level in cluster.levels:
        say(f"level {level.name}: {level.members} members over {level.link}")
    for host in cluster.hosts:
        devices = ", ".join(f"{d.count} x {d.kind} {d.name}" for d in host.devices)
        say(f"host {host.name}: {devices}; {host.versions.get('mpi', 'no MPI')}")
    say(f"written: {path} (fingerprint {cluster.fingerprint})")


def probe_with(path: Path, launcher: str, ranks: int, name: str | None) -> Cluster:
    """Start the ranks, let them look at their hosts, and read what they wrote."""
    from calib.microbench.records.cluster import Cluster

    arguments = ["probe", "-o", str(path.absolute()), *(["--name", name] if name else [])]
    log = path.parent / "ranks.log"
    run_ranks(launcher, ranks, arguments, log, lambda event: None, "nothing was written")
    return Cluster.read(path)


def probe_as_rank(path: Path, name: str | None) -> None:
    """SPMD: every rank describes its host, rank 0 writes."""
    from calib.microbench.probe import probe

    communicator = join_ranks()
    cluster = probe(communicator, name)
    if communicator.rank == 0:
        cluster.write(path)
