"""Laws of a collective for every p, from the measured p: alpha, beta and an algorithm."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from calib.fitting.estimators.collectives.structural_hockney import Band, StructuralHockney
from calib.fitting.parameters.algorithms import ALGORITHMS
from calib.fitting.parameters.collectives import StructuralBand, StructuralFit
from calib.fitting.sections.collective_rows import (
    grouped,
    most_on_a_node,
    of_one_sweep,
    one_type,
    packed,
    types_note,
)
from calib.foundation.errors import InputError
from calib.foundation.records import Estimate
from calib.microbench.records.samples import Samples


def structural_fits(samples: Samples, seed: int) -> tuple[list[StructuralFit], list[str]]:
    """A structural law of every operation, library, device and level with two p or more, sorted.

    And a note for every one that could not be made, or was made of one data type of several.
    """
    of_p: dict[tuple[tuple[str, str, str, str], int], list[Samples]] = defaultdict(list)
    for key, mine in grouped(samples).items():
        if key.operation in ALGORITHMS:
            of_p[(key.operation, key.library, key.device, key.level), key.ranks].append(mine)
    groups: dict[tuple[str, str, str, str], list[Samples]] = defaultdict(list)
    for (about, _), (first, *more) in of_p.items():
        groups[about].append(packed(first.joined(more)))
    fits, notes = [], []
    for law, (first, *more) in sorted(groups.items()):
        every = of_one_sweep(first.joined(more))
        name, rows = f"{law[0]} on any number of ranks", one_type(every)
        if len(rows.distinct("ranks")) < 2:
            if len(every.distinct("ranks")) > 1:
                notes.append(f"{name}: no data type has two p with bytes; a law needs them")
            continue
        try:
            fits.append(_structural(*law, rows, seed))
        except InputError as error:
            notes.append(f"{name}: {error}")
        else:
            notes += types_note(name, every, rows)
    return fits, notes


def _structural(
    operation: str, library: str, device: str, level: str, rows: Samples, seed: int
) -> StructuralFit:
    x = np.column_stack([rows[name] for name in ("nbytes", "ranks", "nodes")])
    law = StructuralHockney(operation, seed=seed, n_bootstraps=100)
    law.fit(x, rows["seconds"], groups=rows["launch"])
    layouts = rows.groups("ranks", "nodes", "active_ranks")
    shapes = sorted({(p, nodes, most_on_a_node(p, nodes, active)) for p, nodes, active in layouts})
    points = law.predict(law.points_)
    return StructuralFit(
        operation=operation,
        library=library,
        device=device,
        level=level,
        ranks=[ranks for ranks, _, _ in shapes],
        nodes=[nodes for _, nodes, _ in shapes],
        ranks_per_node=[each for *_, each in shapes],
        bands=[_band(band) for band in law.bands_],
        mean_relative_error=float(np.mean(np.abs(points / law.medians_ - 1.0))),
        held_out_error=law.held_out_error_ if law.validated_ else None,
        error_factor=law.error_factor_,
        residual_quantiles=law.residual_quantiles_.tolist(),
        n=len(rows),
    )


def _band(band: Band) -> StructuralBand:
    low, high = band.interval()
    base, per_byte, alpha, beta = (
        Estimate.around(float(band.coefficients[k]), float(low[k]), float(high[k]))
        for k in range(4)
    )
    runner_up = ""
    if band.runner_up is not None:
        algorithm, hierarchical, score = band.runner_up
        runner_up = f"{algorithm}{', hierarchical' * hierarchical}, error {score:.4f}"
    return StructuralBand(
        nbytes=band.nbytes,
        algorithm=band.algorithm,
        hierarchical=band.hierarchical,
        base_s=base,
        base_s_per_byte=per_byte,
        alpha_s=alpha,
        beta_s_per_byte=beta,
        score=band.score,
        runner_up=runner_up,
    )
