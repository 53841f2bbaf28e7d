"""Sparse exchanges: the law of the server's partitions, and the other methods beside it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping

import numpy as np

from calib.fitting.estimate import together
from calib.fitting.estimators.partitions import PartitionsLaw
from calib.fitting.launches import NO_OTHERS, Launches
from calib.fitting.parameters.memory import Partitions
from calib.fitting.sections.memory import none_if_nan
from calib.foundation.records import Estimate
from calib.microbench.cases import SparseCase, SparseMethod
from calib.microbench.records.samples import Samples

FEWEST = 4  # numbers of partitions: of three nothing is left to check the law with

SparseVariable = tuple[int, int, float, int, int, str]  # rows, width, share, ranks, nodes, library
SparseTimes = dict[tuple[SparseMethod, int], Samples]  # by method and partitions


def partitions(
    samples: Samples, cases: Mapping[str, SparseCase], seed: int = 0, among: Launches = NO_OTHERS
) -> tuple[list[Partitions], list[str]]:
    """One record for every variable, share and layout with sparse exchanges, and notes.

    `cases` by their id. A variable with fewer than FEWEST numbers of partitions is left out, with a
    note.
    """
    timed: dict[SparseVariable, SparseTimes] = defaultdict(dict)
    groups = samples.where(kind="sparse").groups("case_id", "ranks", "nodes", "library")
    for (case_id, ranks, nodes, library), rows in groups.items():
        case = cases[case_id]
        of = (case.rows, case.width, case.share, ranks, nodes, library)
        timed[of][case.method, case.partitions] = rows
    found, notes = [], []
    for of, methods in sorted(timed.items()):
        numbers = sorted(parts for method, parts in methods if method == "server")
        if len(numbers) < FEWEST:
            notes.append(
                f"sparse exchange of {of[0]} x {of[1]}, a = {of[2]:g}, on {of[3]} ranks: "
                f"{len(numbers)} numbers of partitions were measured, {FEWEST} are needed"
            )
            continue
        found.append(_fitted(of, methods, numbers, seed, among))
    return found, notes


def _fitted(
    of: SparseVariable, methods: SparseTimes, numbers: list[int], seed: int, among: Launches
) -> Partitions:
    servers = [methods["server", parts] for parts in numbers]
    x = np.repeat(np.array(numbers, dtype=float), [len(rows) for rows in servers])
    law = PartitionsLaw(seed=seed).fit(
        x[:, None],
        np.concatenate([rows["seconds"] for rows in servers]),
        groups=np.concatenate([rows["launch"] for rows in servers]),
    )
    theta = [
        Estimate(value=float(value), low=float(low), high=float(high))
        for value, low, high in zip(law.coefficients_, law.low_, law.high_, strict=True)
    ]
    best, low, high = (
        None if math.isinf(value) else value
        for value in (law.best_partitions_, law.best_low_, law.best_high_)
    )
    times = {key: together(timed, among) for key, timed in methods.items()}
    fastest = min(numbers, key=lambda parts: times["server", parts].value)
    return Partitions(
        rows=of[0],
        width=of[1],
        share=of[2],
        ranks=of[3],
        nodes=of[4],
        library=of[5],
        server_s=times["server", fastest],
        server_partitions=fastest,
        allgatherv_s=times.get(("allgatherv", 1)),
        allreduce_s=times.get(("allreduce", 1)),
        constant_s=theta[0],
        parallel_s=theta[1],
        per_partition_s=theta[2],
        best_partitions=best,
        best_low=low,
        best_high=high,
        error=law.error_,
        held_out_error=none_if_nan(law.held_out_error_),
        error_factor=law.error_factor_,
        min_partitions=numbers[0],
        max_partitions=numbers[-1],
        n=len(x),
        residual_quantiles=law.residual_quantiles_.tolist(),
    )
