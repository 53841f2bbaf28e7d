"""What more bytes take on the links of a level, which all its collectives share.

A law whose largest size is small says nonsense of larger ones: of 512 B in 400 us the slope is noise.
Other operations of its library may have larger sizes on the same links. Where bytes take most of the
time, slope / (bytes on a link) is what a link takes for a byte, whatever the operation; and below that,
what a link takes longer depends on its bytes alone, too. So a law that does not show its bytes grows,
beyond its largest size, as those do that show theirs.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import median
from typing import NamedTuple

import numpy as np

from calib.fitting.parameters.algorithms import (
    ALGORITHMS,
    GroupShape,
    Links,
    choices_of,
    steps_and_volume,
)
from calib.fitting.parameters.collectives import CollectiveFit, CollectivePoint, SharedPoint
from calib.fitting.parameters.halos import HALO, grid_of, neighbours
from calib.fitting.parameters.scaling import shape_of_fit
from calib.fitting.parameters.structural import ANY_LINKS, DEVIATION, DOUBLING_DEVIATION
from calib.fitting.regression import error_factor
from calib.foundation.errors import InputError
from calib.foundation.records import Z_95, Estimate

# of the public logs (docs/fitting.md, "A slope that is shared"): one standard deviation of the logarithm
# of what operations of one layout say of its links, and as how many operations it counts
OPERATION_DEVIATION, PRIOR_OPERATIONS = 0.4, 2.0
# a link that is faster than the fastest that was measured by more than this is none
NOISE = 1.1
LEAST_REACH = 1e-3  # of the most bytes on a link, from which a law may show its bytes
GAP = 64.0  # between two sizes: what lies between is no measurement
STEP = 2  # from one size beyond the measured ones to the next


class Said(NamedTuple):
    """ln of a time, and its standard deviation."""

    log: float
    deviation: float


class Source(NamedTuple):
    """A law that shows its bytes, and the multiples of the buffer that a link carries."""

    fit: CollectiveFit
    volume: float

    @property
    def operation(self) -> str:
        """The operation without its layout."""
        return base_of(self.fit)

    @property
    def slope_log(self) -> float:
        """ln of what a link takes for a byte, s/B."""
        return math.log(self.fit.slope_s_per_byte.value / self.volume)

    @property
    def most(self) -> float:
        """Bytes that a link carries at its largest size."""
        return self.volume * self.fit.points[-1].nbytes

    def seconds(self, link_bytes: float) -> float:
        """Of a call whose buffer is so large that a link carries so many bytes."""
        return self.fit.seconds(link_bytes / self.volume)

    def is_dense(self, link_bytes: float) -> bool:
        """Whether it has no gap from so many bytes on a link to its largest size."""
        sizes = [point.nbytes for point in self.fit.points]
        return all(
            above <= GAP * max(below, 1)
            for below, above in pairwise(sizes)
            if above * self.volume > link_bytes
        )


def with_shared_slopes(fits: Sequence[CollectiveFit]) -> list[CollectiveFit]:
    """The direct laws, in their order; each that does not show its bytes grows as others say.

    Others are of the same library, device and level. Where none of those shows its bytes, all are as
    they were.
    """
    levels: dict[tuple[str, str, str], list[Source]] = defaultdict(list)
    for fit in fits:
        volume = bytes_on_a_link(fit)
        if volume and fit.shows_bytes and fit.slope_s_per_byte.value > 0:
            levels[_level(fit)].append(Source(fit, volume))
    known = {level: _far_enough(some) for level, some in levels.items()}
    return [_shared(fit, known[_level(fit)]) if _level(fit) in known else fit for fit in fits]


def _far_enough(some: Sequence[Source]) -> list[Source]:
    """Those that reach far enough: at 512 B noise alone may rise as steeply as bytes do."""
    most = max(each.most for each in some)
    return [each for each in some if each.most >= LEAST_REACH * most]


def _level(fit: CollectiveFit) -> tuple[str, str, str]:
    return fit.library, fit.device, fit.level


def base_of(fit: CollectiveFit) -> str:
    """The operation without its layout."""
    return fit.operation.partition(" ")[0]


def bytes_on_a_link(fit: CollectiveFit) -> float | None:
    """Multiples of the buffer that a link carries one after another where the buffer is large.

    By that algorithm of the library's likeliest choice that sends the fewest. None of an operation
    without a model, and of algorithms that NCCL was told: protocols have bandwidths of their own.
    """
    name = fit.operation.removesuffix(" graph")
    if name in ALGORITHMS:
        menu, shape = ALGORITHMS[name], shape_of_fit(fit)
        some = [menu[one] for one in choices_of(name, fit.library)[0]]
        return min(
            one.message(shape, Links(ANY_LINKS.value)) * one.steps(shape)
            for one in some
            if not one.half_pipelined
        )
    if base_of(fit) in ALGORITHMS:
        return None
    if base_of(fit) == HALO:
        return float(neighbours(grid_of(name, fit.ranks)))
    try:
        return steps_and_volume(name, fit.ranks)[1]
    except InputError:
        return None


def _shared(fit: CollectiveFit, known: Sequence[Source]) -> CollectiveFit:
    """The law with the growth beyond its largest size that others say; itself if it is one of them."""
    volume = bytes_on_a_link(fit)
    if not volume or any(fit is each.fit for each in known):
        return fit
    shape = shape_of_fit(fit)
    others = sources(shape, known)
    apart = min(shape.doublings(shape_of_fit(each.fit)) for each in others)
    said = pooled([each.slope_log for each in others], apart)
    fastest = min(each.slope_log for each in known) - math.log(NOISE)
    reach = Z_95 * said.deviation
    ends = (max(said.log - reach, fastest), said.log, said.log + reach)
    low, value, high = (volume * math.exp(end) for end in ends)
    return fit.model_copy(
        update={
            "slope_s_per_byte": Estimate(value=value, low=low, high=high),
            "slope_from": [each.operation for each in others],
            "beyond": list(grown_beyond(fit.points[-1], others, volume, apart)),
            **_line_errors(fit, value),
        }
    )


def sources(shape: GroupShape, known: Sequence[Source]) -> list[Source]:
    """Of every operation the nearest layout, by names."""
    nearest: dict[str, Source] = {}
    for each in sorted(known, key=lambda each: shape.doublings(shape_of_fit(each.fit))):
        nearest.setdefault(each.operation, each)
    return [nearest[name] for name in sorted(nearest)]


def pooled(logs: Sequence[float], doublings: float = 0.0) -> Said:
    """What one more operation takes where others say `logs`, the nearest of so many doublings away.

    The deviation is that of the public logs, which count as PRIOR_OPERATIONS, and theirs.
    """
    middle, count = median(logs), len(logs)
    squares = math.fsum((log - middle) ** 2 for log in logs)
    variance = PRIOR_OPERATIONS * OPERATION_DEVIATION**2 + squares
    variance *= (1 + 1 / count) / (PRIOR_OPERATIONS + count - 1)
    if doublings:
        variance += DEVIATION**2 + DOUBLING_DEVIATION**2 * doublings
    return Said(middle, math.sqrt(variance))


def grown_beyond(
    last: CollectivePoint, others: Sequence[Source], volume: float, doublings: float
) -> Iterator[SharedPoint]:
    """Sizes beyond the last measured one, up to the largest of others: its time, and their growth.

    That is the median of what others take longer for as many bytes on a link; of those without a gap
    between their sizes, if there are any. The last size's own error counts for its share of the time.
    """
    time = last.seconds
    if time.value <= 0:
        return
    dense = [each for each in others if each.is_dense(volume * last.nbytes)] or others
    own = math.log(time.high / time.value) / Z_95
    least = time.value
    for nbytes in sizes_beyond(last.nbytes, others, volume):
        grown = (
            time.value + each.seconds(volume * nbytes) - each.seconds(volume * last.nbytes)
            for each in dense
        )
        said = pooled([math.log(max(time.value, seconds)) for seconds in grown], doublings)
        least = max(least, math.exp(said.log))
        factor = math.exp(Z_95 * math.hypot(said.deviation, own * time.value / least))
        yield SharedPoint(nbytes=nbytes, seconds=Estimate.within_factor(least, factor))


def sizes_beyond(last: int, others: Sequence[Source], volume: float) -> list[int]:
    """Bytes of a buffer, STEP times one another, to where a link carries the most that was measured."""
    top = round(max(each.most for each in others) / volume)
    count = math.ceil(math.log(top / last, STEP)) if top > last else 0
    return [round(top / STEP**k) for k in range(count)][::-1]


def _line_errors(fit: CollectiveFit, slope: float) -> dict[str, float]:
    """How far the line of intercept and slope is off at the measured sizes."""
    sizes = np.array([point.nbytes for point in fit.points], dtype=float)
    times = np.array([point.seconds.value for point in fit.points])
    line = fit.intercept_s.value + slope * sizes
    return {
        "mean_relative_error": float(np.mean(np.abs(line / times - 1.0))),
        "line_error_factor": error_factor(line, times),
    }
