"""Methods over a chain of tables: node costs [states], edges [states, states], bytes [states].

Every method keeps the sum of bytes within the limit. AutoDDL, section 4.4.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from calib.foundation.arrays import Floats
from calib.search.best import BestSoFar, Choices
from calib.search.request import Look, never

RESTARTS, STEPS = 50, 200_000
CLOSE = 1e-9


@dataclass(frozen=True)
class CostChain:
    """`edges[k]` is between layers k and k + 1; an impossible state has infinite cost."""

    nodes: list[Floats]
    edges: list[Floats]
    nbytes: list[Floats]
    limit: float = math.inf

    @property
    def without_limit(self) -> CostChain:
        """The same on devices with any memory."""
        return replace(self, limit=math.inf)

    def cost(self, choices: Choices) -> float:
        """Seconds of a plan; infinite where it does not fit."""
        if self.held(choices) > self.limit:
            return math.inf
        own = sum(node[c] for node, c in zip(self.nodes, choices, strict=True))
        pairs = zip(self.edges, itertools.pairwise(choices), strict=True)
        return float(own + sum(edge[pair] for edge, pair in pairs))

    def held(self, choices: Choices) -> float:
        """Bytes that a plan holds."""
        return float(sum(of[c] for of, c in zip(self.nbytes, choices, strict=True)))

    def possible(self) -> list[NDArray[np.int64]]:
        """The states of each layer that have a finite cost."""
        return [np.flatnonzero(np.isfinite(node)) for node in self.nodes]

    def smallest(self) -> Choices:
        """The plan of the fewest bytes."""
        return tuple(
            int(np.argmin(np.where(np.isfinite(node), of, np.inf)))
            for node, of in zip(self.nodes, self.nbytes, strict=True)
        )


def cheapest(chain: CostChain, price: float = 0.0, look: Look = never) -> Choices:
    """Dynamic programming over the states at a price of a byte in seconds. Raises BudgetOver."""
    best, back = chain.nodes[0] + price * chain.nbytes[0], []
    for node, edge, nbytes in zip(chain.nodes[1:], chain.edges, chain.nbytes[1:], strict=True):
        look()
        through = best[:, None] + edge
        chosen = through.argmin(axis=0)
        back.append(chosen)
        best = through[chosen, np.arange(len(node))] + node + price * nbytes
    state = int(best.argmin())
    choices = [state]
    for chosen in reversed(back):
        state = int(chosen[state])
        choices.append(state)
    return tuple(reversed(choices))


def exact(chain: CostChain, found: BestSoFar) -> None:
    """The optimum; within a limit the best of a bisection of the price of a byte, and a bound.

    Raises BudgetOver before there is any plan.
    """
    free = chain.without_limit

    def fits(price: float) -> bool:
        choices = cheapest(chain, price, found.spending.look)
        found.spending.evaluated += 1
        cost, held = free.cost(choices), chain.held(choices)
        found.bound = max(found.bound, cost + price * (held - chain.limit) if price else cost)
        if held <= chain.limit:
            found.keep(choices, cost)
        return held <= chain.limit

    if fits(0.0):
        return
    smallest = chain.smallest()
    found.keep(smallest, chain.cost(smallest))
    found.bisect(fits, (found.bound or 1.0) / chain.limit, CLOSE)


def descent(chain: CostChain, found: BestSoFar, random: np.random.Generator) -> None:
    """Sweeps over the layers, each at its best with the others fixed; then from another start."""
    possible, sweeps = chain.possible(), 0
    # first from plans of one state for all layers: they fit where random mixtures may not
    alike = [tuple([k] * len(possible)) for k in range(len(chain.nodes[0]))]
    alike = sorted((of for of in alike if chain.cost(of) < math.inf), key=chain.cost)[:RESTARTS]
    for start in range(len(alike) + RESTARTS):
        if start and found.spending.over:
            found.complete = False
            break
        choices = [int(random.choice(of)) for of in possible]
        if start < len(alike):
            choices = list(alike[start])
        if chain.held(tuple(choices)) > chain.limit:
            choices = list(chain.smallest())
            if start:  # random steps away from it, where they fit
                for k in random.permutation(len(choices)):
                    before, choices[k] = choices[k], int(random.choice(possible[k]))
                    if chain.held(tuple(choices)) > chain.limit:
                        choices[k] = before
        changed = True
        while changed:
            changed = _sweep(chain, choices)
            sweeps += 1
            found.spending.evaluated += len(choices)
            found.keep(tuple(choices), chain.cost(tuple(choices)))
            if found.spending.over:
                break
    found.steps.update(sweeps=sweeps, starts=start + 1)


def _sweep(chain: CostChain, choices: list[int]) -> bool:
    changed, held = False, chain.held(tuple(choices))
    for k, node in enumerate(chain.nodes):
        cost = node.copy()
        if k:
            cost += chain.edges[k - 1][choices[k - 1]]
        if k + 1 < len(choices):
            cost += chain.edges[k][:, choices[k + 1]]
        rest = held - chain.nbytes[k][choices[k]]
        cost[rest + chain.nbytes[k] > chain.limit] = math.inf
        best = int(cost.argmin())
        if cost[best] < cost[choices[k]] * (1 - 1e-12):
            choices[k], changed = best, True
            held = rest + chain.nbytes[k][best]
    return changed


def exhaustive(chain: CostChain, found: BestSoFar) -> None:
    """Every plan."""
    for choices in itertools.product(*(of.tolist() for of in chain.possible())):
        found.spending.evaluated += 1
        found.keep(choices, chain.cost(choices))
        if found.spending.over:
            found.complete = False
            break
    if found.complete:
        found.bound = found.total


def at_random(chain: CostChain, found: BestSoFar, random: np.random.Generator) -> None:
    """Plans drawn uniformly."""
    possible = chain.possible()
    for _ in range(STEPS):
        choices = tuple(int(of[random.integers(len(of))]) for of in possible)
        found.spending.evaluated += 1
        found.keep(choices, chain.cost(choices))
        if found.spending.over:
            found.complete = False
            return


def metropolis(
    chain: CostChain, found: BestSoFar, random: np.random.Generator, weight: float
) -> None:
    """One layer redrawn per step, taken with min(1, exp(weight (current - proposed)))."""
    possible = chain.possible()
    choices = tuple(int(random.choice(of)) for of in possible)
    if chain.held(choices) > chain.limit:
        choices = chain.smallest()
    cost = chain.cost(choices)
    found.keep(choices, cost)
    for _ in range(STEPS):
        if found.spending.over:
            found.complete = False
            return
        k = int(random.integers(len(choices)))
        proposed = (*choices[:k], int(random.choice(possible[k])), *choices[k + 1 :])
        other = chain.cost(proposed)
        found.spending.evaluated += 1
        if other <= cost or random.random() < math.exp(weight * (cost - other)):
            choices, cost = proposed, other
            found.keep(choices, cost)
