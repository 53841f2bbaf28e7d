"""Collectives from repetitions: a direct law for every measured p."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from calib.fitting.estimate import together
from calib.fitting.estimators.base import BOOTSTRAPS, interval
from calib.fitting.estimators.collectives.pieces import FALL
from calib.fitting.estimators.collectives.segmented_hockney import SegmentedHockney
from calib.fitting.parameters.collectives import (
    CollectiveFit,
    CollectivePoint,
    HockneyPiece,
    interpolate,
)
from calib.fitting.regression import error_factor, hockney_line
from calib.fitting.sections.collective_rows import (
    Direct,
    grouped,
    of_one_sweep,
    one_type,
    packed,
    types_note,
)
from calib.foundation.arrays import Floats, Integers
from calib.foundation.errors import InputError
from calib.foundation.quantities import possible
from calib.foundation.records import Estimate
from calib.microbench.importers.table import IMPORTED
from calib.microbench.records.samples import Samples

NO_ESTIMATES: Mapping[str, float] = MappingProxyType({})
Channels = Mapping[str, Mapping[str, int]]  # case, algorithm/protocol, channels
NO_CHANNELS: Channels = MappingProxyType({})
MIN_SIZES = 2
MIN_TO_SPLIT = 6  # sizes, below which every second one says nothing of the others


def collective_fits(
    samples: Samples,
    seed: int,
    estimates: Mapping[str, float] = NO_ESTIMATES,
    channels: Channels = NO_CHANNELS,
) -> tuple[list[CollectiveFit], list[str]]:
    """The direct fits, sorted, and one note for every operation that none could be made of.

    `estimates` has, by the ids of cases, NCCL's own estimate of a call in seconds, `channels` what its
    log says that it took.
    """
    fits, notes = [], []
    for key, every in sorted(grouped(samples).items()):
        rows, about = _of_one_law(every), _words(key)
        sizes = rows.distinct("nbytes")
        if len(sizes) < MIN_SIZES:
            if sizes:
                notes.append(f"{about} has {len(sizes)} size; a line needs two")
            continue
        notes += types_note(about, every, rows)
        try:
            with possible("its law"):
                fits.append(_fit(key, rows, seed, estimates, channels))
        except InputError as error:
            notes.append(f"{about}: {error}")
    return fits, notes


def measured_points(samples: Samples) -> dict[Direct, list[CollectivePoint]]:
    """The medians that direct laws would be fitted to, those of a single size too."""
    laws = {key: _of_one_law(every) for key, every in sorted(grouped(samples).items())}
    return {key: _points(rows) for key, rows in laws.items() if len(rows)}


def _of_one_law(every: Samples) -> Samples:
    """The rows of one data type, packed side by side, with one number for a size."""
    return of_one_sweep(one_type(packed(every)))


def _words(key: Direct) -> str:
    among = f" of {key.nodes} nodes" if key.nodes > 1 else ""
    return f"{key.operation} on {key.ranks} ranks{among}"


def _fit(
    key: Direct, rows: Samples, seed: int, estimates: Mapping[str, float], channels: Channels
) -> CollectiveFit:
    points = _points(rows, estimates, channels)
    sizes = [point.nbytes for point in points]
    falls = _proven_fall(points)
    law = SegmentedHockney(falls=falls, seed=seed)
    law.fit(rows["nbytes"].astype(float), rows["seconds"], groups=rows["launch"])
    medians = np.array([point.seconds.value for point in points])
    kept = np.isin(sizes, law.outliers_, invert=True)
    used = np.array(sizes, dtype=float)[kept]
    line = hockney_line(used, medians[kept])
    fitted = line[0] + line[1] * used
    intercept, slope = _line_estimates(law, line, fitted, used, medians[kept], seed)
    left_out, between = _left_out(used, medians[kept], falls)
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
        mean_relative_error=float(np.mean(np.abs(fitted / medians[kept] - 1.0))),
        line_error_factor=error_factor(fitted, medians[kept]),
        interpolation_error_factor=between,
        left_out_error=left_out,
        pieces=_pieces(law),
        pieces_mean_relative_error=law.mean_relative_error_,
        pieces_error_factor=law.error_factor_,
        residual_quantiles=law.residual_quantiles_.tolist(),
        runner_up=_runner_up(law),
        outliers_nbytes=law.outliers_.astype(int).tolist(),
        n=len(rows),
        points=points,
    )


def _points(
    rows: Samples, estimates: Mapping[str, float] = NO_ESTIMATES, channels: Channels = NO_CHANNELS
) -> list[CollectivePoint]:
    """The median of each size, the smallest first."""
    return [
        CollectivePoint(
            nbytes=m,
            seconds=together(mine),
            n=len(mine),
            calls=int(_calls(mine).min()),
            estimate_s=estimates.get(mine.first.case_id) if estimates else None,
            channels=dict(channels.get(mine.first.case_id, {})) if channels else {},
        )
        for (m,), mine in sorted(rows.groups("nbytes").items())
    ]


def _calls(rows: Samples) -> Integers:
    """How many calls each row is the mean of; 0 of another tool's that does not say how many."""
    imported = rows.mask("marks", lambda marks: IMPORTED in marks.split(","))
    return np.where(imported & (rows["calls"] == 1), 0, rows["calls"])


def _proven_fall(points: list[CollectivePoint]) -> bool:
    """Whether some size took longer than a larger one, beyond the intervals of both and by FALL.

    Without that the law is monotone: a noisy sweep falls somewhere by chance.
    """
    least = np.array([point.seconds.low for point in points])
    most_after = np.array([point.seconds.high for point in points[::-1]])
    later = np.minimum.accumulate(most_after)[::-1]
    return bool((least[:-1] > FALL * later[1:]).any())


def _line_estimates(
    law: SegmentedHockney,
    line: tuple[float, float],
    fitted: Floats,
    sizes: Floats,
    medians: Floats,
    seed: int,
) -> list[Estimate]:
    """Intercept and slope of the one `line`, whose times are `fitted`, with intervals.

    From the times that the law resampled, which say how well each size is known, and from the line's own
    resampled residuals, which say how well a line describes them: it often does not.
    """
    residual = np.log(medians / fitted)
    spread = np.concatenate([residual, -residual]) * math.sqrt(len(sizes) / max(len(sizes) - 2, 1))
    generator = np.random.default_rng(seed)
    noise = generator.choice(spread, size=(BOOTSTRAPS, len(sizes)))
    sets = (law.resampled_[0], fitted * np.exp(noise))
    draws = [np.array([hockney_line(sizes, row) for row in times]).T for times in sets]
    own = np.array([hockney_line(sizes, row) for row in law.launch_medians_]).reshape(-1, 2).T
    result = []
    for index, value in enumerate(line):
        ends = [interval(value, lines[index], own[index].tolist()) for lines in draws]
        lows, highs = zip(*ends, strict=True)
        result.append(Estimate.around(value, min(lows), max(highs)))
    return result


def interpolation_error(sizes: list[float], seconds: list[float]) -> float:
    """error_factor of every inner size when it is interpolated from the others."""
    if len(sizes) < 3:
        return 2.0  # nothing to check it with: between two sizes the time may be anywhere
    predicted = [
        interpolate(sizes[i], sizes[:i] + sizes[i + 1 :], seconds[:i] + seconds[i + 1 :])
        for i in range(1, len(sizes) - 1)
    ]
    return error_factor(predicted, seconds[1:-1])


def _left_out(sizes: Floats, seconds: Floats, falls: bool) -> tuple[float | None, float]:
    """(mean relative error, error factor) of every second size, predicted from the others.

    Both halves are left out in turn, and only sizes inside the other half's range are scored.
    """
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
