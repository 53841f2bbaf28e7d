"""cluster.json and manifest.json of imported logs: only what the logs say of the machine."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from calib.foundation.errors import FileError, InputError
from calib.foundation.files import ensure_directory, sha256_of
from calib.foundation.run_files import CLUSTER_FILE, SAMPLES_FILE
from calib.microbench.importers.table import Block, Imported, write_blocks
from calib.microbench.records.cluster import Cluster, Device, Host, Level
from calib.microbench.records.manifest import ImportedFile, Manifest

UNKNOWN = "unknown"


def cluster_of(found: Sequence[Imported], name: str, gpu: str = "") -> Cluster:
    """The machine that the logs name; memory 0 and the kernel "unknown" are what they do not say.

    `gpu` names GPUs that no log names. Without a list of hosts there is one, "unknown".
    Raises InputError where the logs are of different GPUs: those are different machines.
    """
    gpus: dict[str, list[str]] = {}
    for each in found:
        for host, names in each.gpus.items():
            if len(names) > len(gpus.get(host, [])):
                gpus[host] = names
    named = {one for each in found for names in each.gpus.values() for one in names}
    kinds = sorted(named - {UNKNOWN})
    if len(kinds) > 1:
        raise InputError(
            f"the logs are of different GPUs ({', '.join(kinds)}); import each machine by itself"
        )
    versions = sorted({each.library_version for each in found if each.library_version})
    blocks = [block for each in found for block in each.blocks]
    members = max(block.active_ranks for block in blocks)
    if not gpus:
        cuda = any(block.device == "cuda" for block in blocks)
        gpus = {UNKNOWN: [gpu or UNKNOWN] * members if cuda else []}
    hosts = [
        Host(
            name=host,
            kernel=UNKNOWN,
            devices=_devices(names, gpu, members),
            versions={"nccl": ", ".join(versions)} if versions else {},
        )
        for host, names in sorted(gpus.items())
    ]
    levels = [Level(name="node", members=members, link=UNKNOWN)]
    nodes = max(_nodes(block) for block in blocks)
    if nodes > 1:
        levels.append(Level(name="system", members=nodes, link=UNKNOWN))
    return Cluster(name=name, hosts=hosts, levels=levels)


def _nodes(block: Block) -> int:
    """Nodes that all groups of a block together need."""
    return max(block.nodes, -(-block.ranks * block.groups // block.active_ranks))


def _devices(names: Sequence[str], gpu: str, members: int) -> list[Device]:
    if not names:
        return [Device(kind="cpu", name=UNKNOWN, count=members, memory_bytes=0)]
    return [
        Device(kind="cuda", name=(gpu or one) if one == UNKNOWN else one, count=1, memory_bytes=0)
        for one in names
    ]


def refuse_existing(run: Path) -> None:
    """Raise FileError where the run directory is there and holds something."""
    try:
        full = os.path.lexists(run) and (not run.is_dir() or any(run.iterdir()))
    except OSError as error:
        raise FileError(f"cannot read {run}: {error.strerror}; choose another") from error
    if full:
        raise FileError(f"{run} exists and is not empty; choose another")


def write_run(
    run: Path,
    records: Sequence[ImportedFile],
    found: Sequence[Imported],
    cluster: Cluster,
    program_version: str,
) -> Manifest:
    """Write the run directory, whole or not at all: beside it first, then renamed.

    Every table is a launch, numbered over all files. Raises FileError, and then leaves nothing
    behind, no directory above the run either.
    """
    refuse_existing(run)
    made = [path for path in (run.parent, *run.parent.parents) if not os.path.lexists(path)]
    place: Path | None = None
    try:
        ensure_directory(run.parent)
        # not the whole name: with a suffix it may be longer than a name can be
        place = Path(tempfile.mkdtemp(prefix=f".{run.name[:40]}.", dir=run.parent))
        write_blocks(place / SAMPLES_FILE, found)
        cluster.write(place / CLUSTER_FILE)
        manifest = Manifest(
            program_version=program_version,
            cluster_name=cluster.name,
            cluster_fingerprint=cluster.fingerprint,
            seed=0,
            target_half_width=0.0,
            imported=list(records),
            samples_sha256=sha256_of(place / SAMPLES_FILE),
        )
        manifest.write(place)
        place.chmod(0o755)
        place.replace(run)
        made = []
    except OSError as error:
        reason = error.strerror or str(error)
        raise FileError(f"cannot write {run}: {reason}; choose another") from error
    finally:
        if place is not None:
            shutil.rmtree(place, ignore_errors=True)
        for path in made:  # the innermost first
            with contextlib.suppress(OSError):
                path.rmdir()
    return manifest
