"""Write cluster.json: hosts, devices, levels, links, versions.

Links between hosts come from files of other tools. Example: calib probe -o cluster.json; calib probe
--topology host.xml --topology subnet.txt
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from calib.driver.probe import probe, probe_as_rank
from calib.driver.ranks import as_rank
from calib.foundation.files import destination
from calib.microbench.topology.filling import filled
from calib.microbench.topology.reading import read_topology
from calib.options import DeviceOption, Json, Launcher, Output, RanksOption
from calib.terminal.printing import print_json, say


def command(
    output: Output = None,
    name: Annotated[str | None, typer.Option(help="Name of the cluster; default the host.")] = None,
    ranks: RanksOption = None,
    device: DeviceOption = None,
    launcher: Launcher = "local",
    topology: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="What connects the hosts: XML of hwloc (lstopo), the output of ibnetdiscover or of "
            "nvidia-smi topo -m, InfraGraph; repeatable.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    path = destination(output or Path("cluster.json"))
    files = topology or []
    found = [read_topology(file) for file in files]
    if as_rank():
        probe_as_rank(path, name, found)
        return
    cluster, lines = filled(probe(path, launcher, ranks, name, device), found)
    if found:
        cluster.write(path)
    for file, told in zip(files, found, strict=True):
        say(f"{file}: {told.words}")
        for note in told.notes:
            say(f"note: {file}: {note}")
    for line in lines:
        say(f"note: {line}")
    if as_json:
        print_json(cluster.model_dump())
        return
    for level in cluster.levels:
        words = f"level {level.name}: {level.members} members over {level.link}"
        say("; ".join(filter(None, (words, level.links_words))))
    for host in cluster.hosts:
        devices = ", ".join(f"{d.count} x {d.kind} {d.name}" for d in host.devices)
        say(f"host {host.name}: {devices}; {host.versions.get('mpi', 'no MPI')}")
        say(f"host {host.name}: {host.hardware_words}")
    say(f"written: {path} (fingerprint {cluster.fingerprint})")
