"""One launch of the ranks: runs the cases of its size that have no rows yet, one after another.

SPMD: every rank calls `run_session` with the same plan. Rank 0 keeps the rows (one part file a
case), so a crash costs the case it happened in and the next run goes on after it.
"""

from __future__ import annotations

import hashlib
import math
import os
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from time import perf_counter, time
from typing import Any

from foundation.errors import CalibError
from microbench.cases import Case, CollectiveCase, LayerCase, Plan, TensorsCase
from microbench.communicators import Communicator
from microbench.manifest import CaseEnd, LaunchRecord, Manifest, utc_now
from microbench.placement import Placement, place
from microbench.repeat import Repetitions
from microbench.samples import Sample, cases_done, part_path, write_samples
from microbench.timer import Timer, measure_timer

# how much of the time a case may have beside another; a layer is two operations
WEIGHTS = {"collective": 1.0, "layer": 1.0, "tensors": 1.5, "in_place": 12.0}

Runner = Callable[[Communicator, Any, int, float, float], Repetitions]
Report = Callable[[dict[str, Any]], None]


def ordered_cases(plan: Plan, ranks: int, launch: int) -> list[Case]:
    """The cases of one launch, shuffled by the plan's seed and the launch's number."""
    cases = plan.cases_for(ranks)
    random.Random(f"{plan.seed}-{ranks}-{launch}").shuffle(cases)
    return cases


def case_seed(plan: Plan, case: Case) -> int:
    """The seed of a case's input data."""
    return int.from_bytes(hashlib.sha256(f"{plan.seed}{case.id}".encode()).digest()[:4], "big")


def run_session(
    communicator: Communicator,
    plan: Plan,
    launch: int,
    run: Path,
    manifest: Manifest,
    runners: Mapping[str, Runner],
    report: Report,
    command: str = "",
) -> None:
    """Measure; `runners` times the kinds of case that microbench has no room for (in_place).

    The time of a launch is its share of the plan's budget; a case that ends early leaves its time
    to the ones after it. `report` is called on rank 0 with progress events.
    """
    import torch

    placement = place(communicator)
    torch.set_num_threads(1)
    timer = Timer(**communicator.share(measure_timer().as_dict()))
    done = cases_done(run) if communicator.rank == 0 else set()
    finished = {tuple(pair) for pair in communicator.share(sorted(done))}
    cases = ordered_cases(plan, communicator.size, launch)
    todo = [case for case in cases if (case.id, launch) not in finished]
    record = LaunchRecord(
        launch=launch, ranks=communicator.size, command=command, started=utc_now(),
        hosts=placement.hosts, cores=placement.cores, oversubscribed=placement.oversubscribed,
        timer=timer.as_dict(),
        allocator=placement.allocator,
        load_average=os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
    )  # fmt: skip
    manifest.launches.append(record)
    budget = launch_budget(plan, communicator.size)
    start = perf_counter()
    weights = [WEIGHTS[case.kind] for case in todo]
    for index, case in enumerate(todo):
        left = budget - (perf_counter() - start)
        share = max(left, 0.0) * weights[index] / sum(weights[index:])
        share = communicator.share(share)
        if communicator.rank == 0:
            report({"event": "case", "label": case.label, "done": index, "of": len(todo),
                    "launch": launch, "ranks": communicator.size, "left_s": max(left, 0.0)})  # fmt: skip
        before = time()
        result: Repetitions | None
        try:
            result = run_case(communicator, plan, case, timer, runners, share)
        except CalibError as error:
            # every rank of a failed check raises together; the rest of the plan goes on
            end = CaseEnd(case_id=case.id, launch=launch, label=case.label, purpose=case.purpose,
                          repetitions=0, half_width=None, stopped_by=f"failed: {error}",
                          elapsed_s=time() - before)  # fmt: skip
            if communicator.rank == 0:
                report({"event": "failed", "label": case.label, "reason": str(error)})
            result = None
        else:
            end = case_end(case, launch, result)
        manifest.keep(end)
        if communicator.rank == 0:
            # the rows come last: with them the case is done, and it must not lack its end then
            manifest.write(run)
            if result is not None:
                samples = to_samples(case, result, placement, launch, before)
                write_samples(part_path(run, case.id, launch), samples)
    record.finished = utc_now()
    if communicator.rank == 0:
        manifest.write(run)
        report({"event": "session", "done": len(todo), "of": len(todo), "launch": launch,
                "ranks": communicator.size, "elapsed_s": perf_counter() - start})  # fmt: skip


def launch_budget(plan: Plan, ranks: int) -> float:
    """Seconds of one launch of this size: its share, by the weight of its cases."""
    weight = {size: sum(WEIGHTS[case.kind] for case in plan.cases_for(size)) for size in plan.sizes}
    return plan.budget_seconds * weight.get(ranks, 0.0) / sum(weight.values()) / plan.launches


def run_case(
    communicator: Communicator,
    plan: Plan,
    case: Case,
    timer: Timer,
    runners: Mapping[str, Runner],
    budget_s: float,
) -> Repetitions:
    """All repetitions of one case, by the code that measures its kind."""
    target, seed = plan.target_half_width, case_seed(plan, case)
    if isinstance(case, CollectiveCase):
        from microbench.collectives import measure_collective

        return measure_collective(communicator, case, timer, budget_s, target)
    if isinstance(case, LayerCase):
        from microbench.layers.timing import measure_layer

        return measure_layer(communicator, case, seed, budget_s, target)
    if isinstance(case, TensorsCase):
        from microbench.tensors import measure_tensors

        return measure_tensors(communicator, case, seed, budget_s, target)
    return runners[case.kind](communicator, case, seed, budget_s, target)


def to_samples(
    case: Case, result: Repetitions, placement: Placement, launch: int, started: float
) -> list[Sample]:
    """One row per operation and repetition."""
    item_bytes = 4
    nbytes, ntensors, batch, key, level, library = 0, 0, 0, "", placement.level, "torch"
    if isinstance(case, CollectiveCase):
        nbytes, library = case.nbytes, "mpi"
        if case.operation == "p2p":
            level = placement.pair_level(*case.pair)
    elif isinstance(case, LayerCase):
        key, batch = case.key, case.batch
        nbytes = int(case.layer.moved_bytes(case.batch, item_bytes))
    elif isinstance(case, TensorsCase):
        key, ntensors = case.key, len(case.shapes)
        nbytes = item_bytes * sum(math.prod(shape) for shape in case.shapes)
    else:
        key, batch = case.model, case.batch
    return [
        Sample(
            case_id=case.id,
            kind=case.kind,
            operation=operation,
            key=key,
            library=library,
            level=level,
            ranks=case.ranks,
            active_ranks=min(case.ranks, placement.ranks_per_node),
            nbytes=nbytes,
            ntensors=ntensors,
            batch=batch,
            launch=launch,
            repetition=number,
            warmup=number < result.warmup,
            oversubscribed=placement.oversubscribed,
            calls=result.calls,
            seconds=max(row),
            skew_seconds=max(row) - min(row),
            rank_seconds=row,
            started_unix_s=started,
        )
        for operation, rows in result.ranks.items()
        for number, row in enumerate(rows)
    ]


def case_end(case: Case, launch: int, result: Repetitions) -> CaseEnd:
    """The manifest's line for a case that was measured."""
    count = min(len(rows) for rows in result.ranks.values()) - result.warmup
    width = round(result.half_width, 6) if math.isfinite(result.half_width) else None
    return CaseEnd(
        case_id=case.id, launch=launch, label=case.label, purpose=case.purpose,
        repetitions=count, half_width=width, stopped_by=result.stopped_by,
        elapsed_s=round(result.elapsed_s, 4),
    )  # fmt: skip
