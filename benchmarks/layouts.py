"""Structural laws on layouts of the public logs that they have not seen, beside simpler ways.

`make bench ARGS=layouts` prints them. With Extra-P on the path (`pip install --target DIR extrap`,
`PYTHONPATH=DIR`) its models stand beside the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.sweeps import DATA
from calib.fitting.parameters.collectives import CollectiveFit
from calib.fitting.parameters.scaling import shape_of_fit
from calib.fitting.sections.structural import structural_fits
from calib.foundation.collectives import bus_factor
from calib.replay.logs import parameters_of

LEAST_BYTES = (1 << 20) - 4096  # 1 MiB, as tools round it
Z_90 = 1.645
H100 = ("allreduce", "allgather", "reduce_scatter", "all_to_all", "sendrecv")


class Cluster(NamedTuple):
    """Logs of one machine and setting, and the operations in them."""

    name: str
    logs: tuple[str, ...]
    operations: tuple[str, ...]


class Case(NamedTuple):
    """A layout that is left out, and the direct laws of all operations on others."""

    cluster: str
    known: list[CollectiveFit]
    unknown: CollectiveFit


class Score(NamedTuple):
    """Of sizes of 1 MiB and more: mean and worst relative error, the share in the 90% interval.

    `factor` is the median of that interval's; `others` the mean errors of simpler ways, by name.
    """

    mean: float
    worst: float
    held: float
    factor: float
    others: dict[str, float]


CLUSTERS = (
    Cluster("ABCI V100 NCCL", ("nccl-tests/abci_V_allreduce_[0-9]*.txt",), ("allreduce",)),
    Cluster("ABCI V100 NCCL", ("nccl-tests/abci_V_bcast_inter_*.txt",), ("broadcast",)),
    Cluster("ABCI MPI, host", ("osu/abci_V_osu_allreduce_mpi-cpu_inter_*.txt",), ("allreduce",)),
    Cluster("ABCI MPI, GPU", ("osu/abci_V_osu_allreduce_mpi_inter_*.txt",), ("allreduce",)),
    *(
        Cluster(f"Polaris A100 {s}", (f"nccl-scale/polaris_a100_n*_{log}_{s}.txt",), (operation,))
        for s in ("s1", "s5")
        for operation, log in (
            ("allreduce", "all_reduce"),
            ("allgather", "all_gather"),
            ("all_to_all", "alltoall"),
        )
    ),
    Cluster("H100, 10 nodes", ("nccl-tests/xx_h100_10n*.txt", "nccl-scale/xx_h100_10n*.txt"), H100),
)


@cache
def direct_laws(cluster: Cluster) -> list[CollectiveFit]:
    """The direct laws of its operations between nodes."""
    found = parameters_of([Path(DATA / log) for log in cluster.logs]).collectives
    return [fit for fit in found if fit.operation in cluster.operations and fit.nodes > 1]


def cases() -> Iterator[Case]:
    """Each cluster's largest layout from the smaller ones, and from fewer of them."""
    for cluster in CLUSTERS:
        fits = direct_laws(cluster)
        layouts = sorted({shape_of_fit(fit) for fit in fits})
        for kept in dict.fromkeys((len(layouts) - 1, 2, 1)):
            if kept >= len(layouts):
                continue
            known = [fit for fit in fits if shape_of_fit(fit) in layouts[:kept]]
            for fit in fits:
                largest = max(shape_of_fit(x) for x in fits if x.operation == fit.operation)
                if shape_of_fit(fit) == largest and any(
                    x.operation == fit.operation for x in known
                ):
                    yield Case(cluster.name, known, fit)


def score(case: Case) -> Score:
    """How far the law, and simpler ways, are off on the layout that was left out."""
    known = [fit for fit in case.known if fit.operation == case.unknown.operation]
    laws = {law.operation: law for law in structural_fits(case.known)}
    on = laws[case.unknown.operation].on(shape_of_fit(case.unknown), known)
    assert on is not None
    points = [point for point in case.unknown.points if point.nbytes >= LEAST_BYTES]
    truth = np.array([point.seconds.value for point in points])
    found = [on.expected(point.nbytes) for point in points]
    seconds = np.array([each.seconds for each in found])
    deviations = np.array([each.deviation for each in found])
    errors = np.abs(seconds / truth - 1)
    ways = {"by hand": by_hand, "log-log": log_log}
    if find_spec("extrap"):
        ways["Extra-P"] = extra_p
    others = {
        name: float(np.mean(np.abs(way(known, case.unknown, points) / truth - 1)))
        for name, way in ways.items()
    }
    return Score(
        float(errors.mean()),
        float(errors.max()),
        float(np.mean(np.abs(np.log(seconds / truth)) <= Z_90 * deviations)),
        float(np.exp(Z_90 * np.median(deviations))),
        others,
    )


Way = Callable[[Sequence[CollectiveFit], CollectiveFit, Sequence[Any]], Any]


def by_hand(known: Sequence[CollectiveFit], unknown: CollectiveFit, points: Sequence[Any]) -> Any:
    """The largest layout's times at the same bus bandwidth."""
    largest = max(known, key=shape_of_fit)
    more, fewer = (bus_factor(fit.operation, fit.ranks) or 1.0 for fit in (unknown, largest))
    return np.array([largest.seconds(point.nbytes) * more / fewer for point in points])


def log_log(known: Sequence[CollectiveFit], unknown: CollectiveFit, points: Sequence[Any]) -> Any:
    """Straight in log-log over p, from the two largest layouts."""
    if len(known) < 2:
        return by_hand(known, unknown, points)
    one, two = sorted(known, key=shape_of_fit)[-2:]
    share = math.log(unknown.ranks / one.ranks) / math.log(two.ranks / one.ranks)
    return np.array(
        [one.seconds(p.nbytes) ** (1 - share) * two.seconds(p.nbytes) ** share for p in points]
    )


def extra_p(known: Sequence[CollectiveFit], unknown: CollectiveFit, points: Sequence[Any]) -> Any:
    """Extra-P's single-parameter models over p, at each size; by hand where it has too few p."""
    coordinate = import_module("extrap.entities.coordinate").Coordinate
    measurement = import_module("extrap.entities.measurement").Measurement
    basic = import_module("extrap.modelers.single_parameter.basic")
    modeler, times = basic.SingleParameterModeler(), []
    for point in points:
        measured = [
            measurement(coordinate(float(fit.ranks)), None, None, [fit.seconds(point.nbytes)])
            for fit in sorted(known, key=shape_of_fit)
        ]
        model = modeler.create_model(measured)
        times.append(float(model.hypothesis.function.evaluate(float(unknown.ranks))))
    return np.array(times)


def layouts() -> list[str]:
    """One row for each layout that is left out: the law, and simpler ways."""
    if not DATA.is_dir():
        return [f"no {DATA}"]
    found = [(case, score(case)) for case in cases()]
    names = list(found[0][1].others)
    rows = [_row("cluster, operation", "from -> to", ["off", "worst", "90%in", "x"], names)]
    for case, of in found:
        fit = case.unknown
        known = [x for x in case.known if x.operation == fit.operation]
        about = ", ".join(f"{x.nodes}x{x.ranks_per_node}" for x in sorted(known, key=shape_of_fit))
        own = [f"{of.mean:.1%}", f"{of.worst:.1%}", f"{of.held:.0%}", f"{of.factor:.2f}"]
        rows.append(
            _row(
                f"{case.cluster} {fit.operation}",
                f"{about} -> {fit.nodes}x{fit.ranks_per_node}",
                own,
                [f"{of.others[name]:.1%}" for name in names],
            )
        )
    return rows


def _row(cluster: str, about: str, own: Sequence[str], others: Sequence[str]) -> str:
    numbers = "".join(f"{cell:>8s}" for cell in own) + "".join(f"{cell:>9s}" for cell in others)
    return f"{cluster:30s} {about:32s}{numbers}"
