"""Imported logs and rows of samples as peer times: who talked with whom, and how long it took."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from calib.fitting.outliers.check import check
from calib.microbench.importers.table import Block, Imported
from calib.microbench.records.peers import PeerTime, PeerTimes, host_of
from calib.microbench.records.samples import Samples


class _Work(NamedTuple):
    what: str
    places: tuple[str, ...]
    nbytes: int
    groups: int


def peers_of_logs(
    found: Sequence[Imported], cluster_name: str, racks: Mapping[str, str] | None = None
) -> PeerTimes:
    """The runs of logs that name the hosts of their ranks, and those that failed."""
    seconds: dict[_Work, list[float]] = defaultdict(list)
    for block in (block for each in found for block in each.blocks if block.places):
        _add(seconds, block)
    failed = [
        PeerTime(
            what=run.operation, places=list(run.places), nbytes=0, seconds=[], failed=run.reason
        )
        for each in found
        for run in each.failed
        if run.operation
    ]
    libraries = dict.fromkeys(block.library for each in found for block in each.blocks)
    return PeerTimes(
        cluster_name=cluster_name,
        started="",
        library=", ".join(libraries),
        racks=dict(racks or {}),
        times=[*_times(seconds), *failed],
    )


def peers_of_samples(samples: Samples) -> list[PeerTime]:
    """The rows that name where their ranks ran."""
    named = samples.where(samples.mask("places", bool))
    of = named.groups("operation", "key", "places", "nbytes", "groups")
    return _times(
        {
            _Work(f"{operation} {key}".strip(), tuple(places.split(",")), nbytes, groups): rows[
                "seconds"
            ].tolist()
            for (operation, key, places, nbytes, groups), rows in of.items()
        }
    )


def without_outliers(samples: Samples, racks: Mapping[str, str]) -> tuple[Samples, list[str]]:
    """The rows without those of slow pairs and of slow nodes with another; and a note on each culprit.

    A law is of what the good ones do: a slow pair in it would be an error bar that covers everything.
    Rows of more than two nodes, or within one, stay, and a note says where a culprit is among them.
    """
    found = check(
        PeerTimes(
            cluster_name="",
            started="",
            library="",
            racks=dict(racks),
            times=peers_of_samples(samples),
        )
    )
    dropped = {tuple(each.places) for each in found.slowness if each.slow and each.scope == "pair"}
    bad = {
        host for each in found.culprits if each.kind in ("node", "device") for host in each.hosts
    }

    def stays(places: str) -> bool:
        unit = tuple(sorted(places.split(",")))
        hosts = set(map(host_of, unit))
        return unit not in dropped and not (len(hosts) == 2 and hosts & bad)

    keep = samples.mask("places", lambda places: not places or stays(places))
    notes = [
        f"{int((~keep).sum())} rows of pairs were left out: {each.kind} {each.name} is unlike the others"
        for each in found.culprits[:1]
        if not keep.all()
    ]
    if len(found.culprits) > 1 and notes:
        notes[0] += f", and {len(found.culprits) - 1} more"
    larger = {
        host
        for places in samples.distinct("places")
        for host in bad & set(map(host_of, places.split(",")))
        if len(set(map(host_of, places.split(",")))) != 2
    }
    if larger:
        notes.append(
            f"rows of other numbers of nodes have {', '.join(sorted(larger))} among them, which is slow"
        )
    return samples.where(keep), notes


def _add(seconds: dict[_Work, list[float]], block: Block) -> None:
    what = f"{block.operation} {block.key}".strip()
    for nbytes in np.unique(block.nbytes).tolist():
        rows = block.seconds[block.nbytes == nbytes]
        seconds[_Work(what, block.places, nbytes, block.groups)] += rows.tolist()


def _times(seconds: Mapping[_Work, Sequence[float]]) -> list[PeerTime]:
    return [
        PeerTime(
            what=work.what,
            places=list(work.places),
            nbytes=work.nbytes,
            groups=work.groups,
            seconds=list(of),
        )
        for work, of in seconds.items()
    ]
