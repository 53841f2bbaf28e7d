"""Is it the calibrated machine? Same hardware, perhaps other versions."""

from __future__ import annotations

from pathlib import Path

from calib.driver.defaults import require_device
from calib.driver.probe import probe
from calib.fitting.parameters.file import Parameters
from calib.foundation.errors import InputError, MachineError
from calib.foundation.words import bytes_words
from calib.microbench.doctor import examine, require_measurable
from calib.microbench.records.cluster import Cluster
from calib.microbench.records.doctor import DoctorFinding
from calib.planning.request import Request
from calib.reports.drift.records import changed


def ranks_in(cluster: Cluster) -> int:
    """How many ranks a cluster was probed with."""
    return cluster.ranks_per_node * len(cluster.hosts)


def doctored(ranks: int, launcher: str, device: str) -> list[DoctorFinding]:
    """What the doctor finds. Raises MachineError where nothing can be measured, or without a GPU."""
    require_device(device, launcher)
    findings = examine(ranks, launcher, device)
    require_measurable(findings)
    return findings


def probed(path: Path, like: Cluster, launcher: str, name: str | None) -> Cluster:
    """The cluster as it is now, written to `path`, with the racks that `like` knows by hand.

    Probed with as many ranks as then: how many share a node is part of a cluster.
    """
    found = probe(path, launcher, ranks_in(like), name or like.name)
    found = found.declared_as(like)
    found.write(path)
    return found


def refuse_other_machine(now: Cluster, then: Cluster, calibration: Path) -> None:
    """Refuse other hardware, of which a calibration says nothing; other versions are welcome."""
    if now.machine == then.machine:
        return
    before, after = hardware_words(then), hardware_words(now)
    how = f"{before} then, {after} now" if before != after else f"{then.machine}, now {now.machine}"
    raise MachineError(
        f"{calibration} was calibrated on other hardware ({how}); `make calibrate` calibrates this one"
    )


def refuse_other_device(request: Request, parameters: Parameters, path: Path) -> None:
    """Refuse to train on another kind of device than was calibrated."""
    if request.device != parameters.device_kind:
        raise InputError(
            f'the plan asks for device = "{request.device}", and {path} is of '
            f"{parameters.device_kind}: nothing could be scored"
        )


def refuse_other_parameters(parameters: Parameters, then: Cluster, path: Path) -> None:
    """Refuse parameters of another cluster than was calibrated (merged, or copied there)."""
    of = parameters.provenance
    if of.cluster_fingerprint != then.fingerprint:
        raise InputError(
            f"{path} is of the cluster {of.cluster_name} ({of.cluster_fingerprint}), the calibration "
            f"of {then.name} ({then.fingerprint}): nothing could be scored; `calib fit {path.parent}` "
            "makes them of its own samples"
        )


def hardware_words(cluster: Cluster) -> str:
    """1 host of 2 x Some CPU, 16 GiB."""
    hosts = len(cluster.hosts)
    devices = ", ".join(
        f"{d.count} x {d.name}, {bytes_words(d.memory_bytes)}" for d in cluster.hosts[0].devices
    )
    levels = ", ".join(f"{level.members} per {level.name}" for level in cluster.levels)
    return f"{hosts} host{'s' * (hosts > 1)} of {devices}, {levels}"


def version_changes(then: Cluster, now: Cluster) -> list[str]:
    """Software that changed since calibration."""
    return [
        f"{of.name} {of.before or 'none'} -> {of.after or 'none'}"
        for of in changed(then.versions, now.versions)
    ]
