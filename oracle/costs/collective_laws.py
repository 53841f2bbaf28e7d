"""Cost of one operation by one group, under each kind of law.

Surest first: a measured size, the law of this layout, and the structural law, which scales the layouts
that were measured. A `Law` is made once per layout and then evaluated at many sizes.

A measurement is valid for its own layout alone: ranks, nodes, and ranks on a node. Ten nodes of one rank
and 8 + 2 ranks are both p = 10, and differed by a factor of 7.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from calib.fitting.parameters.algorithms import GroupShape
from calib.fitting.parameters.capacity import Least
from calib.fitting.parameters.collectives import CollectiveFit
from calib.fitting.parameters.halos import HALO, grid_of, neighbours
from calib.fitting.parameters.structural import ScaledLaw
from calib.fitting.rounded_sizes import is_alike
from calib.foundation.records import Z_95
from calib.foundation.words import several
from calib.oracle import origins
from calib.oracle.cost import Cost, measured, widened, within_factor
from calib.oracle.costs.levels import doublings
from calib.oracle.layout.traffic import Message
from calib.oracle.projection import Basis
from calib.oracle.sources import FROM, LAYOUT_LAWS, MACHINE, SIZE_LAWS, Error, grouped, source_of

HIERARCHICAL = "hierarchical_allreduce"
# error factor per decade beyond the largest size: of the public logs, sizes predicted from those up to a
# 4th, 16th or 64th of them lay within it in 93, 95 and 98%
BEYOND_FACTOR = 4.0
# uncertainty per doubling of nodes, or of ranks on a node, beyond the measured ones: twice the ranks of
# a node may use twice the links, or share the same ones
LAYOUT_FACTOR = 2.0
ROUNDED = 1.01  # a size as a tool rounds it


@dataclass(frozen=True, slots=True)
class TimedBytes:
    """A cost and its part that grows with the bytes, which contention multiplies."""

    cost: Cost
    byte_s: float

    def times(self, factor: float) -> TimedBytes:
        """This cost `factor` times in sequence."""
        return TimedBytes(self.cost.times(factor), self.byte_s * factor)

    def unsure(self, factor: float, source: str, *notes: str) -> TimedBytes:
        """This cost, extrapolated: an interval wider by `factor`, and more notes."""
        cost = self.cost
        if len(cost.errors) > 1:  # told apart
            cost = cost._replace(errors=grouped(cost.errors))
        low, high = cost.low / factor, cost.high * factor
        errors = ((source, cost.seconds - low, high - cost.seconds),)
        return TimedBytes(
            Cost(cost.seconds, "extrapolated", errors, (*cost.notes, *notes)), self.byte_s
        )


Law = Callable[[int], TimedBytes]  # of m bytes


def unsure(law: Law, factor: float, source: str, *notes: str) -> Law:
    """The law, extrapolated: intervals wider by `factor`, and more notes."""
    return lambda nbytes: law(nbytes).unsure(factor, source, *notes)


def repeated(law: Law, times: float) -> Law:
    """The law `times` times in sequence."""
    return lambda nbytes: law(nbytes).times(times)


def less_sure(law: Law, note: str) -> Law:
    """A law borrowed from a slightly different case: at best interpolated, with a note."""

    def found(nbytes: int) -> TimedBytes:
        timed = law(nbytes)
        return TimedBytes(timed.cost.at_best("interpolated").noted(note), timed.byte_s)

    return found


def names_of(message: Message) -> tuple[str, ...]:
    """Names of this operation's fits (name_of in fitting/sections/collective_rows.py)."""
    if message.operation == HIERARCHICAL:
        return (f"{HIERARCHICAL} inner={message.inner}",)
    if message.operation != HALO:
        return (message.operation,)
    # an uncut dimension has no neighbours: 4x1 exchanges like 4
    cut = tuple(parts for parts in message.grid if parts > 1)
    short = HALO if len(cut) < 2 else f"{HALO} {as_words(cut)}"
    return (f"{HALO} {as_words(message.grid)}", short) if cut != message.grid else (short,)


def as_words(grid: Sequence[int]) -> str:
    """A grid as 2x4."""
    return "x".join(map(str, grid))


def direct(fit: CollectiveFit, told_apart: bool = False) -> Law:
    """The law of a measured layout: a point, else the fit; wider outside its sizes.

    `told_apart` says which sizes an error comes from (oracle/sensitivity.py).

    Below the smallest size the interval is at least that of the start-up; beyond the largest it grows
    by BEYOND_FACTOR with every decade, where no other operation says more.
    """
    sizes = [point.nbytes for point in fit.points]
    times = [point.seconds for point in fit.points]
    smallest, largest = fit.range_nbytes
    start, between = fit.intercept_s, fit.interpolation_error_factor
    source = source_of(SIZE_LAWS, f"{fit.operation} on {fit.ranks} in a {fit.level}")
    grown = f", grown as {several(fit.slope_from)}" if fit.slope_from else ""
    # a measured time may be 0, whose interval has no relative width
    lows = [time.low / time.value if time.value else 0.0 for time in times]
    highs = [time.high / time.value if time.value else 1.0 for time in times]

    def name_at(place: int) -> str:
        return origins.collective(fit.operation, sizes[place], fit.ranks, fit.library)

    def by_neighbours(seconds: float, low: float, high: float, above: int) -> tuple[Error, ...]:
        """The error between two sizes as of the law, and of the less sure size to each side."""
        places = above - 1, above
        down, up = seconds - seconds / between, seconds * between - seconds
        lowest, highest = min(places, key=lows.__getitem__), max(places, key=highs.__getitem__)
        return (
            (source, down, up),
            (f"{source}{FROM}{name_at(lowest)}", seconds - low - down, 0.0),
            (f"{source}{FROM}{name_at(highest)}", 0.0, high - seconds - up),
        )

    def found(nbytes: int) -> TimedBytes:
        above = bisect_left(sizes, nbytes)
        for near in (above, above - 1):  # the size itself, or as a tool rounded it
            if 0 <= near < len(sizes) and is_alike(fit.operation, fit.ranks, sizes[near], nbytes):
                cost = measured(
                    times[near], origins.of_machine(name_at(near)) if told_apart else MACHINE
                )
                return TimedBytes(cost, max(0.0, cost.seconds - start.value))
        seconds = fit.seconds(nbytes)
        if smallest < nbytes < largest:
            low = seconds * min(lows[above - 1], lows[above]) / between
            high = seconds * max(highs[above - 1], highs[above]) * between
            cost = Cost(seconds, "interpolated", ((source, seconds - low, high - seconds),))
            if told_apart:
                cost = cost._replace(errors=by_neighbours(seconds, low, high, above))
        else:
            down, up = _beyond(fit, nbytes)
            low, high = seconds / max(between, down), seconds * max(between, up)
            if nbytes < smallest:
                low = min(low, max(0.0, seconds - (start.value - start.low)))
                high = max(high, seconds + (start.high - start.value))
            errors = ((source, seconds - low, high - seconds),)
            cost = Cost(seconds, "extrapolated", errors).noted(
                f"{_article(fit.operation)} of {nbytes} B is outside the measured {smallest} to "
                f"{largest} B: the fitted law{grown}"
            )
        return TimedBytes(cost, max(0.0, seconds - start.value))

    return found


def _beyond(fit: CollectiveFit, nbytes: int) -> tuple[float, float]:
    """Factors by which a time may be less or more: beyond the sizes that were measured, or shared."""
    exponent = math.log10(BEYOND_FACTOR)
    factor = max(1.0, nbytes / fit.points[-1].nbytes) ** exponent
    if not fit.beyond or factor == 1:
        return factor, factor
    after = next((point for point in fit.beyond if point.nbytes >= nbytes), fit.beyond[-1])
    further = max(1.0, nbytes / after.nbytes) ** exponent
    value, low, high = after.seconds.numbers
    down = further * value / low if low > 0 else factor
    return min(factor, down), min(factor, further * high / value)


def structural(on: ScaledLaw, least: Callable[[int], Least]) -> Law:
    """The law of the measured layouts on another one, and no less than `least` of m bytes.

    It interpolates where nodes or ranks per node, one of them alone, lies between two measured ones.
    """
    law, shape, used = on.law, on.shape, list(on.fits)
    smallest, largest = law.range_nbytes
    between = _is_between(used, shape)
    source = source_of(LAYOUT_LAWS, f"{law.operation} in a {law.level}")
    start = on.expected(min(smallest, 1.0)).seconds
    measured_on = ", ".join(_layout_words(each) for each in used)
    note = f"{law.operation} on {shape.words} was not measured: scaled from {measured_on}"

    def found(nbytes: int) -> TimedBytes:
        seconds, deviation, algorithms = on.expected(max(nbytes, 1))
        inside = between and smallest <= nbytes * ROUNDED and nbytes <= largest * ROUNDED
        factor = math.exp(Z_95 * deviation)
        factor = widened(widened(factor, nbytes, largest), smallest, max(nbytes, 1))
        basis: Basis = "interpolated" if inside else "extrapolated"
        bound, by = least(nbytes)
        how = f"{note}, by {algorithms}"
        if bound > seconds:
            seconds, how = bound, f"{how}; the least that {by} take, as the cluster declares them"
        cost = within_factor(seconds, factor, basis, source).noted(how)
        return TimedBytes(cost, max(0.0, seconds - start))

    return found


def _layout_words(shape: GroupShape) -> str:
    """`8`, `8 on 2 nodes`."""
    return f"{shape.ranks}" + (f" on {shape.nodes} nodes" if shape.nodes > 1 else "")


def _is_between(layouts: Sequence[GroupShape], shape: GroupShape) -> bool:
    """Whether this layout lies between two measured ones that differ from it in one number only."""
    along_nodes = [x.nodes for x in layouts if x.ranks_per_node == shape.ranks_per_node]
    along_ranks = [x.ranks_per_node for x in layouts if x.nodes == shape.nodes]
    return shape.is_even and any(
        measured and min(measured) <= value <= max(measured)
        for value, measured in ((shape.nodes, along_nodes), (shape.ranks_per_node, along_ranks))
    )


def layout_doublings(shape: GroupShape, fit: CollectiveFit) -> float:
    """Doublings of ranks, nodes or ranks per node from a measured layout to `shape`.

    0 if the file does not state the layout, or at another level, which has its own note.
    """
    if not fit.nodes or (shape.nodes == 1) != (fit.nodes == 1):
        return 0.0
    return doublings(shape, (fit.ranks, fit.nodes, fit.ranks_per_node or shape.ranks_per_node))


def halo(fits: Sequence[CollectiveFit], grid: tuple[int, ...], shape: GroupShape) -> Law:
    """The halo exchange with the nearest number of neighbours, scaled by the number of messages."""
    wanted = neighbours(grid)
    fit = min(
        fits,
        key=lambda f: (
            abs(math.log(neighbours(grid_of(f.operation, f.ranks)) / wanted)),
            layout_doublings(shape, f),
            abs(math.log(f.ranks / shape.ranks)),
        ),
    )
    measured_grid = grid_of(fit.operation, fit.ranks)
    before, apart = neighbours(measured_grid), layout_doublings(shape, fit)
    law, share = direct(fit), wanted / before
    among = f" on {shape.nodes} nodes" if shape.nodes > 1 else ""
    note = (
        f"halo on {as_words(grid)} ranks{among} was not measured: from that of "
        f"{as_words(measured_grid)}{fit.among}, of which a rank has {before} neighbour(s) for "
        f"{wanted}"
    )
    if share == 1 and fit.ranks == shape.ranks and not apart:
        return less_sure(law, note)
    # messages posted at once may overlap or not, which is worth their number
    factor = max(share, 1 / share) * LAYOUT_FACTOR**apart
    return unsure(
        repeated(law, share), factor, source_of(LAYOUT_LAWS, f"halo in a {fit.level}"), note
    )


def nearest(fits: Sequence[CollectiveFit], shape: GroupShape) -> CollectiveFit:
    """The fit with the nearest ranks on a node, and among those the nearest p, as ratios.

    The ranks of a node share its links, so it is safer to extrapolate to more nodes.
    """

    def distance(fit: CollectiveFit) -> tuple[float, float]:
        alike = shape._replace(ranks=fit.ranks, nodes=fit.nodes) if shape.nodes > 1 else shape
        return layout_doublings(alike, fit), abs(math.log2(fit.ranks / shape.ranks))

    return min(fits, key=distance)


def _article(operation: str) -> str:
    return f"an {operation}" if operation[0] in "aeiou" else f"a {operation}"
