"""A case's repetitions as rows, and as the manifest's line on it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa

from calib.foundation.arrays import Floats
from calib.foundation.collectives import sent_bytes
from calib.foundation.execution import execution_of
from calib.foundation.layers import ITEM_BYTES
from calib.microbench.cases import (
    Case,
    CollectiveCase,
    InPlaceCase,
    LayerCase,
    SparseCase,
    TensorsCase,
)
from calib.microbench.groups import layout, level_of, nodes_of
from calib.microbench.machine.placement import Placement
from calib.microbench.machine.telemetry import mean_power_w
from calib.microbench.records.manifest import CaseEnd, RankPlace
from calib.microbench.records.samples import make_table
from calib.microbench.timing.repeat import Repetitions


def to_table(
    case: Case,
    result: Repetitions,
    placement: Placement,
    launch: int,
    started: float,
    marks: list[str],
) -> pa.Table:
    """One row per operation and repetition; `started` in seconds of the Unix epoch."""
    about = {
        **about_case(case, placement),
        "case_id": case.id,
        "kind": case.kind,
        "launch": launch,
        "oversubscribed": placement.oversubscribed,
        "calls": result.calls,
        "resolution_s": result.resolution_s,
        "started_unix_s": started,
        "marks": ",".join(marks),
    }
    tables = []
    for name, rows in result.ranks.items():
        # a model in place also times its layers: "layer_forward:features.0"
        operation, _, layer = name.partition(":")
        if isinstance(case, TensorsCase) and name == "update" and case.optimizer != "momentum":
            operation = f"update_{case.optimizer}"  # "update" is training's default
        number = np.arange(len(rows))
        seconds = np.array([max(row) for row in rows])
        columns = {
            **about,
            "key": f"{about['key']}:{layer}" if layer else about["key"],
            "operation": operation,
            "repetition": number,
            "warmup": number < result.warmup,
            "seconds": seconds,
            "skew_seconds": seconds - [min(row) for row in rows],
            "rank_seconds": pa.array(rows, pa.list_(pa.float64())),
            "late_seconds": _known([] if layer else result.late, len(rows)),
            "host_seconds": _known(list(map(max, result.host.get(name, []))), len(rows)),
            "rank_waited": pa.array(
                _counted(result.waited.get(name, []), len(rows)), pa.list_(pa.float64())
            ),
        }
        tables.append(make_table(len(rows), **columns))
    return pa.concat_tables(tables)


def _counted(rows: list[list[float]], number: int) -> list[list[float]]:
    """Seconds that each rank waited in `number` repetitions; none where one system does not count."""
    counted = len(rows) == number and all(math.isfinite(x) for row in rows for x in row)
    return rows if counted else [[]] * number


def _known(values: list[float], size: int) -> Floats:
    """`size` values; NaN for repetitions without one."""
    return np.array((values + [math.nan] * size)[:size])


def about_case(case: Case, placement: Placement) -> dict[str, Any]:
    """The columns that say what a case is and on what it ran."""
    everyone: dict[str, Any] = {
        "key": "",
        "library": "torch",
        "level": placement.level,
        "ranks": case.ranks,
        "active_ranks": min(case.ranks, placement.ranks_per_node),
        "nbytes": 0,
        "ntensors": 0,
        "batch": 0,
        "nodes": len(set(placement.hosts)),
    }
    if isinstance(case, CollectiveCase):
        return {**everyone, **_about_collective(case, placement)}
    if isinstance(case, LayerCase):
        item_bytes = execution_of(case.execution).items.activation_bytes
        nbytes = int(case.layer.moved_bytes(case.batch, item_bytes))
        return {
            **everyone,
            "key": case.key,
            "batch": case.batch,
            "nbytes": nbytes,
            "device": case.device,
            "dtype": case.execution,
            "cold": case.cold,
        }
    if isinstance(case, TensorsCase):
        items = sum(math.prod(shape) for shape in case.shapes)
        of = execution_of(case.execution).items
        shards = case.operation in ("concat", "split")
        item_bytes = of.activation_bytes if shards else of.weight_bytes
        apart = case.parts > 1  # shards of one tensor, and how many are part of what it is
        return {
            **everyone,
            "key": f"{case.key}/{case.parts}" if apart else case.key,
            "ntensors": case.parts if apart else len(case.shapes),
            "device": case.device,
            "dtype": case.execution,
            "nbytes": item_bytes * items,
        }
    if isinstance(case, SparseCase):
        return {
            **everyone,
            "key": case.key,
            "library": "mpi",
            "ntensors": case.partitions,
            "nbytes": ITEM_BYTES * case.touched * case.width,
        }
    assert isinstance(case, InPlaceCase)
    library = {"library": case.library} if case.is_overlap or case.meetings else {}
    about = {"key": case.model, "batch": case.batch, "device": case.device, "dtype": case.execution}
    return {**everyone, **about, **library}


def _about_collective(case: CollectiveCase, placement: Placement) -> dict[str, Any]:
    groups = layout(placement, case.group_size, case.stride, case.groups)
    order = ("node", "rack", "system")
    level = max((level_of(placement, group) for group in groups), key=order.index)
    local = [placement.hosts[rank] for group in groups for rank in group]
    return {
        "library": case.library,
        "level": level,
        "ranks": case.group_size,
        "active_ranks": max(map(local.count, set(local))),
        "nbytes": sent_bytes(case.operation, case.nbytes, case.group_size),
        "nodes": max(nodes_of(placement, group) for group in groups),
        "groups": case.groups,
        "stride": case.stride,
        "device": case.device,
        "cold": case.cold,
        "mode": case.mode,
        "start": case.start,
        "key": case.detail,
    }


def rank_places(placement: Placement) -> list[RankPlace]:
    """Where each rank ran, for the manifest."""
    return [
        RankPlace(host=host, cores=cores, socket=socket, numa_node=numa, gpu=gpu, rack=rack)
        for host, cores, socket, numa, gpu, rack in zip(
            placement.hosts,
            placement.cores,
            placement.sockets,
            placement.numa,
            placement.gpus,
            placement.racks,
            strict=True,
        )
    ]


def case_end(
    case: Case,
    launch: int,
    elapsed_s: float,
    result: Repetitions | None = None,
    stopped_by: str = "",
    gpus: tuple[list[dict[str, Any]], list[dict[str, Any]]] = ([], []),
    again: int = 0,
    started: float | None = None,
) -> CaseEnd:
    """The manifest's line of a case; without a result, `stopped_by` says why there is none."""
    end = CaseEnd(
        case_id=case.id,
        launch=launch,
        label=case.label,
        purpose=case.purpose,
        repetitions=0,
        half_width=None,
        stopped_by=stopped_by,
        elapsed_s=round(elapsed_s, 4),
        gpu_before=gpus[0],
        gpu_after=gpus[1],
        mean_power_w=list(map(mean_power_w, *gpus)),
        again=again,
        started_unix_s=started,
    )
    if result is None:
        return end
    # of a model in place, its layers are timed in a shorter pass of their own
    whole = [rows for name, rows in result.ranks.items() if ":" not in name]
    width = round(result.half_width, 6) if math.isfinite(result.half_width) else None
    return end.model_copy(
        update={
            "repetitions": min(map(len, whole)) - result.warmup,
            "half_width": width,
            "stopped_by": result.stopped_by,
            "first_s": result.first_s,
            "estimate_s": result.estimate_s,
            "waited": result.waited_share(),
            "memory": result.memory,
            "kernels": result.kernels,
            "workspace": result.workspace,
            "channels": result.channels,
        }
    )
