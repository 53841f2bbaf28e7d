"""Write cluster.json: hosts, devices, levels, links, versions.

Example: calib probe -o cluster.json
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from calib.driver.probe import probe, probe_as_rank
from calib.driver.ranks import as_rank
from calib.foundation.files import destination
from calib.options import DeviceOption, Json, Launcher, Output, RanksOption
from calib.terminal.printing import print_json, say


def command(
    output: Output = None,
    name: Annotated[str | None, typer.Option(help="Name of the cluster; default the host.")] = None,
    ranks: RanksOption = None,
    device: DeviceOption = None,
    launcher: Launcher = "local",
    as_json: Json = False,
) -> None:
    path = destination(output or Path("cluster.json"))
    if as_rank():
        probe_as_rank(path, name)
        return
    cluster = probe(path, launcher, ranks, name, device)
    if as_json:
        print_json(cluster.model_dump())
        return
    for level in cluster.levels:
        say(f"level {level.name}: {level.members} members over {level.link}")
    for host in cluster.hosts:
        devices = ", ".join(f"{d.count} x {d.kind} {d.name}" for d in host.devices)
        say(f"host {host.name}: {devices}; {host.versions.get('mpi', 'no MPI')}")
    say(f"written: {path} (fingerprint {cluster.fingerprint})")
