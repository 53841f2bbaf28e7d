"""What one operation by one group costs, by each kind of law in the parameter file.

From the surest to the least sure: a measured size, the law of this p, the structural law of several p,
the nearest p scaled by steps and volume (formulas.md, "structural"). A `Law` is made once for a layout
and then asked for many sizes.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fitting.algorithms import ALGORITHMS, shape_of
from fitting.parameters import OTHER_LIBRARIES, TRAINING_LIBRARIES, Parameters
from fitting.parameters_collective import CollectiveFit, StructuralFit
from oracle.cost import Cost, measured, widened, within_factor
from oracle.projection import Basis
from oracle.traffic import Message

UNDER_ALL = TRAINING_LIBRARIES[-1]
HALO, HIERARCHICAL = "halo", "hierarchical_allreduce"
# each rank has an equal part of m, of whole float32 items: what was sent is rounded up to that
SHARED = ("allgather", "reduce_scatter", "all_to_all")
ITEM_BYTES = 4


@dataclass(frozen=True, slots=True)
class Timed:
    """A cost, and how much of it is the bytes' and not the start-up: what contention multiplies."""

    cost: Cost
    byte_s: float

    def times(self, factor: float) -> Timed:
        """So many of it, one after the other."""
        return Timed(self.cost.times(factor), self.byte_s * factor)

    def unsure(self, factor: float, source: str, *notes: str) -> Timed:
        """The same, right only up to a factor more; extrapolated, and said."""
        cost = self.cost
        low, high = cost.low / factor, cost.high * factor
        errors = ((source, cost.seconds - low, high - cost.seconds),)
        return Timed(Cost(cost.seconds, "extrapolated", errors, (*cost.notes, *notes)), self.byte_s)


Law = Callable[[int], Timed]  # of m bytes


def unsure(law: Law, factor: float, source: str, *notes: str) -> Law:
    """The same law, right only up to a factor more; extrapolated, and said."""
    return lambda nbytes: law(nbytes).unsure(factor, source, *notes)


def repeated(law: Law, times: float) -> Law:
    """The same so many times, one after the other."""
    return lambda nbytes: law(nbytes).times(times)


def less_sure(law: Law, note: str) -> Law:
    """The same law of what is not quite the same: no more than an interpolation, and said."""

    def found(nbytes: int) -> Timed:
        timed = law(nbytes)
        return Timed(timed.cost.at_best("interpolated").noted(note), timed.byte_s)

    return found


def library_of(parameters: Parameters) -> tuple[str, tuple[str, ...]]:
    """The library that training uses, or the first other one that was measured; and a note on it."""
    found = {fit.library for fit in parameters.collectives if fit.at_home}
    for name in (*TRAINING_LIBRARIES, *OTHER_LIBRARIES):
        if name in found:
            mine = name in TRAINING_LIBRARIES
            return name, () if mine else (
                f"no {UNDER_ALL} was measured: operations are those of {name}",
            )
    return TRAINING_LIBRARIES[0], ()


def names_of(message: Message) -> tuple[str, ...]:
    """What fits of the very operation are called (fitting/collective_rows.py, names_layout)."""
    if message.operation == HIERARCHICAL:
        return (f"{HIERARCHICAL} inner={message.inner}",)
    if message.operation != HALO:
        return (message.operation,)
    # along what is not cut there are no neighbours: 4x1 is exchanged as 4 are
    cut = tuple(parts for parts in message.grid if parts > 1)
    short = HALO if len(cut) < 2 else f"{HALO} {as_words(cut)}"
    return (f"{HALO} {as_words(message.grid)}", short) if cut != message.grid else (short,)


def as_words(grid: Sequence[int]) -> str:
    """2x4."""
    return "x".join(map(str, grid))


def sent_bytes(operation: str, nbytes: int, ranks: int) -> int:
    """m as it is sent: where each rank has an equal part, rounded up to whole items of all."""
    if operation not in SHARED:
        return nbytes
    whole = ITEM_BYTES * ranks
    return -(-nbytes // whole) * whole


def direct(fit: CollectiveFit) -> Law:
    """On the p that was measured: its point, else its law; outside its sizes wider and noted."""
    sizes = [point.nbytes for point in fit.points]
    times = [point.seconds for point in fit.points]
    smallest, largest = fit.range_nbytes
    intercept_s, between = fit.intercept_s.value, fit.interpolation_error_factor
    source = f"{fit.operation} on {fit.ranks} in a {fit.level}"
    described = max(fit.pieces_error_factor or fit.line_error_factor, between)
    # a measured time may be nothing in the file: its interval says nothing then
    lows = [time.low / time.value if time.value else 0.0 for time in times]
    highs = [time.high / time.value if time.value else 1.0 for time in times]

    def found(nbytes: int) -> Timed:
        above = bisect_left(sizes, nbytes)
        if above < len(sizes) and sizes[above] == nbytes:
            cost = measured(times[above])
            return Timed(cost, max(0.0, cost.seconds - intercept_s))
        # the last piece of a law may begin below zero: no message takes less than nothing
        seconds = max(0.0, fit.seconds(nbytes))
        if smallest < nbytes < largest:
            low = seconds * min(lows[above - 1], lows[above]) / between
            high = seconds * max(highs[above - 1], highs[above]) * between
            cost = Cost(seconds, "interpolated", ((source, seconds - low, high - seconds),))
        else:
            factor = widened(described, nbytes, largest)
            cost = within_factor(seconds, factor, "extrapolated", source).noted(
                f"{_article(fit.operation)} of {nbytes} B is outside the measured {smallest} to "
                f"{largest} B: the fitted law"
            )
        return Timed(cost, max(0.0, seconds - intercept_s))

    return found


def structural(law: StructuralFit, ranks: int, nodes: int) -> Law:
    """By the law of several measured p, its error once more for every doubling beyond them."""
    fewest, most = law.ranks[0], law.ranks[-1]
    smallest, largest = law.range_nbytes
    doublings = max(math.log2(ranks / most), math.log2(fewest / ranks), 0.0)
    error = law.error_factor ** max(1.0, doublings)
    if law.held_out_error is None:  # two p say nothing of which algorithm a third has
        error *= 2.0
    source, start = f"{law.operation} in a {law.level}", law.seconds(0, ranks, nodes)
    note = (
        f"{law.operation} on {ranks} PEs was not measured: from the law of {fewest} to {most} PEs"
    )

    def found(nbytes: int) -> Timed:
        inside = fewest <= ranks <= most and smallest <= nbytes <= largest
        factor = widened(widened(error, nbytes, largest), smallest, max(nbytes, 1))
        seconds = law.seconds(nbytes, ranks, nodes)
        basis: Basis = "interpolated" if inside else "extrapolated"
        cost = within_factor(seconds, factor, basis, source).noted(note)
        return Timed(cost, max(0.0, seconds - start))

    return found


def scaled(fit: CollectiveFit, ranks: int) -> Law:
    """From another p that was measured, by the default algorithm: steps alpha + volume m beta."""
    algorithm = next(iter(ALGORITHMS[fit.operation]))
    # fitting/hockney.py has the same, and numpy
    steps, volume = shape_of(fit.operation, algorithm, ranks)
    start, per_byte = steps * fit.alpha_s.value, volume * fit.beta_s_per_byte.value
    apart, largest = max(ranks / fit.ranks, fit.ranks / ranks), fit.range_nbytes[1]
    source = f"{fit.operation} in a {fit.level}"
    note = (
        f"{fit.operation} on {ranks} PEs was not measured: extrapolated from {fit.ranks} by the "
        f"{algorithm}"
    )

    def found(nbytes: int) -> Timed:
        by_bytes = per_byte * nbytes
        factor = widened(fit.line_error_factor, apart * max(1.0, nbytes / largest), 1.0)
        cost = within_factor(start + by_bytes, factor, "extrapolated", source).noted(note)
        return Timed(cost, by_bytes)

    return found


def halo(fits: Sequence[CollectiveFit], grid: tuple[int, ...]) -> Law:
    """From the halo exchange whose PEs have most nearly as many neighbours, by the messages of each."""
    wanted, ranks = neighbours(grid), math.prod(grid)
    fit = min(fits, key=lambda f: (abs(math.log(neighbours(grid_of(f)) / wanted)),
                                   abs(math.log(f.ranks / ranks))))  # fmt: skip
    before = neighbours(grid_of(fit))
    law, share = direct(fit), wanted / before
    note = (
        f"halo on {as_words(grid)} PEs was not measured: from that of {as_words(grid_of(fit))}, of "
        f"which a PE has {before} neighbour(s) for {wanted}"
    )
    if share == 1:
        return less_sure(law, note)
    # messages that are posted at once may overlap, or not: then their number is the factor
    factor = max(share, 1 / share)
    return unsure(repeated(law, share), factor, f"halo in a {fit.level}", note)


def neighbours(grid: Sequence[int]) -> int:
    """The most neighbours of a PE in a grid that does not wrap: 1 along 2 parts, 2 along more."""
    return sum(min(parts - 1, 2) for parts in grid)


def grid_of(fit: CollectiveFit) -> tuple[int, ...]:
    """The grid of a halo's fit, from its name ("halo 2x4"); (p,) of a plain one."""
    detail = fit.operation.removeprefix(HALO).strip()
    return tuple(map(int, detail.split("x"))) if detail else (fit.ranks,)


def nearest(fits: Sequence[CollectiveFit], ranks: int) -> CollectiveFit:
    """The fit whose p is nearest on a scale of factors."""
    return min(fits, key=lambda fit: abs(math.log(fit.ranks / ranks)))


def _article(operation: str) -> str:
    return f"an {operation}" if operation[0] in "aeiou" else f"a {operation}"
