"""Overlap and partitions as records of the parameter file.

Contract of the rows with overlap: kind "in_place", operation "overlapped", `seconds` of a whole
iteration that exchanges gradients during the backward, `library` that of the exchange; the same model,
batch, ranks and device are measured without overlap as phases (forward, backward, exchange, ...).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

from calib.fitting.estimate import slowest_rank
from calib.fitting.estimators.overlap import OverlapLaw
from calib.fitting.estimators.partitions import Partitions as PartitionsLaw
from calib.fitting.parameters.memory import Overlap, Partitions
from calib.fitting.parameters.records import Estimate
from calib.fitting.sections.memory import none_if_nan
from calib.microbench.records.samples import Samples

OVERLAPPED = "overlapped"
HIDING = ("forward", "backward", "exchange")  # of the law; the other phases are hidden by nothing
OTHERS = ("pack", "unpack", "update")

OverlapRun = tuple[str, int, int, str]  # model, batch, ranks, device


def overlaps(samples: Samples, seed: int = 0) -> tuple[list[Overlap], list[str]]:
    """One Overlap for every (library, device, ranks) with overlapped iterations, and notes.

    A model whose phases were not measured without overlap is left out, with a note.
    """
    phases: dict[OverlapRun, dict[str, float]] = defaultdict(dict)
    together: dict[tuple[str, str, int], dict[OverlapRun, Samples]] = defaultdict(dict)
    in_place = samples.where(kind="in_place").groups("case_id", "operation")
    for (_, operation), rows in sorted(in_place.items()):
        first = rows.first
        run = (first.key, first.batch, first.ranks, first.device)
        if operation == OVERLAPPED:
            mine = together[first.library, first.device, first.ranks]
            mine[run] = mine[run].joined([rows]) if run in mine else rows
        elif operation in HIDING + OTHERS:
            phases[run][operation] = slowest_rank(rows).value
    found, notes = [], []
    for (library, device, ranks), runs in sorted(together.items()):
        known = {r: rows for r, rows in sorted(runs.items()) if set(HIDING) <= phases[r].keys()}
        notes += [
            f"overlap of {run[0]} x {run[1]} on {ranks} ranks: its phases were not measured without"
            for run in sorted(set(runs) - set(known))
        ]
        if not known:
            continue
        x, y, launches = [], [], []
        for run, rows in known.items():
            columns = [phases[run].get(name, 0.0) for name in HIDING + OTHERS]
            x += [columns] * len(rows)
            y += rows["seconds"].tolist()
            launches += rows["launch"].tolist()
        law = OverlapLaw(seed=seed).fit(x, y, groups=launches)
        found.append(
            Overlap(
                library=library,
                device=device,
                ranks=ranks,
                eta=Estimate(value=law.eta_, low=law.eta_low_, high=law.eta_high_),
                error=law.error_,
                held_out_error=none_if_nan(law.held_out_error_),
                error_factor=law.error_factor_,
                models=[f"{run[0]} x {run[1]}" for run in known],
                n=len(y),
                residual_quantiles=law.residual_quantiles_.tolist(),
            )
        )
    return found, notes


def partitions(name: str, times: Mapping[int, Sequence[float]], seed: int = 0) -> Partitions:
    """The record of one model or variable, from partitions -> seconds of its iterations.

    Raises InputError for times that are not positive and partitions below 1.
    """
    x = [[float(number)] for number, seconds in times.items() for _ in seconds]
    law = PartitionsLaw(seed=seed).fit(x, [s for seconds in times.values() for s in seconds])
    values = [
        Estimate(value=float(value), low=float(low), high=float(high))
        for value, low, high in zip(law.coefficients_, law.low_, law.high_, strict=True)
    ]
    best, low, high = (
        None if math.isinf(value) else value
        for value in (law.best_partitions_, law.best_low_, law.best_high_)
    )
    return Partitions(
        name=name,
        constant_s=values[0],
        parallel_s=values[1],
        per_partition_s=values[2],
        best_partitions=best,
        best_low=low,
        best_high=high,
        error=law.error_,
        held_out_error=none_if_nan(law.held_out_error_),
        error_factor=law.error_factor_,
        min_partitions=min(times),
        max_partitions=max(times),
        n=len(x),
        residual_quantiles=law.residual_quantiles_.tolist(),
    )
