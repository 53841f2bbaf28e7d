"""Nothing is measured for its own sake: the rows of every planned case are found in some law."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.calib.planning.clusters import cluster
from tests.helpers.made_runs import made_run

from calib.fitting.fit import fit
from calib.fitting.parameters.file import Parameters
from calib.fitting.sections.collective_rows import name_of
from calib.foundation.division import STRATEGIES
from calib.foundation.execution import execution_of
from calib.foundation.names import DeviceName
from calib.microbench.cases import (
    Case,
    CollectiveCase,
    InPlaceCase,
    LayerCase,
    SparseCase,
    TensorsCase,
)
from calib.microbench.records.samples import Sample
from calib.planning.plan import draft, specs_of
from calib.planning.request import FULL, QUICK, Effort, request_of


def of_collective(case: CollectiveCase, row: Sample, found: Parameters) -> bool:
    """A point of a law; of several groups one of contention; of cold buffers the exchange in place.

    Of cold messages both ways the burst.
    """
    if case.cold and case.operation == "p2p_both":
        about = case.operation, row.library, row.level
        laws = [x for x in found.collectives if (x.operation, x.library, x.level) == about]
        return any(law.burst is not None for law in laws)
    if case.cold:
        exchanges = [law for law in found.composition if law.phase == "exchange"]
        return any(f"cold {row.nbytes} B" in law.models for law in exchanges)
    name = name_of(row.operation, row.key, row.mode, row.ranks)
    about = name, row.library, row.device, row.level, row.ranks, row.nodes

    def is_of_it(law: Any) -> bool:
        return about == (law.operation, law.library, law.device, law.level, law.ranks, law.nodes)

    if case.groups > 1:
        crowded = [law for law in found.contention if is_of_it(law) and law.stride == row.stride]
        return any(case.groups == point.groups for law in crowded for point in law.points)
    laws = [law for law in found.collectives if row.start == "barrier" and is_of_it(law)]
    return any(row.nbytes == point.nbytes for law in laws for point in law.points)


def of_layer(case: LayerCase, row: Sample, found: Parameters) -> bool:
    """Its time, or the law of its kind's passes apart; a peak, where it is measured for one."""
    if case.purpose.startswith("peak of "):
        about = row.device, row.active_ranks
        peaks = [of for of in found.peaks if (of.device, of.active_ranks) == about]
        if case.layer.kind == "add":
            return any(of.nbytes == case.layer.moved_bytes(1) for of in peaks)
        flops = case.layer.forward_flops(case.batch)
        return any((of.dtype, of.flops) == (case.execution, flops) for of in peaks)
    if case.passes == "whole":
        key = case.key
        return any((t.key, t.active_ranks) == (key, row.active_ranks) for t in found.layers)
    about = case.layer.kind, row.operation, case.execution, row.active_ranks
    return any(
        (law.kind, law.direction, law.execution, law.active_ranks) == about for law in found.work
    )


def of_tensors(case: TensorsCase, row: Sample, found: Parameters) -> bool:
    """A list that its loop has measured."""
    about = row.operation, row.device, case.execution, row.active_ranks
    return any(
        row.key in x.measured
        for x in found.tensor_loops
        if (x.operation, x.device, x.execution, x.active_ranks) == about
    )


def of_model(case: InPlaceCase, row: Sample, found: Parameters) -> bool:
    """Its layers in place, but of a graph the sum of its layers; memory with another optimizer; an
    overlap, where it is about that.
    """
    if case.is_overlap:
        return any(f"{case.model} x {case.batch}" in law.models for law in found.overlap)
    if case.optimizer != "momentum":
        return any(
            (law.device, law.family, law.execution) == (row.device, case.strategy, case.execution)
            and case.model in law.models
            for law in found.memory
        )
    if execution_of(case.execution).cuda_graph:
        about = case.execution, row.active_ranks
        laws = [law for law in found.composition if (law.execution, law.active_ranks) == about]
        of_it = [law.phase for law in laws if f"{case.model} x {case.batch}" in law.models]
        return {"forward", "backward", "update"} <= set(of_it)
    timed = [time for time in found.layers if time.active_ranks == row.active_ranks]
    in_place = {time.key for time in timed if time.in_place_forward_s is not None}
    return in_place.issuperset(case.layer_keys)


def of_variable(case: SparseCase, row: Sample, found: Parameters) -> bool:
    """The record of its variable."""
    about = case.rows, case.width, case.share, row.ranks
    return any((x.rows, x.width, x.share, x.ranks) == about for x in found.partitions)


FEEDS: dict[str, Callable[[Any, Sample, Parameters], bool]] = {
    "collective": of_collective,
    "layer": of_layer,
    "tensors": of_tensors,
    "in_place": of_model,
    "sparse": of_variable,
}
ALL = {"models": ("vgg16-mini", "cosmoflow-mini"), "strategies": tuple(STRATEGIES)}
GRAPHS = {"libraries": ("torch_nccl", "nccl"), "graphs": True}
ADAM = {
    "models": ("vgg16-mini",),
    "optimizers": ("momentum", "adam"),
    "strategies": ALL["strategies"],
}
ON_GPUS = ("float32", "bfloat16-mixed", "float32+cuda_graph")


@pytest.mark.parametrize(
    ("device", "ranks_per_node", "nodes", "effort", "asked"),
    [
        ("cuda", 2, 2, FULL, ALL),
        ("cuda", 2, 1, QUICK, GRAPHS),
        ("cpu", 4, 1, QUICK, {}),
        ("cpu", 4, 1, FULL, {**ADAM, "executions": ("float32", "bfloat16+channels_last")}),
        ("cpu", 2, 3, FULL, ALL),
        ("cuda", 2, 1, FULL, {"models": ("vgg16-mini",), "executions": ON_GPUS}),
        ("cuda", 2, 1, QUICK, {**ADAM, "executions": ("bfloat16-mixed+channels_last",)}),
    ],
)
def test_every_case_feeds_a_fit(
    device: DeviceName, ranks_per_node: int, nodes: int, effort: Effort, asked: dict[str, Any]
) -> None:
    on, p = cluster(ranks_per_node, nodes=nodes), (1, ranks_per_node * nodes)
    request = request_of(effort, device=device, p=p, ranks=p[-1], **asked)
    plan = draft(request, on, specs_of(request)).plan
    run = made_run(plan, on)
    found = fit([run])
    assert found.device_kind == device
    rows = {case_id: rows.first for (case_id,), rows in run.samples.groups("case_id").items()}

    def feeds(case: Case) -> bool:
        return FEEDS[case.kind](case, rows[case.id], found)

    assert [case.label for case in plan.cases if not feeds(case)] == []
    left_out = [note for note in found.provenance.notes if not note.startswith("memory reuse")]
    assert left_out == []
