"""Collectives from repetitions: a direct law for every measured p, a structural one for the others."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fitting.algorithms import ALGORITHMS, POINT_TO_POINT
from fitting.estimate import together
from fitting.hockney import HockneyLine, interpolation_error, steps_and_volume
from fitting.parameters_collective import (
    CollectiveFit,
    CollectivePoint,
    HockneyPiece,
    StructuralBand,
    StructuralFit,
)
from fitting.records import MAX_ALPHA_S, Alpha, Estimate, SignedEstimate
from fitting.regression import error_factor
from foundation.errors import InputError
from microbench.samples import Sample

if TYPE_CHECKING:
    from fitting.estimators.segmented_hockney import SegmentedHockney
    from fitting.estimators.structural_hockney import Band

IN_PLACE = ("in_place", "graph_in_place")
MIN_SIZES = 2
MIN_TO_SPLIT = 6  # sizes, below which every second one says nothing of the others


@dataclass(frozen=True, order=True)
class Direct:
    """What one direct law is of."""

    operation: str
    library: str
    device: str
    level: str
    ranks: int


def collective_fits(samples: list[Sample], seed: int) -> tuple[list[CollectiveFit], list[str]]:
    """The direct fits, sorted, and one note for every operation that none could be made of."""
    fits, notes = [], []
    for key, every in sorted(_groups(samples).items()):
        rows, about = one_type(packed(every)), f"{key.operation} on {key.ranks} ranks"
        sizes = {row.nbytes for row in rows}
        if len(sizes) < MIN_SIZES:
            if sizes:
                notes.append(f"{about} has {len(sizes)} size; a line needs two")
            continue
        types = sorted({row.dtype for row in every})
        if len(types) > 1:
            notes.append(f"{about}: of {', '.join(types)} only {rows[0].dtype} is fitted")
        try:
            fits.append(_fit(key, rows, seed))
        except InputError as error:
            notes.append(f"{about}: {error}")
    return fits, notes


def structural_fits(samples: list[Sample], seed: int) -> list[StructuralFit]:
    """A structural law of every operation, library, device and level with two p or more, sorted."""
    groups: dict[tuple[str, str, str, str], list[Sample]] = defaultdict(list)
    for key, every in _groups(samples).items():
        if key.operation in ALGORITHMS and key.ranks > 1:
            about = (key.operation, key.library, key.device, key.level)
            groups[about] += one_type(packed(every))
    return [
        _structural(*key, rows, seed)
        for key, rows in sorted(groups.items())
        if len({row.ranks for row in rows}) > 1
    ]


def _groups(samples: list[Sample]) -> dict[Direct, list[Sample]]:
    groups: dict[Direct, list[Sample]] = defaultdict(list)
    for sample in samples:
        if sample.kind == "collective" and is_plain(sample) and sample.ranks > 1:
            name = f"{sample.operation} {sample.key}" if names_layout(sample) else sample.operation
            name += " graph" * (sample.mode == "graph")
            groups[Direct(name, sample.library, sample.device, sample.level, sample.ranks)].append(
                sample
            )
    return groups


def is_plain(sample: Sample) -> bool:
    """One group alone, warm, from a barrier, out of place: what alpha and beta are fitted from.

    Several groups at once, cold buffers and traffic beside are other questions (contention).
    """
    alone = sample.groups == 1 and not sample.background_nbytes
    in_place = sample.mode in IN_PLACE
    return alone and not sample.cold and sample.start == "barrier" and not in_place


def names_layout(sample: Sample) -> bool:
    """Whether the layout makes it another operation: a 2-D halo, the inner size of a hierarchy."""
    return bool(sample.key) and sample.key != str(sample.ranks)


def packed(rows: list[Sample]) -> list[Sample]:
    """Of rows of one level and p, those whose groups span the fewest nodes, ranks side by side."""
    fewest = min((row.nodes, row.stride) for row in rows)
    return [row for row in rows if (row.nodes, row.stride) == fewest]


def one_type(rows: list[Sample]) -> list[Sample]:
    """Of rows with bytes, those of the data type that has the most sizes."""
    sizes: dict[str, set[int]] = defaultdict(set)
    for row in rows:
        if row.nbytes > 0:
            sizes[row.dtype].add(row.nbytes)
    best = min(sizes, key=lambda name: (-len(sizes[name]), name), default="")
    return [row for row in rows if row.dtype == best and row.nbytes > 0]


def _fit(key: Direct, rows: list[Sample], seed: int) -> CollectiveFit:
    from fitting.estimators.segmented_hockney import SegmentedHockney

    by_size: dict[int, list[Sample]] = defaultdict(list)
    for row in rows:
        by_size[row.nbytes].append(row)
    sizes = sorted(by_size)
    points = [
        CollectivePoint(nbytes=m, seconds=together(by_size[m]), n=len(by_size[m])) for m in sizes
    ]
    x = np.array([float(row.nbytes) for row in rows])
    y, launch = np.array([row.seconds for row in rows]), np.array([row.launch for row in rows])
    falls = _proven_fall(points)
    law = SegmentedHockney(falls=falls, seed=seed).fit(x, y, groups=launch)
    medians = np.array([point.seconds.value for point in points])
    kept = np.isin(sizes, law.outliers_, invert=True)
    used = np.array(sizes, dtype=float)[kept]
    line = HockneyLine().fit(used, medians[kept])
    intercept, slope = _line_estimates(law, line, used, medians[kept], seed)
    steps, volume = _shape(key)
    if intercept.value / steps > MAX_ALPHA_S:
        raise InputError(
            f"a start-up of {intercept.value / steps:.3g} s is over {MAX_ALPHA_S:g} s: other units?"
        )
    fitted = line.predict(used)
    left_out, between = _left_out(used, medians[kept], falls)
    return CollectiveFit(
        operation=key.operation, library=key.library, device=key.device, level=key.level,
        ranks=key.ranks, nodes=rows[0].nodes,
        alpha_s=Alpha(**intercept.scaled(1 / steps).model_dump()),
        beta_s_per_byte=slope.scaled(1 / volume), intercept_s=intercept, slope_s_per_byte=slope,
        mean_relative_error=float(np.mean(np.abs(fitted / medians[kept] - 1.0))),
        line_error_factor=error_factor(fitted, medians[kept]),
        interpolation_error_factor=between, left_out_error=left_out,
        pieces=_pieces(law), pieces_mean_relative_error=law.mean_relative_error_,
        pieces_error_factor=law.error_factor_,
        residual_quantiles=law.residual_quantiles_.tolist(), runner_up=_runner_up(law),
        outliers_nbytes=law.outliers_.astype(int).tolist(), n=len(rows), points=points,
    )  # fmt: skip


def _proven_fall(points: list[CollectivePoint]) -> bool:
    """Whether some size took longer than a larger one, beyond the intervals of both and by FALL.

    Without that the law is monotone: a noisy sweep falls somewhere by chance.
    """
    from fitting.estimators.pieces import FALL

    least = np.array([point.seconds.low for point in points])
    most_after = np.array([point.seconds.high for point in points[::-1]])
    later = np.minimum.accumulate(most_after)[::-1]
    return bool((least[:-1] > FALL * later[1:]).any())


def _shape(key: Direct) -> tuple[float, float]:
    """(steps, volume); of an operation without a model alpha and beta are those of one call."""
    if key.operation in POINT_TO_POINT:
        return 1.0, 1.0
    try:
        return steps_and_volume(key.operation, key.ranks)
    except InputError:
        return 1.0, 1.0


def _line_estimates(
    law: SegmentedHockney, line: HockneyLine, sizes: np.ndarray, medians: np.ndarray, seed: int
) -> tuple[Estimate, Estimate]:
    """Intercept and slope of the one line, with intervals.

    From the times that the law resampled, which say how well each size is known, and from the line's own
    resampled residuals, which say how well a line describes them: it often does not.
    """
    from fitting.estimators.base import BOOTSTRAPS, interval

    fitted = line.predict(sizes)
    residual = np.log(medians / fitted)
    spread = np.concatenate([residual, -residual]) * math.sqrt(len(sizes) / max(len(sizes) - 2, 1))
    generator = np.random.default_rng(seed)
    noise = generator.choice(spread, size=(BOOTSTRAPS, len(sizes)))
    sets = (law.resampled_[0], fitted * np.exp(noise))
    own = np.array([_line(sizes, times) for times in law.launch_medians_]).reshape(-1, 2)
    ends = []
    for times in sets:
        lines = np.array([_line(sizes, row) for row in times])
        ends.append(
            [
                interval(value, lines[:, index], own[:, index].tolist())
                for index, value in enumerate((line.intercept_, line.slope_))
            ]
        )
    intercept, slope = (
        _estimate(value, min(e[index][0] for e in ends), max(e[index][1] for e in ends))
        for index, value in enumerate((line.intercept_, line.slope_))
    )
    return intercept, slope


def _line(sizes: np.ndarray, times: np.ndarray) -> tuple[float, float]:
    line = HockneyLine().fit(sizes, times)
    return line.intercept_, line.slope_


def _estimate(value: float, low: float, high: float) -> Estimate:
    return Estimate(value=value, low=min(low, value), high=max(high, value))


def _left_out(sizes: np.ndarray, seconds: np.ndarray, falls: bool) -> tuple[float | None, float]:
    """(mean relative error, error factor) of every second size, predicted from the others.

    Both halves are left out in turn, and only sizes inside the other half's range are scored.
    """
    from fitting.estimators.segmented_hockney import SegmentedHockney

    if len(sizes) < MIN_TO_SPLIT:
        return None, interpolation_error(sizes.tolist(), seconds.tolist())
    predicted, measured = [], []
    for half in (0, 1):
        mine = np.arange(len(sizes)) % 2 == half
        law = SegmentedHockney(falls=falls, n_bootstraps=2).fit(sizes[mine], seconds[mine])
        inside = ~mine & (sizes > sizes[mine][0]) & (sizes < sizes[mine][-1])
        predicted += law.predict(sizes[inside]).tolist()
        measured += seconds[inside].tolist()
    relative = np.abs(np.array(predicted) / np.array(measured) - 1.0)
    return float(relative.mean()), error_factor(predicted, measured)


def _pieces(law: SegmentedHockney) -> list[HockneyPiece]:
    intercepts, slopes = law.coefficient_intervals()
    return [
        HockneyPiece(
            from_nbytes=float(law.from_[k]),
            to_nbytes=float(law.to_[k]),
            intercept_s=_signed(float(law.intercepts_[k]), *intercepts[k].tolist()),
            slope_s_per_byte=_estimate(float(law.slopes_[k]), *slopes[k].tolist()),
        )
        for k in range(len(law.pieces_))
    ]


def _signed(value: float, low: float, high: float) -> SignedEstimate:
    return SignedEstimate(value=value, low=min(low, value), high=max(high, value))


def _runner_up(law: SegmentedHockney) -> str:
    if law.runner_up_ is None:
        return ""
    pieces, criterion = law.runner_up_
    return f"{pieces} piece{'s' * (pieces > 1)}, criterion {criterion - law.criterion_:.2f} worse"


def _structural(
    operation: str, library: str, device: str, level: str, rows: list[Sample], seed: int
) -> StructuralFit:
    from fitting.estimators.structural_hockney import StructuralHockney

    x = [[row.nbytes, row.ranks, row.nodes] for row in rows]
    seconds, launch = [row.seconds for row in rows], [row.launch for row in rows]
    law = StructuralHockney(operation, seed=seed, n_bootstraps=100).fit(x, seconds, groups=launch)
    shapes = sorted({(row.ranks, row.nodes) for row in rows})
    points = law.predict(law.points_)
    return StructuralFit(
        operation=operation, library=library, device=device, level=level,
        ranks=[ranks for ranks, _ in shapes], nodes=[nodes for _, nodes in shapes],
        bands=[_band(band) for band in law.bands_],
        mean_relative_error=float(np.mean(np.abs(points / law.medians_ - 1.0))),
        held_out_error=law.held_out_error_ if law.validated_ else None,
        error_factor=law.error_factor_, residual_quantiles=law.residual_quantiles_.tolist(),
        n=len(rows),
    )  # fmt: skip


def _band(band: Band) -> StructuralBand:
    low, high = np.quantile(band.draws, [0.025, 0.975], axis=0)
    base, per_byte, alpha, beta = (
        _estimate(float(band.coefficients[k]), float(low[k]), float(high[k])) for k in range(4)
    )
    runner_up = ""
    if band.runner_up is not None:
        algorithm, hierarchical, score = band.runner_up
        runner_up = f"{algorithm}{', hierarchical' * hierarchical}, error {score:.4f}"
    return StructuralBand(
        nbytes=band.nbytes, algorithm=band.algorithm, hierarchical=band.hierarchical, base_s=base,
        base_s_per_byte=per_byte, alpha_s=alpha, beta_s_per_byte=beta, score=band.score,
        runner_up=runner_up,
    )  # fmt: skip
