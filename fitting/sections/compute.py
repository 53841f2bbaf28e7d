"""Layer times: the table of measured ones. Laws for the others are in work_laws.py."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from calib.fitting.estimate import slowest_rank
from calib.fitting.launches import NO_OTHERS, Launches
from calib.fitting.parameters.file import LayerTime
from calib.foundation.arrays import Floats
from calib.foundation.records import Estimate
from calib.foundation.statistics import median
from calib.microbench.cases import LayerCase
from calib.microbench.records.samples import Samples

ZERO = Estimate.exactly(0.0)

Kernels = Mapping[str, Mapping[str, list[str]]]  # case, operation, names
Workspace = Mapping[str, Mapping[str, int]]  # case, operation, bytes


def layer_times(
    samples: Samples,
    cases: Mapping[str, LayerCase],
    kernels: Kernels = MappingProxyType({}),
    workspace: Workspace = MappingProxyType({}),
    among: Launches = NO_OTHERS,
) -> list[LayerTime]:
    """One LayerTime for every measured (layer key, active ranks), sorted."""
    groups = samples.where(kind="layer").groups("case_id", "operation")
    times = []
    for case_id in sorted({case_id for case_id, _ in groups}):
        case = cases[case_id]
        if not (case.passes == "whole" and not case.cold):
            continue
        forward = groups.get((case_id, "forward"))
        if not forward:
            continue
        backward = groups.get((case_id, "backward"))
        times.append(
            LayerTime(
                key=case.key,
                kind=case.layer.name,
                batch=case.batch,
                active_ranks=forward.first.active_ranks,
                forward_s=slowest_rank(forward, among),
                backward_s=slowest_rank(backward, among) if backward else ZERO,
                n=len(forward),
                kernels=dict(kernels.get(case_id, {})),
                workspace_bytes=dict(workspace.get(case_id, {})),
            )
        )
    return sorted(times, key=lambda time: (time.active_ranks, time.key))


def of_slowest_rank(samples: Samples) -> list[tuple[int, float]]:
    """(launch, seconds) of every repetition of the rank that is slowest over all (`slowest_rank`)."""
    times = samples.rank_seconds
    medians = [median(seconds) for seconds in np.sort(times, axis=0).T.tolist()]
    return taking_time(samples, times[:, medians.index(max(medians))])


def taking_time(samples: Samples, seconds: Floats) -> list[tuple[int, float]]:
    """(launch, seconds) of every row whose clock saw any time pass."""
    pairs = zip(samples["launch"].tolist(), seconds.tolist(), strict=True)
    return [(launch, seconds) for launch, seconds in pairs if seconds > 0]
