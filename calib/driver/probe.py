"""What the machine is, as the ranks of a launch see it: cluster.json."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from calib.driver.defaults import default_device, default_ranks, require_device
from calib.driver.ranks import driven, join_ranks, run_ranks
from calib.foundation.files import is_special
from calib.foundation.run_files import LOG_FILE
from calib.microbench.probe import probe as probe_hosts
from calib.microbench.records.cluster import Cluster
from calib.microbench.timing.watchdog import HANG_SECONDS
from calib.microbench.topology.filling import filled
from calib.microbench.topology.found import FoundTopology


def probe(
    path: Path,
    launcher: str = "local",
    ranks: int | None = None,
    name: str | None = None,
    device: str | None = None,
) -> Cluster:
    """Start the ranks, let them look at their hosts, and read what they wrote.

    What the file that was there says of racks and links of the same hosts is kept.

    Parameters
    ----------
    path
        The cluster.json.
    launcher
        local, slurm, or a template with {n}.
    ranks
        By default one per GPU or physical core, or those of the Slurm allocation.
    name
        Of the cluster; by default that of this host.
    device
        What ranks are for, cpu or cuda; by default what `default_device` finds.

    Raises
    ------
    MachineError
        The device is cuda, and no GPU is to be seen.
    FileError
        The file that was there is broken.
    RanksEnded
        A rank failed, could not be started, or said nothing for minutes.
    """
    before = _before(path)
    arguments = ["probe", "-o", str(path.absolute()), *(["--name", name] if name else [])]
    if device is not None:
        require_device(device, launcher)
    ranks = ranks or default_ranks(launcher, device or default_device())
    log = path.parent / LOG_FILE
    run_ranks(
        launcher, ranks, arguments, log, lambda event: None, "nothing was written", HANG_SECONDS
    )
    cluster = Cluster.read(path)
    if before is not None:
        cluster = cluster.declared_as(before)
        cluster.write(path)
    return cluster


def probe_as_rank(path: Path, name: str | None, topologies: Sequence[FoundTopology] = ()) -> None:
    """SPMD: every rank describes its host, rank 0 writes; a driver fills in links by itself."""
    communicator = join_ranks()
    cluster = probe_hosts(communicator, name)
    if communicator.rank == 0:
        before = None if driven() else _before(path)
        cluster = cluster.declared_as(before) if before is not None else cluster
        filled(cluster, topologies)[0].write(path)


def _before(path: Path) -> Cluster | None:
    """The file that is there. Raises FileError where it is broken."""
    return Cluster.read(path) if path.exists() and not is_special(path) else None
