"""What a sweep on one layout says of another: the same time for a step with as long a message.

An algorithm of S(layout) steps that sends v(layout) m at each takes S g(v m), whatever g.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from calib.fitting.parameters.algorithms import ALGORITHMS, Choice, GroupShape, Links
from calib.fitting.parameters.collectives import CollectiveFit
from calib.fitting.parameters.rules import Rule
from calib.fitting.parameters.size_law import interpolate

LEAST_SECONDS = 1e-12
# of the times beyond the sizes at which a rule takes an algorithm: how they grow, where one size alone
# says nothing of it
ANY_GROWTH = 0.5
UNMEASURED = math.log(2)  # standard deviation where a rule takes an algorithm that was not measured
FEWEST_RANKS = 4  # from which on algorithms differ


def shape_of_fit(fit: CollectiveFit) -> GroupShape:
    """The layout of a direct law; where the file does not say, of one node, or of a rank on each."""
    nodes = min(fit.nodes or (1 if fit.level == "node" else fit.ranks), fit.ranks)
    each = max(fit.ranks_per_node, -(-fit.ranks // nodes))
    return GroupShape(fit.ranks, nodes, min(each, fit.ranks))


def swept(fit: CollectiveFit, nbytes: float) -> float:
    """Seconds of a direct law, above 0."""
    return max(fit.seconds(nbytes), LEAST_SECONDS)


def log_seconds(
    operation: str,
    choice: Choice,
    links: Links,
    fit: CollectiveFit,
    of: GroupShape,
    shape: GroupShape,
    nbytes: float,
) -> float:
    """ln of the seconds on `shape` by the fastest of `choice`, from a direct law on `of`.

    What was measured is the fastest there, the others took no less. So on more ranks the time is the
    least that any of them scales to, and on fewer, where the same must hold backwards, the most.
    """
    menu, seconds = ALGORITHMS[operation], []
    for name in choice:
        algorithm = menu[name]
        share = algorithm.message(shape, links) / algorithm.message(of, links)
        steps = algorithm.steps(shape) / algorithm.steps(of)
        seconds.append(steps * swept(fit, nbytes * share))
    return math.log(min(seconds) if shape.ranks >= of.ranks else max(seconds))


class RuledSweep(NamedTuple):
    """A direct law on a layout, of whose sizes a rule says by which algorithm each goes."""

    fit: CollectiveFit
    of: GroupShape
    operation: str
    links: Links
    sizes: Mapping[str, Sequence[float]]

    @classmethod
    def by(
        cls, rule: Rule, fit: CollectiveFit, of: GroupShape, operation: str, links: Links
    ) -> RuledSweep:
        """The sweep of `fit`."""
        sizes: dict[str, list[float]] = defaultdict(list)
        for point in fit.points:
            if point.nbytes > 0:
                sizes[rule(of.ranks, point.nbytes)].append(float(point.nbytes))
        return cls(fit, of, operation, links, sizes)

    def outside(self, name: str, shape: GroupShape, nbytes: float, of: str | None = None) -> float:
        """How far, as a logarithm, the messages of an algorithm are outside those that were measured.

        By the sizes that went by the algorithm `of`, by default the same; infinite where none did.
        """
        sizes = self.sizes.get(of or name)
        if not sizes:
            return math.inf
        wanted = self._wanted(name, shape, nbytes, of or name)
        return max(0.0, math.log(wanted / sizes[-1]), math.log(sizes[0] / wanted))

    def log_seconds(self, name: str, shape: GroupShape, nbytes: float) -> float:
        """ln of the seconds on `shape` by an algorithm; by another's sizes where it was not measured."""
        near = name
        if name not in self.sizes:
            near = min(self.sizes, key=lambda other: self.outside(name, shape, nbytes, other))
        menu = ALGORITHMS[self.operation]
        taken = _along(self.fit, self.sizes[near], self._wanted(name, shape, nbytes, near))
        return math.log(menu[name].steps(shape) / menu[near].steps(self.of) * taken)

    def _wanted(self, name: str, shape: GroupShape, nbytes: float, of: str) -> float:
        """The size at which `of` sends as long messages as `name` does on `shape`."""
        menu = ALGORITHMS[self.operation]
        sent = menu[name].message(shape, self.links) * nbytes
        return sent / menu[of].message(self.of, self.links)


class RuleChange(NamedTuple):
    """ln of how much longer another layout takes because a rule has another algorithm there.

    `deviation`: of this logarithm, where that algorithm was not measured.
    """

    logarithm: float = 0.0
    deviation: float = 0.0


def rule_change(rule: Rule, sweep: RuledSweep, shape: GroupShape, nbytes: float) -> RuleChange:
    """What changes on `shape`; between so few ranks that all algorithms send much the same, nothing."""
    new, old = rule(shape.ranks, nbytes), rule(sweep.of.ranks, nbytes)
    if new == old or min(sweep.of.ranks, shape.ranks) < FEWEST_RANKS:
        return RuleChange()
    change = sweep.log_seconds(new, shape, nbytes) - sweep.log_seconds(old, shape, nbytes)
    return RuleChange(change, 0.0 if new in sweep.sizes else UNMEASURED)


def _along(fit: CollectiveFit, sizes: Sequence[float], nbytes: float) -> float:
    """Seconds through the times of some rising sizes alone, straight in log-log beyond them, too."""
    seconds = [swept(fit, size) for size in sizes]
    if sizes[0] <= nbytes <= sizes[-1]:
        return interpolate(nbytes, sizes, seconds)
    first = nbytes < sizes[0]
    if len(sizes) < 2:
        growth = ANY_GROWTH
    else:
        a, b = (0, 1) if first else (-2, -1)
        growth = math.log(seconds[b] / seconds[a]) / math.log(sizes[b] / sizes[a])
    end = 0 if first else -1
    return float(seconds[end] * (nbytes / sizes[end]) ** min(max(growth, 0.0), 1.0))
