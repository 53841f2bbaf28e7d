"""Collectives from repetitions: a direct law for every measured p."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from calib.fitting.estimate import together
from calib.fitting.estimators.collectives.ends import end_estimates
from calib.fitting.estimators.collectives.neighbours import between_neighbours
from calib.fitting.estimators.collectives.segmented_hockney import SegmentedHockney
from calib.fitting.launches import NO_OTHERS, Launch, Launches, factors_of_one, launch_medians
from calib.fitting.parameters.collectives import CollectiveFit, CollectivePoint, HockneyPiece
from calib.fitting.parameters.size_law import falls
from calib.fitting.regression import error_factor
from calib.fitting.sections.collective_rows import Direct, of_laws, types_note
from calib.foundation.arrays import Floats, Integers
from calib.foundation.errors import InputError
from calib.foundation.quantities import possible
from calib.foundation.records import Estimate
from calib.microbench.importers.table import IMPORTED, OF_RUN
from calib.microbench.records.samples import Samples

NO_ESTIMATES: Mapping[str, float] = MappingProxyType({})
Channels = Mapping[str, Mapping[str, int]]  # case, algorithm/protocol, channels
NO_CHANNELS: Channels = MappingProxyType({})
MIN_SIZES = 2
MIN_TO_SPLIT = 6  # sizes, below which those left out say little of the others
UNCHECKED_FACTOR = 2.0  # of two sizes: between them the time may be anywhere


def collective_fits(
    samples: Samples,
    seed: int,
    estimates: Mapping[str, float] = NO_ESTIMATES,
    channels: Channels = NO_CHANNELS,
    among: Launches = NO_OTHERS,
) -> tuple[list[CollectiveFit], list[str]]:
    """The direct fits, sorted, and one note for every operation that none could be made of.

    `estimates` has, by the ids of cases, NCCL's own estimate of a call in seconds, `channels` what its
    log says that it took; `among` is how launches differ.
    """
    fits, notes = [], []
    laws = of_laws(samples)
    factors = _launch_factors(laws)
    for key, (every, rows) in laws.items():
        about = _words(key)
        sizes = rows.distinct("nbytes")
        if len(sizes) < MIN_SIZES:
            if sizes:
                notes.append(f"{about} has {len(sizes)} size; a line needs two")
            continue
        notes += types_note(about, every, rows)
        try:
            with possible("its law"):
                points = _points(rows, estimates, channels, among)
                fits.append(_fit(key, rows, seed, points, factors.get(key, 1.0)))
        except InputError as error:
            notes.append(f"{about}: {error}")
    return fits, notes


def measured_points(samples: Samples) -> dict[Direct, list[CollectivePoint]]:
    """The medians that direct laws would be fitted to, those of a single size too."""
    return {key: _points(rows) for key, (_, rows) in of_laws(samples).items() if len(rows)}


def _words(key: Direct) -> str:
    among = f" of {key.nodes} nodes" if key.nodes > 1 else ""
    return f"{key.operation} on {key.ranks} ranks{among}"


def _fit(
    key: Direct, rows: Samples, seed: int, points: list[CollectivePoint], launch_factor: float
) -> CollectiveFit:
    sizes = [point.nbytes for point in points]
    may_fall = falls([p.seconds.low for p in points], [p.seconds.high for p in points])
    law = SegmentedHockney(falls=may_fall, seed=seed)
    law.fit(rows["nbytes"].astype(float), rows["seconds"], groups=rows["launch"])
    kept = np.isin(sizes, law.outliers_, invert=True)
    used = np.array(sizes, dtype=float)[kept]
    medians = np.array([point.seconds.value for point in points])[kept]
    intercept, slope = end_estimates(used, medians, law.resampled_, law.launch_medians_)
    line = intercept.value + slope.value * used
    left_out, between = left_out_errors(used, medians)
    return CollectiveFit(
        operation=key.operation,
        library=key.library,
        device=key.device,
        level=key.level,
        ranks=key.ranks,
        nodes=key.nodes,
        ranks_per_node=key.ranks_per_node,
        intercept_s=intercept,
        slope_s_per_byte=slope,
        mean_relative_error=float(np.mean(np.abs(line / medians - 1.0))),
        line_error_factor=error_factor(line, medians),
        interpolation_error_factor=between,
        left_out_error=left_out,
        pieces=_pieces(law),
        pieces_mean_relative_error=law.mean_relative_error_,
        pieces_error_factor=law.error_factor_,
        residual_quantiles=law.residual_quantiles_.tolist(),
        runner_up=_runner_up(law),
        outliers_nbytes=law.outliers_.astype(int).tolist(),
        n=len(rows),
        launch_factor=launch_factor,
        points=points,
    )


def _launch_factors(laws: Mapping[Direct, tuple[Samples, Samples]]) -> dict[Direct, float]:
    """How far single launches are from the median of all; laws of a library and level tell together."""
    alike: dict[tuple[str, ...], dict[Direct, list[dict[int, Launch]]]] = {}
    for key, (_, rows) in laws.items():
        medians = [launch_medians(of, of["seconds"]) for of in rows.groups("nbytes").values()]
        cases = [of for of in medians if of is not None and len(of) > 1]
        if cases:
            alike.setdefault((key.library, key.device, key.level), {})[key] = cases
    found: dict[Direct, float] = {}
    for of in alike.values():
        found |= factors_of_one(of)
    return found


def _points(
    rows: Samples,
    estimates: Mapping[str, float] = NO_ESTIMATES,
    channels: Channels = NO_CHANNELS,
    among: Launches = NO_OTHERS,
) -> list[CollectivePoint]:
    """The median of each size, the smallest first."""
    return [
        CollectivePoint(
            nbytes=m,
            seconds=together(mine, among),
            n=len(mine),
            calls=int(_calls(mine).min()),
            estimate_s=estimates.get(mine.first.case_id) if estimates else None,
            channels=dict(channels.get(mine.first.case_id, {})) if channels else {},
        )
        for (m,), mine in sorted(rows.groups("nbytes").items())
    ]


def _calls(rows: Samples) -> Integers:
    """How many calls each row is the mean of; 0 of another tool's that does not say how many.

    Of a run each row is one call.
    """
    imported = rows.mask(
        "marks", lambda marks: IMPORTED in (of := marks.split(",")) and OF_RUN not in of
    )
    return np.where(imported & (rows["calls"] == 1), 0, rows["calls"])


def left_out_errors(sizes: Floats, seconds: Floats) -> tuple[float | None, float]:
    """(mean relative error, error factor) of every inner size when its neighbours alone predict it.

    The mean is None of fewer than MIN_TO_SPLIT sizes.
    """
    if len(sizes) < 3:
        return None, UNCHECKED_FACTOR
    predicted, measured = between_neighbours(sizes, seconds), seconds[1:-1]
    factor = error_factor(predicted, measured)
    if len(sizes) < MIN_TO_SPLIT:
        return None, factor
    return float(np.mean(np.abs(predicted / measured - 1.0))), factor


def _pieces(law: SegmentedHockney) -> list[HockneyPiece]:
    intercepts, slopes = law.coefficient_intervals()
    return [
        HockneyPiece(
            from_nbytes=float(law.from_[k]),
            to_nbytes=float(law.to_[k]),
            intercept_s=Estimate.around(float(law.intercepts_[k]), *intercepts[k].tolist()),
            slope_s_per_byte=Estimate.around(float(law.slopes_[k]), *slopes[k].tolist()),
        )
        for k in range(len(law.pieces_))
    ]


def _runner_up(law: SegmentedHockney) -> str:
    if law.runner_up_ is None:
        return ""
    pieces, criterion = law.runner_up_
    return f"{pieces} piece{'s' * (pieces > 1)}, criterion {criterion - law.criterion_:.2f} worse"
