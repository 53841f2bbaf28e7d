"""Laws of a collective on layouts that were not measured: measured sweeps, scaled by an algorithm.

An algorithm of S(layout) steps that sends v(layout) m at each takes S g(v m), whatever g: time per step
is a function of the message, in which changes of protocol, pipelining and cold caches are as they were
measured. So a sweep on one layout says what another takes (formulas.md, "structural": Hockney's line is
the case g(x) = alpha + x beta). A library takes the fastest of the algorithms that it has.

Several sweeps are averaged with the weights of ordinary kriging: what layouts have in common beyond
steps and bytes drifts with doublings of nodes and of ranks on a node.

References
----------
Cressie, Statistics for Spatial Data (1993), section 3.2 (ordinary kriging).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from statistics import NormalDist, median
from typing import NamedTuple

from pydantic import Field, model_validator

from calib.fitting.parameters.algorithms import ALGORITHMS, BETWEEN, Choice, GroupShape, Links
from calib.fitting.parameters.collectives import CollectiveFit, CollectiveLaw
from calib.fitting.parameters.rules import RULES
from calib.fitting.parameters.scaling import (
    UNMEASURED,
    RuledSweep,
    log_seconds,
    rule_change,
    shape_of_fit,
    swept,
)
from calib.foundation.quantities import Factor, Growth, Nbytes, Ranks, Ratio
from calib.foundation.records import Z_95, Estimate, RatioEstimate, Record
from calib.foundation.words import several

# Of the public logs of four clusters (docs/fitting.md, "Structural laws"): one standard deviation of the
# logarithm of time on a layout that was not measured, and for each doubling
DEVIATION, DOUBLING_DEVIATION = 0.07, 0.10
NEAREST = 4  # layouts that another is scaled from
UNCHECKED = 2.0  # times as much where one layout alone was measured: nothing says how it scales
# where ranks per node did not vary: machines have a link for each GPU, or for each two or four
ANY_LINKS = Estimate(value=0.75, low=0.0, high=1.0)
TINY = 1e-12
OUTSIDE = math.log(2)  # how far outside the sizes by an algorithm it is still scaled from them
LIKELY = 0.5  # a rule that is likelier than not is named
WEIGHTS_OFF = 1e-3  # a sum of rounded weights
Z_90 = NormalDist().inv_cdf(0.95)


class ScaledLayout(Record):
    """A measured layout, and how its times compare with what the others say of it."""

    ranks: Ranks = Field(description="p of a group")
    nodes: Ranks = Field(description="that the group spans")
    ranks_per_node: Ranks = Field(description="the most of the group on one node")
    factor: Ratio | None = Field(
        default=None,
        description="median of its times / what the other layouts say; null: the only layout",
    )
    outlying: bool = Field(
        default=False, description="whether it is no draw of the same machine, and feeds no law"
    )

    @property
    def shape(self) -> GroupShape:
        """The layout of a group."""
        return GroupShape(self.ranks, self.nodes, self.ranks_per_node)


class StructuralBand(Record):
    """Around one size, what the library seems to do: weights of the choices, which sum to 1."""

    nbytes: Nbytes = Field(description="size of the whole buffer, B")
    weights: dict[str, Ratio] = Field(
        min_length=1,
        description="algorithms, the fastest of which is taken ('ring or tree') -> weight",
    )

    @cached_property
    def choices(self) -> list[tuple[Choice, float]]:
        """(algorithms, weight) of each choice."""
        return [(tuple(names.split(BETWEEN)), weight) for names, weight in self.weights.items()]

    @property
    def likeliest(self) -> str:
        """The choice with the largest weight."""
        return max(self.weights, key=lambda name: self.weights[name])


class StructuralFit(CollectiveLaw):
    """One operation of one library, device and level on any layout, from the direct laws of some.

    Seconds are those of the direct laws on `layouts`, scaled. Deviations are of the logarithm of
    time, one standard deviation.
    """

    layouts: list[ScaledLayout] = Field(min_length=1, description="that were measured")
    links_exponent: RatioEstimate = Field(
        description="r ranks of a node have r ** this links between nodes: 0 one, 1 one each"
    )
    shared_links: Ratio = Field(
        default=0.0,
        description="that all nodes have together, in links of a node, as the cluster declares it or "
        "as the times show it; 0 no such",
    )
    bands: list[StructuralBand] = Field(
        min_length=1, description="what the library does around one size each, in their order"
    )
    rules: dict[str, Ratio] = Field(
        default_factory=dict,
        description="rule by which the library takes an algorithm -> how likely it goes by it",
    )
    deviation: Growth = Field(description="of any other layout")
    doubling_deviation: Growth = Field(
        description="more, for each doubling of nodes or of ranks on a node (its square adds up)"
    )
    held_out_error: Ratio | None = Field(
        description="mean relative error of the largest layout that is not outlying, predicted "
        "from the others; null where there is one alone"
    )

    @model_validator(mode="after")
    def _possible(self) -> StructuralFit:
        for each in self.layouts:
            if not each.ranks_per_node <= each.ranks or each.nodes > each.ranks or each.ranks < 2:
                raise ValueError(f"{each.shape} is no group of ranks")
        if all(each.outlying for each in self.layouts):
            raise ValueError("every layout is outlying")
        if not 0 <= self.links_exponent.low <= self.links_exponent.high <= 1:
            raise ValueError("links_exponent is not within 0 to 1")
        menu = ALGORITHMS.get(self.operation, {})
        for band in self.bands:
            for choice, _ in band.choices:
                if unknown := [part for part in choice if part not in menu]:
                    raise ValueError(f"{self.operation!r} has no algorithm {unknown[0]!r}")
            if abs(math.fsum(band.weights.values()) - 1.0) > WEIGHTS_OFF:
                raise ValueError(f"weights of {band.nbytes:g} B do not sum to 1")
        for rule in self.rules:
            if self.operation not in RULES.get(rule, {}):
                raise ValueError(f"no rule {rule!r} for {self.operation!r}")
        if math.fsum(self.rules.values()) > 1.0 + WEIGHTS_OFF:
            raise ValueError("weights of the rules sum to more than 1")
        sizes = [band.nbytes for band in self.bands]
        if sizes != sorted(set(sizes)) or sizes[0] <= 0:
            raise ValueError("bands are not in the order of their nbytes, from above 0 on")
        return self

    @property
    def links(self) -> Links:
        """How ranks and nodes share links."""
        return Links(self.links_exponent.value, self.shared_links)

    @property
    def range_nbytes(self) -> tuple[float, float]:
        """The sizes between which the law is an interpolation."""
        return self.bands[0].nbytes, self.bands[-1].nbytes

    @property
    def ranks(self) -> list[int]:
        """p of each layout."""
        return [each.ranks for each in self.layouts]

    @property
    def usual(self) -> list[GroupShape]:
        """The layouts that are not outlying."""
        return [each.shape for each in self.layouts if not each.outlying]

    @property
    def outlying_words(self) -> list[str]:
        """A sentence on each outlying layout."""
        others = several([shape.words for shape in self.usual])
        return [
            f"{self.operation} on {each.shape.words} takes {each.factor or 1.0:.2g} times what "
            f"{others} say, so it feeds no other layout"
            for each in self.layouts
            if each.outlying
        ]

    @property
    def error_factor(self) -> Factor:
        """95% of times on twice the nodes lie within the law / and * this."""
        return math.exp(Z_95 * math.hypot(self.deviation, self.doubling_deviation))

    def variance(self, one: GroupShape, other: GroupShape) -> float:
        """Of the logarithm of what two layouts differ by."""
        doublings = one.doublings(other)
        if not doublings:
            return 0.0
        return self.deviation**2 + self.doubling_deviation**2 * doublings

    def on(self, shape: GroupShape, fits: Sequence[CollectiveFit]) -> ScaledLaw | None:
        """The law on one layout. `fits`: the direct laws; None where none is of a layout of this."""
        known = {shape_of_fit(fit): fit for fit in fits if self.is_of(fit)}
        used = [each for each in self.usual if each in known]
        return ScaledLaw(self, shape, {each: known[each] for each in used}) if used else None

    def around(self, nbytes: float) -> StructuralBand:
        """The band that is nearest to a size, as ratios."""
        nbytes = max(nbytes, 1.0)
        above = bisect_left(self._sizes, nbytes)
        near = self.bands[max(above - 1, 0) : above + 1]
        return min(near, key=lambda band: max(band.nbytes / nbytes, nbytes / band.nbytes))

    @cached_property
    def _sizes(self) -> list[float]:
        return [band.nbytes for band in self.bands]

    def algorithm(self, ranks: int, nbytes: float) -> str:
        """What the library does, in words: `ring or tree`, `ring by Open MPI's rule`."""
        for rule, share in self.rules.items():
            if share > LIKELY:
                return f"{RULES[rule][self.operation](ranks, nbytes)} by {rule}"
        return self.around(nbytes).likeliest

    def is_of(self, fit: CollectiveFit) -> bool:
        """Whether a direct law is of the same operation, library, device and level."""
        mine = (self.operation, self.library, self.device, self.level)
        return mine == (fit.operation, fit.library, fit.device, fit.level)


def default_law(fits: Sequence[CollectiveFit], shared_links: float = 0.0) -> StructuralFit:
    """The law of direct laws that were never compared: the algorithm that formulas.md assumes."""
    first = fits[0]
    shapes = sorted({shape_of_fit(fit) for fit in fits})
    algorithm = next(iter(ALGORITHMS[first.operation]))
    return StructuralFit(
        operation=first.operation,
        library=first.library,
        device=first.device,
        level=first.level,
        layouts=[ScaledLayout(**shape._asdict()) for shape in shapes],
        links_exponent=ANY_LINKS,
        shared_links=shared_links,
        bands=[
            StructuralBand(nbytes=max(end, 1), weights={algorithm: 1.0})
            for end in sorted({m for fit in fits for m in fit.range_nbytes})
        ],
        deviation=UNCHECKED * DEVIATION,
        doubling_deviation=UNCHECKED * DOUBLING_DEVIATION,
        held_out_error=None,
    )


class Expected(NamedTuple):
    """Seconds with the standard deviation of their logarithm, and what the library then does."""

    seconds: float
    deviation: float
    algorithms: str


class ScaledLaw:
    """A structural law on one layout.

    Parameters
    ----------
    law
        The structural law.
    shape
        The layout that is asked for.
    known
        Direct laws by their layouts; at least one.
    """

    def __init__(
        self, law: StructuralFit, shape: GroupShape, known: Mapping[GroupShape, CollectiveFit]
    ) -> None:
        self.law, self.shape, self.known = law, shape, known
        self.fits = fits = {each: known[each] for each in sorted(_nearest(shape, known))}
        self.weights, self._variance = kriged(law, shape, list(fits))
        # how well the times themselves are known
        self._variance += max(_measured_deviation(fit) for fit in fits.values()) ** 2
        # 90% reaches what a nearer outlying layout says: it may be right of more nodes
        closest = min(map(shape.doublings, fits))
        nearer = [
            abs(math.log(each.factor))
            for each in law.layouts
            if each.outlying and each.factor and shape.doublings(each.shape) < closest
        ]
        self._variance += (max(nearer, default=0.0) / Z_90) ** 2
        # the ends of the exponent, which is as likely anywhere between, hold 90%
        around = [abs(math.log2(shape.ranks_per_node / each.ranks_per_node)) for each in fits]
        exponent = law.links_exponent
        unsure = math.log(2) * min(around) * (exponent.high - exponent.low) / (2 * Z_90)
        self._variance += unsure**2 if shape.nodes > 1 else 0.0

    def expected(self, nbytes: float) -> Expected:
        """Seconds of m bytes > 0; where no rule has another algorithm, no less than on fewer nodes."""
        band = self.law.around(nbytes)
        logs = [(self._logarithm(choice, nbytes), weight) for choice, weight in band.choices]
        free, variance = _mixed(logs)
        free = max(free, self._least(nbytes))
        ruled = [
            (*self._ruled(name, nbytes, free), share) for name, share in self.law.rules.items()
        ]
        rest = 1.0 - math.fsum(share for _, _, share in ruled)
        mean, between = _mixed([(free, rest), *((log, share) for log, _, share in ruled)])
        variance += between + math.fsum(share * unsure for _, unsure, share in ruled)
        words = self.law.algorithm(self.shape.ranks, nbytes)
        return Expected(math.exp(mean), math.sqrt(self._variance + variance), words)

    @cached_property
    def _sweeps(self) -> dict[str, dict[GroupShape, RuledSweep]]:
        """What each rule says of the known layouts."""
        law, operation = self.law, self.law.operation
        return {
            name: {
                of: RuledSweep.by(RULES[name][operation], fit, of, operation, law.links)
                for of, fit in self.known.items()
            }
            for name in law.rules
        }

    def _ruled(self, name: str, nbytes: float, free: float) -> tuple[float, float]:
        """(ln seconds, more variance) where a rule holds; `free`: what is said without it."""
        rule, sweeps = RULES[name][self.law.operation], self._sweeps[name]
        new = rule(self.shape.ranks, nbytes)
        if all(rule(of.ranks, nbytes) == new for of in self.fits):
            return free, 0.0
        ran = [of for of, each in sweeps.items() if each.outside(new, self.shape, nbytes) < OUTSIDE]
        if ran := _nearest(self.shape, ran):
            weights, _ = kriged(self.law, self.shape, ran)
            logs = [sweeps[of].log_seconds(new, self.shape, nbytes) for of in ran]
            return math.fsum(w * log for w, log in zip(weights, logs, strict=True)), 0.0
        change = math.fsum(
            weight * rule_change(rule, sweeps[of], self.shape, nbytes).logarithm
            for of, weight in zip(self.fits, self.weights, strict=True)
        )
        return free + change, UNMEASURED**2

    def _logarithm(self, choice: Choice, nbytes: float) -> float:
        links, operation = self.law.links, self.law.operation
        return math.fsum(
            weight * log_seconds(operation, choice, links, fit, of, self.shape, nbytes)
            for (of, fit), weight in zip(self.fits.items(), self.weights, strict=True)
        )

    def _least(self, nbytes: float) -> float:
        """ln of what the next fewer nodes with as many ranks each take: more nodes take no less."""
        smaller = [
            each
            for each in self.fits
            if each.nodes <= self.shape.nodes
            and each.ranks < self.shape.ranks
            and (each.ranks_per_node == self.shape.ranks_per_node or self.shape.nodes == 1)
        ]
        return math.log(swept(self.fits[max(smaller)], nbytes)) if smaller else -math.inf


def _nearest(shape: GroupShape, layouts: Iterable[GroupShape]) -> list[GroupShape]:
    """Those that another is scaled from."""
    return sorted(layouts, key=lambda each: (shape.doublings(each), -each.ranks))[:NEAREST]


def _mixed(logs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """(mean, variance) of values with weights that sum to 1."""
    mean = math.fsum(log * weight for log, weight in logs)
    return mean, math.fsum(weight * (log - mean) ** 2 for log, weight in logs)


def _measured_deviation(fit: CollectiveFit) -> float:
    """Of the logarithm of a measured time, by the intervals of the medians."""
    return median(math.log1p(point.seconds.half_width) for point in fit.points) / Z_95


def kriged(
    law: StructuralFit, shape: GroupShape, layouts: Sequence[GroupShape]
) -> tuple[list[float], float]:
    """Weights [n] of measured layouts for another, and the variance of the logarithm."""
    n = len(layouts)
    system = [[law.variance(one, other) / 2 for other in layouts] for one in layouts]
    wanted = [law.variance(one, shape) / 2 for one in layouts]
    # with a multiplier for the sum of the weights, which is 1
    rows = [[*row, 1.0, value] for row, value in zip(system, wanted, strict=True)]
    rows.append([1.0] * n + [0.0, 1.0])
    found = _solved(rows)
    return found[:n], max(math.fsum(a * b for a, b in zip(found, [*wanted, 1.0], strict=True)), 0.0)


def _solved(rows: list[list[float]]) -> list[float]:
    """The solution of linear equations [n, n + 1], right-hand sides last, by Gaussian elimination.

    An unknown that the others leave free is 0: two layouts may be no doubling apart (8 + 2 and 5 + 5
    ranks).
    """
    n = len(rows)
    pivots: list[int] = []
    for column in range(n):
        rank = len(pivots)
        best = max(range(rank, n), key=lambda row: abs(rows[row][column]), default=rank)
        if rank == n or abs(rows[best][column]) < TINY:
            continue
        rows[rank], rows[best] = rows[best], rows[rank]
        pivots.append(column)
        for row in range(n):
            if row != rank:
                share = rows[row][column] / rows[rank][column]
                rows[row] = [a - share * b for a, b in zip(rows[row], rows[rank], strict=True)]
    found = [0.0] * n
    for row, column in enumerate(pivots):
        found[column] = rows[row][n] / rows[row][column]
    return found
