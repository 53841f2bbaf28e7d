"""Samples of several groups at once -> contention records (phi), and what the links alone would say.

phi compares rows of one Layout: all but the number of groups at once is the same.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import asdict, dataclass, replace

import numpy as np

from calib.fitting.estimators.collectives.contention import ContentionLaw
from calib.fitting.parameters.algorithms import steps_and_volume
from calib.fitting.parameters.contention import ContentionFit, ContentionPoint
from calib.fitting.sections.collective_rows import name_of, usual
from calib.foundation.arrays import Floats, Integers
from calib.foundation.errors import InputError
from calib.foundation.records import Estimate
from calib.microbench.records.cluster import Cluster
from calib.microbench.records.samples import Samples

# operations whose every step is one message from each rank to the next
RINGS = ("allreduce", "allgather", "reduce_scatter")
MIN_SIZES = 3
NEAR_BEST = 0.9
# an interface slower than this share of the fastest is for management, and carries no collective
SLOW_INTERFACE = 0.5


@dataclass(frozen=True, order=True)
class ContentionLayout:
    """What must be the same for phi to compare like with like; a CUDA graph is another operation."""

    operation: str
    library: str
    device: str
    level: str
    ranks: int
    stride: int
    nodes: int
    dtype: str


@dataclass(frozen=True)
class Runs:
    """Rows of one layout and one k: bytes [n], seconds [n], launch [n]; flows on one node's links."""

    nbytes: Floats
    seconds: Floats
    launch: Integers
    flows: float


def runs_of(samples: Samples) -> tuple[dict[ContentionLayout, dict[int, Runs]], list[str]]:
    """layout -> groups at once -> its plain rows; a note on rows without a finite time."""
    plain = usual(samples).where(cold=False).usable
    good = plain.where(np.isfinite(plain["seconds"]) & (plain["seconds"] > 0))
    notes = []
    if count := len(plain) - len(good):
        notes.append(f"contention: {count} rows without a finite time left out")
    columns = ("library", "device", "level", "ranks", "stride", "nodes", "dtype", "groups")
    found: dict[ContentionLayout, dict[int, Runs]] = defaultdict(dict)
    members: dict[tuple[ContentionLayout, int], list[Samples]] = defaultdict(list)
    for (operation, key, mode, *about, groups), rows in good.groups(
        "operation", "key", "mode", *columns
    ).items():
        layout = ContentionLayout(name_of(operation, key, mode, about[3]), *about)
        members[layout, groups].append(rows)
    for (layout, groups), (first, *more) in members.items():
        rows = first.joined(more)
        active = int(rows["active_ranks"].max())
        flows = min(max(active * layout.nodes / layout.ranks, 1.0), float(groups))
        found[layout][groups] = Runs(
            rows["nbytes"].astype(float),
            rows["seconds"],
            rows["launch"],
            flows if active else float(groups),
        )
    return dict(found), notes


def contentions(
    samples: Samples, seed: int, cluster: Cluster | None = None
) -> tuple[list[ContentionFit], list[str]]:
    """The records, sorted, and a note on rows, layouts and data types that could not be used.

    Only plain rows count: warm, from a barrier, not oversubscribed, with a finite time. A layout is
    fitted where several groups at once were measured beside one alone (`_baseline`), in one data type.
    """
    runs, notes = runs_of(samples)
    records = []
    for layout, types in sorted(_of_one_type(runs).items()):
        counts = sorted(k for k in runs[layout] if k > 1)
        what = (
            f"{layout.library} {layout.operation} on {layout.ranks} ranks, {layout.stride} apart "
            f"({layout.level}), {', '.join(map(str, counts))} groups at once"
        )
        found = _baseline(layout, runs)
        if found is None:
            notes.append(f"{what}: no run of one group alone; no contention from them")
            continue
        if len(types) > 1:
            notes.append(f"{what}: of {', '.join(types)} only {layout.dtype} is fitted")
        try:
            records.append(_record(layout, runs, found, seed, cluster))
        except InputError as error:
            notes.append(f"{what}: {error}")
    return records, notes


def analytical(cluster: Cluster | None, level: str, flows: float) -> float | None:
    """phi when `flows` rings leave each node over its n network interfaces: flows / n, at least 1.

    formulas.md, data+filter. The interfaces are as many as a level says links, else those with a stated
    speed (but for much slower ones, and the loopback) of the host that has the fewest. None inside a
    node, where no capacity is stated, and where the cluster states neither.
    """
    if cluster is None or level == "node":
        return None
    if cluster.links_per_node is not None:
        return max(1.0, flows / cluster.links_per_node)
    interfaces = []
    for host in cluster.hosts:
        speeds = [v for n, v in host.network_interfaces.items() if v and n != "lo"]
        interfaces.append(sum(v >= SLOW_INTERFACE * max(speeds) for v in speeds))
    return max(1.0, flows / min(interfaces)) if min(interfaces) else None


def _of_one_type(
    runs: dict[ContentionLayout, dict[int, Runs]],
) -> dict[ContentionLayout, list[str]]:
    """Layouts with several groups at once, each in one data type -> all types it was timed in.

    Of several types the one that was also timed alone wins, then the one with most sizes.
    """
    alike: dict[ContentionLayout, list[ContentionLayout]] = defaultdict(list)
    for layout in sorted(runs):
        alike[replace(layout, dtype="")].append(layout)

    def rank(layout: ContentionLayout) -> tuple[bool, int, str]:
        sizes = {m for run in runs[layout].values() for m in run.nbytes.tolist()}
        return _baseline(layout, runs) is None, -len(sizes), layout.dtype

    result = {}
    for layouts in alike.values():
        crowded = [layout for layout in layouts if max(runs[layout]) > 1]
        if crowded:
            result[min(crowded, key=rank)] = [layout.dtype for layout in layouts]
    return result


def _baseline(
    layout: ContentionLayout, runs: dict[ContentionLayout, dict[int, Runs]]
) -> tuple[ContentionLayout, str] | None:
    """The layout whose one group alone is phi = 1 of `layout`, and what it is called.

    The same layout; else the same ranks on as many nodes, nearer together (what alpha and beta are
    fitted from); else, of rings between nodes, which cross a node's links once whatever their length,
    the group of the nearest number of ranks.
    """
    alone = [other for other, counts in runs.items() if 1 in counts]
    if layout in alone:
        return layout, "same layout"

    def like(other: ContentionLayout, *but: str) -> bool:
        return all(getattr(other, n) == v for n, v in asdict(layout).items() if n not in but)

    packed = [other for other in alone if like(other, "stride") and other.stride < layout.stride]
    if packed:
        return min(packed, key=lambda other: other.stride), "packed"
    if layout.level == "node":
        return None
    rings = [other for other in alone if like(other, "stride", "ranks")]
    if not rings or layout.operation.removesuffix(" graph") not in RINGS:
        return None
    nearest = min(rings, key=lambda o: (abs(math.log(o.ranks / layout.ranks)), o.ranks, o.stride))
    return nearest, "other ranks"


def _record(
    layout: ContentionLayout,
    runs: dict[ContentionLayout, dict[int, Runs]],
    found: tuple[ContentionLayout, str],
    seed: int,
    cluster: Cluster | None,
) -> ContentionFit:
    """Fit one layout beside its baseline. Raises InputError as the estimator does."""
    alone, baseline = found
    several = {k: run for k, run in runs[layout].items() if k > 1}
    parts = _large({1: runs[alone][1]} | several)
    if baseline == "other ranks":
        parts = {k: _per_step(run, alone if k == 1 else layout) for k, run in parts.items()}
    counts = [np.full(len(run.seconds), float(k)) for k, run in parts.items()]
    features = np.column_stack(
        [np.concatenate([run.nbytes for run in parts.values()]), np.concatenate(counts)]
    )
    seconds = np.concatenate([run.seconds for run in parts.values()])
    launch = np.concatenate([run.launch for run in parts.values()])
    model = ContentionLaw(seed=seed).fit(features, seconds, groups=launch)
    predicted = model.predict(features)
    gap = model.scores_.get(model.runner_up_, math.inf) - model.scores_[model.law_]
    number = Counter(features[:, 1].astype(int).tolist())
    points = [
        ContentionPoint(
            groups=k,
            contention=_estimate(model.contention_[i], model.contention_interval_[i]),
            intercept_s=float(model.intercepts_[i]),
            analytical=analytical(cluster, layout.level, parts[k].flows),
            n=number[k],
        )
        for i, k in enumerate(model.groups_.astype(int).tolist())
    ]
    return ContentionFit(
        **{name: value for name, value in asdict(layout).items() if name != "dtype"},
        baseline=baseline,
        law=model.law_,
        runner_up=model.runner_up_,
        score_gap=max(gap, 0.0) if math.isfinite(gap) else 0.0,
        capacity=None
        if math.isnan(model.capacity_)
        else _estimate(model.capacity_, model.capacity_interval_),
        intercept_s=_estimate(model.intercept_, model.intercept_interval_),
        slope_s_per_byte=_estimate(model.slope_, model.slope_interval_),
        min_nbytes=float(features[:, 0].min()),
        max_nbytes=float(features[:, 0].max()),
        mean_relative_error=float(np.mean(np.abs(predicted / seconds - 1.0))),
        residual_quantiles=model.residual_quantiles_.tolist(),
        points=points,
    )


def _estimate(value: float, ends: Floats) -> Estimate:
    """An Estimate of numpy numbers."""
    return Estimate(value=float(value), low=float(ends[0]), high=float(ends[1]))


def _per_step(run: Runs, layout: ContentionLayout) -> Runs:
    """The same per step of the operation, so that groups of other ranks compare (structural)."""
    steps, volume = steps_and_volume(layout.operation, layout.ranks)
    return Runs(run.nbytes * volume / steps, run.seconds / steps, run.launch, run.flows)


def _large(parts: dict[int, Runs]) -> dict[int, Runs]:
    """Only sizes bound by bandwidth: at smaller ones phi would be a start-up's, or another protocol's.

    For each k the sizes from which both one group alone and k groups reach NEAR_BEST of their best rate,
    but at least MIN_SIZES; none above the largest size of one group alone, or of several.
    """
    alone, several = parts[1], [run for k, run in parts.items() if k > 1]
    largest = min(alone.nbytes.max(), max(run.nbytes.max() for run in several))
    least = _fast_from(alone, largest)
    result = {}
    for k, run in parts.items():
        keep = (run.nbytes >= max(least, _fast_from(run, largest))) & (run.nbytes <= largest)
        if keep.any():
            result[k] = Runs(run.nbytes[keep], run.seconds[keep], run.launch[keep], run.flows)
    if 1 not in result or len(result) < 2:
        raise InputError("one group alone and several were timed at other sizes")
    return result


def _fast_from(run: Runs, largest: float) -> float:
    """The smallest size up to `largest` at NEAR_BEST of the best rate; MIN_SIZES are above it."""
    sizes = np.unique(run.nbytes[run.nbytes <= largest])
    if not len(sizes):
        return 0.0
    rate = sizes / [np.median(run.seconds[run.nbytes == m]) for m in sizes]
    first = int(np.argmax(rate >= NEAR_BEST * rate.max()))
    return float(sizes[min(first, max(len(sizes) - MIN_SIZES, 0))])
