"""What a sweep on one layout says of another: the same time for a step with as long a message.

An algorithm of S(layout) steps that sends v(layout) m at each takes S g(v m), whatever g.
"""

from __future__ import annotations

import math
from collections import defaultdict

from calib.fitting.parameters.algorithms import ALGORITHMS, Choice, GroupShape, Links
from calib.fitting.parameters.collectives import CollectiveFit
from calib.fitting.parameters.rules import RULES
from calib.fitting.parameters.size_law import interpolate

LEAST_SECONDS = 1e-12
# of the times beyond the sizes at which a rule takes an algorithm: how they grow, where one size alone
# says nothing of it
ANY_GROWTH = 0.5


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


def rule_change(
    operation: str,
    rule: str,
    links: Links,
    fit: CollectiveFit,
    of: GroupShape,
    shape: GroupShape,
    nbytes: float,
) -> float:
    """ln of how much longer `shape` takes because a rule has another algorithm there than on `of`.

    Both are scaled from the sizes on `of` that go by them; where none does, from those nearest.
    """
    by = RULES[rule][operation]
    new, old = by(shape.ranks, nbytes), by(of.ranks, nbytes)
    if new == old:
        return 0.0
    ran: dict[str, list[float]] = defaultdict(list)
    for point in fit.points:
        if point.nbytes > 0:
            ran[by(of.ranks, point.nbytes)].append(float(point.nbytes))
    menu = ALGORITHMS[operation]

    def log_of(name: str) -> float:
        sent = menu[name].message(shape, links) * nbytes
        wanted = {each: sent / menu[each].message(of, links) for each in ran}
        near = name if name in ran else min(ran, key=lambda each: _distance(wanted[each], ran[each]))
        step = _along(fit, ran[near], wanted[near]) / menu[near].steps(of)
        return math.log(menu[name].steps(shape) * step)

    return log_of(new) - log_of(old)


def _distance(nbytes: float, sizes: list[float]) -> float:
    """How far, as a logarithm, a size is outside rising ones."""
    return max(0.0, math.log(nbytes / sizes[-1]), math.log(sizes[0] / nbytes))


def _along(fit: CollectiveFit, sizes: list[float], nbytes: float) -> float:
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
