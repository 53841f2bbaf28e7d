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
from fitting.parameters import CollectiveFit, CollectivePoint
from fitting.records import Alpha
from fitting.regression import error_factor
from microbench.samples import Sample

MIN_SIZES = 2


def collective_fits(samples: list[Sample], seed: int) -> tuple[list[CollectiveFit], list[str]]:
    """The fits, sorted, and one note for every operation with too few sizes for a line."""
    groups: dict[tuple[str, str, str, int], list[Sample]] = defaultdict(list)
    for sample in samples:
        if sample.kind == "collective" and is_plain(sample):
            name = f"{sample.operation} {sample.key}" if names_layout(sample) else sample.operation
            groups[name, sample.library, sample.level, sample.ranks].append(sample)
    fits, notes = [], []
    for key, every in sorted(groups.items()):
        rows = packed(every)
        sizes = {row.nbytes for row in rows}
        if len(sizes) < MIN_SIZES:
            notes.append(f"{key[0]} on {key[3]} ranks has {len(sizes)} size; a line needs two")
            continue
        fits.append(_fit(key, rows, seed))
    return fits, notes


def is_plain(sample: Sample) -> bool:
    """One group alone, warm, from a barrier: what alpha and beta are fitted from.

    Of buffers where the library has them at home: NCCL's on GPUs, the others' on hosts.

    Several groups at once, cold buffers and traffic beside are other questions (contention).
    """
    home = "cuda" if sample.library in ("nccl", "torch_nccl") else "cpu"
    alone = sample.groups == 1 and not sample.background_nbytes and sample.device == home
    return alone and not sample.cold and sample.start == "barrier"


def names_layout(sample: Sample) -> bool:
    """Whether the layout makes it another operation: a 2-D halo, the inner size of a hierarchy."""
    return bool(sample.key) and sample.key != str(sample.ranks)


def packed(rows: list[Sample]) -> list[Sample]:
    """Of rows of one level and p, those whose groups span the fewest nodes, ranks side by side."""
    fewest = min((row.nodes, row.stride) for row in rows)
    return [row for row in rows if (row.nodes, row.stride) == fewest]


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
    steps, volume = steps_and_volume(operation, ranks)
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
