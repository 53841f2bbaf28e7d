"""alpha and beta of every (operation, library, level, p) from its repetitions."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from fitting.estimate import by_launch, quantile_estimate, together
from fitting.hockney import (
    HockneyLine,
    bootstrap_lines,
    interpolation_error,
    steps_and_volume,
)
from fitting.parameters import Alpha, CollectiveFit, CollectivePoint
from fitting.regression import error_factor
from microbench.samples import Sample

MIN_SIZES = 2
MIN_RANKS = 2


def collective_fits(samples: list[Sample], seed: int) -> tuple[list[CollectiveFit], list[str]]:
    """The fits, sorted, and one note for every operation with too few sizes for a line."""
    groups: dict[tuple[str, str, str, int], list[Sample]] = defaultdict(list)
    for sample in samples:
        if sample.kind == "collective":
            key = (sample.operation, sample.library, sample.level, sample.ranks)
            groups[key].append(sample)
    fits, notes = [], []
    for key, rows in sorted(groups.items()):
        if key[3] < MIN_RANKS:
            notes.append(f"{key[0]} on 1 rank is no communication")
            continue
        sizes = {row.nbytes for row in rows}
        if len(sizes) < MIN_SIZES:
            notes.append(f"{key[0]} on {key[3]} ranks has {len(sizes)} size; a line needs two")
            continue
        fits.append(_fit(key, rows, seed))
    return fits, notes


def _fit(key: tuple[str, str, str, int], rows: list[Sample], seed: int) -> CollectiveFit:
    operation, library, level, ranks = key
    sizes = sorted({row.nbytes for row in rows})
    points = [
        CollectivePoint(
            nbytes=nbytes,
            seconds=together([row for row in rows if row.nbytes == nbytes]),
            n=sum(row.nbytes == nbytes for row in rows),
        )
        for nbytes in sizes
    ]
    medians = [point.seconds.value for point in points]
    line = HockneyLine().fit(sizes, medians)
    fitted = line.predict(sizes)
    repetitions = _repetitions(rows)
    draws = bootstrap_lines(repetitions, seed)
    own = [_line_of(launch) for launch in repetitions.values() if len(launch) == len(sizes)]
    intercept, slope = (
        quantile_estimate(value, draws[:, index].tolist(), [line[index] for line in own])
        for index, value in enumerate((line.intercept_, line.slope_))
    )
    # p2p between two ranks of a larger launch is still a message between two
    steps, volume = steps_and_volume(operation, 2 if operation == "p2p" else ranks)
    return CollectiveFit(
        operation=operation, library=library, level=level, ranks=ranks,
        alpha_s=Alpha(**intercept.scaled(1 / steps).model_dump()),
        beta_s_per_byte=slope.scaled(1 / volume),
        intercept_s=intercept, slope_s_per_byte=slope,
        mean_relative_error=float(np.mean(np.abs(fitted / np.array(medians) - 1.0))),
        line_error_factor=error_factor(fitted, medians),
        interpolation_error_factor=interpolation_error(sizes, medians),
        points=points,
    )  # fmt: skip


def _line_of(launch: dict[int, np.ndarray]) -> tuple[float, float]:
    """(intercept, slope) through the medians of one launch."""
    line = HockneyLine().fit(list(launch), [float(np.median(times)) for times in launch.values()])
    return line.intercept_, line.slope_


def _repetitions(rows: list[Sample]) -> dict[int, dict[int, np.ndarray]]:
    """launch -> bytes -> seconds, sorted so that the order of the rows cannot matter."""
    result: dict[int, dict[int, np.ndarray]] = {}
    for launch, samples in sorted(by_launch(rows).items()):
        sizes: dict[int, list[float]] = defaultdict(list)
        for sample in samples:
            sizes[sample.nbytes].append(sample.seconds)
        result[launch] = {m: np.sort(values) for m, values in sorted(sizes.items())}
    return result
