"""Sweeps of the public logs that end early, beside other operations of the same machine that do not.

`make bench ARGS=cut_sweeps` prints how far the sizes beyond are off.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.fitting import fit_of
from benchmarks.sweeps import DATA
from calib.fitting.parameters.collectives import CollectiveFit
from calib.fitting.sections.shared_slopes import with_shared_slopes
from calib.foundation.arrays import Floats
from calib.foundation.words import bytes_words
from calib.oracle.cost import Cost
from calib.oracle.costs.collective_laws import direct
from calib.replay.logs import parameters_of

CUTS = (512, 4096, 65536)
LEAST_BEYOND = 1 << 20
Z_90_OF_95 = 1.645 / 1.96
# of one machine and setting each, with several operations
MACHINES = {
    "A100, one node": ("nccl-tests/sb_a100_*",),
    "V100, 1 node and 2": ("nccl-tests/abci_V_*_1n4g_*.txt", "nccl-tests/abci_V_*2n8g*.txt"),
    "Polaris s1, 2 nodes": ("nccl-scale/polaris_a100_n2_*_s1.txt",),
    "Polaris s1, 8 nodes": ("nccl-scale/polaris_a100_n8_*_s1.txt",),
    "Polaris s5, 2 nodes": ("nccl-scale/polaris_a100_n2_*_s5.txt",),
    "Polaris s5, 8 nodes": ("nccl-scale/polaris_a100_n8_*_s5.txt",),
}


class Score(NamedTuple):
    """Mean relative error, shares in the 90 and 95% intervals, and the median factor of the latter."""

    error: float
    in_90: float
    in_95: float
    factor: float


class Beyond(NamedTuple):
    """What a law through the sizes up to `cut` says of those beyond: measured s [n], and costs."""

    fit: CollectiveFit
    cut: int
    nbytes: Floats
    seconds: Floats
    costs: tuple[list[Cost], list[Cost]]  # by its own slope, and by a shared one


def beyond() -> Iterator[tuple[str, Beyond]]:
    """Every sweep of every machine, cut at each of CUTS, with the laws of its other operations."""
    for machine, logs in MACHINES.items():
        fits = parameters_of([Path(DATA / log) for log in logs]).collectives
        for fit in fits:
            others = [other for other in fits if other.operation != fit.operation]
            for cut in CUTS:
                if found := _beyond(fit, cut, others):
                    yield machine, found


def _beyond(fit: CollectiveFit, cut: int, others: Sequence[CollectiveFit]) -> Beyond | None:
    """None where the cut leaves under two sizes, or none beyond, or others do not show their bytes."""
    sizes = np.array([float(point.nbytes) for point in fit.points])
    times = np.array([point.seconds.value for point in fit.points])
    kept = (sizes > 0) & (sizes <= 1.01 * cut)
    if kept.sum() < 2 or not (sizes > LEAST_BEYOND).any():
        return None
    about = ("operation", "library", "device", "level", "ranks", "nodes", "ranks_per_node")
    alone = fit_of(sizes[kept], times[kept]).model_copy(
        update={name: getattr(fit, name) for name in about}
    )
    *_, shared = with_shared_slopes([*others, alone])
    if not shared.slope_from:
        return None
    m = sizes[~kept & (sizes > 0)]
    costs = tuple([direct(law)(int(n)).cost for n in m] for law in (alone, shared))
    return Beyond(shared, cut, m, times[~kept & (sizes > 0)], (costs[0], costs[1]))


def score(seconds: Floats, costs: Sequence[Cost]) -> Score:
    """How far costs are off measured seconds [n]."""
    value = np.array([cost.seconds for cost in costs])
    low, high = (np.array([getattr(cost, end) for cost in costs]) for end in ("low", "high"))

    def held(share: float) -> float:
        down, up = value - share * (value - low), value + share * (high - value)
        return float(np.mean((down <= seconds) & (seconds <= up)))

    off = np.abs(value / seconds - 1)
    return Score(float(off.mean()), held(Z_90_OF_95), held(1.0), float(np.median(high / value)))


def cut_sweeps() -> list[str]:
    """One row for each machine and cut: sizes beyond, by the sweep alone, and with the others."""
    if not DATA.is_dir():
        return [f"no {DATA}"]
    head = f"{'of sizes beyond the cut, off by':32s}{'cut':>7s}{'sizes':>7s}"
    rows = [head + 2 * f"{'off':>10s}{'90%in':>7s}{'95%in':>7s}{'x':>7s}"]
    every: dict[tuple[str, int], list[Beyond]] = {}
    for machine, found in beyond():
        every.setdefault((machine, found.cut), []).append(found)
        every.setdefault(("all", found.cut), []).append(found)
    for (machine, cut), some in sorted(
        every.items(), key=lambda pair: (pair[0][0] == "all", pair[0])
    ):
        seconds = np.concatenate([each.seconds for each in some])
        both = [
            score(seconds, [cost for each in some for cost in each.costs[which]])
            for which in (0, 1)
        ]
        cells = "".join(
            f"{of.error:10.0%}{of.in_90:7.0%}{of.in_95:7.0%}{of.factor:7.1f}" for of in both
        )
        rows.append(f"{machine:32s}{bytes_words(cut):>7s}{len(seconds):7d}{cells}")
    return rows
