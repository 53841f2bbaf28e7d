"""Which variables go by allreduce and which by parameter server: by predicted time, not by a rule.

All choices are looked at where variables are few. Else: thresholds in the size of dense variables, then
one variable at a time, until nothing is faster.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from calib.fitting.parameters.memory import STATES
from calib.foundation.layers import ITEM_BYTES
from calib.search.request import Spending
from calib.search.variables.exchange import ExchangeMethod, VariableExchange
from calib.search.variables.models import Variable

VariableChoices = tuple[ExchangeMethod, ...]
MOST_ENUMERATED = 4096


@dataclass
class Choosing:
    """Choices for `variables` within `limit` bytes per device (0: any), counted in `spending`."""

    exchange: VariableExchange
    variables: Sequence[Variable]
    partitions: int
    optimizer: str
    limit: int
    spending: Spending
    known: dict[VariableChoices, float] = field(default_factory=dict)
    course: list[tuple[float, float]] = field(default_factory=list)
    cut_short: bool = False
    excluded: float = math.inf  # seconds of the fastest that does not fit

    def seconds(self, choices: VariableChoices) -> float:
        """Seconds of an iteration's exchange; infinite where it does not fit a device."""
        if choices not in self.known:
            self.spending.evaluated += 1
            phases = self.exchange.phases(self.variables, choices, self.partitions)
            found = sum(cost.seconds for cost in phases.values())
            if self.limit and self.held(choices) > self.limit:
                self.excluded, found = min(self.excluded, found), math.inf
            self.known[choices] = found
            if found < (self.course[-1][1] if self.course else math.inf):
                self.course.append((self.spending.seconds, found))
        return self.known[choices]

    def held(self, choices: VariableChoices) -> int:
        """Bytes per device: `held_bytes` of each variable."""
        return sum(
            held_bytes(of, choice, self.exchange, self.optimizer)
            for of, choice in zip(self.variables, choices, strict=True)
        )

    def hybrid(self) -> VariableChoices:
        """The fastest found, the optimum where variables are few; infinite time: none fits."""
        ways = [possible(of) for of in self.variables]
        if math.prod(map(len, ways)) <= MOST_ENUMERATED:
            return self._fastest(itertools.product(*ways))
        return self.climbed(self._fastest(self.starts()))

    @property
    def limited(self) -> bool:
        """Whether something faster that was looked at does not fit."""
        return bool(self.course) and self.excluded < self.course[-1][1]

    def _fastest(self, among: Iterable[VariableChoices]) -> VariableChoices:
        """The fastest of these; all by server, which holds least, where none fits."""
        best = served(self.variables)
        for choices in (best, *among):
            self.cut_short = self.spending.over
            if self.cut_short:
                break
            if self.seconds(choices) < self.seconds(best):
                best = choices
        return best

    def climbed(self, best: VariableChoices) -> VariableChoices:
        """From `best`, one variable at a time, until no other choice is faster."""
        improved = True
        while improved and not self.cut_short:
            improved = False
            for other in self.neighbours(best):
                self.cut_short = self.spending.over
                if self.cut_short:
                    break
                if self.seconds(other) < self.seconds(best) * (1 - 1e-12):
                    best, improved = other, True
        return best

    def starts(self) -> list[VariableChoices]:
        """None by server, the paper's rule, all by allreduce; dense ones of some sizes by server too."""
        alike: VariableChoices = tuple("allreduce" for _ in self.variables)
        found = [reduced(self.variables), by_rule(self.variables), alike]
        sizes = sorted({of.items for of in self.variables if not of.sparse})
        for size in sizes:
            found += [self._from_size(size, small) for small in (True, False)]
        return found

    def _from_size(self, size: int, small: bool) -> VariableChoices:
        """Sparse ones by server, and dense ones up to `size` (`small`) or over it."""
        return tuple(
            "server" if of.sparse or (of.items <= size) == small else "allreduce"
            for of in self.variables
        )

    def neighbours(self, choices: VariableChoices) -> list[VariableChoices]:
        """All that differ in the choice for one variable."""
        return [
            (*choices[:place], other, *choices[place + 1 :])
            for place, of in enumerate(self.variables)
            for other in possible(of)
            if other != choices[place]
        ]

    def bound(self) -> float:
        """Seconds that no choice can beat: each variable alone at its fastest, start-ups shared.

        Its share of one allreduce of all, its own allgatherv, or one message of its bytes on a link as
        fast as all servers' together; it holds where larger messages are no slower per byte.
        """
        whole = sum(of.nbytes for of in self.variables)
        ring = self.exchange.allreduce(whole).seconds / whole if whole else 0.0
        least = 0.0
        for of in self.variables:
            served = self.exchange.part(of, 1).seconds / self.exchange.machines
            ways = [ring * of.nbytes, served + self.exchange.inside(of).seconds]
            if of.sparse:
                ways.append(self.exchange.allgatherv(of).seconds)
            least += min(ways)
        return least


def possible(variable: Variable) -> tuple[ExchangeMethod, ...]:
    """A sparse variable can be treated as a dense one; a dense one has no rows to gather."""
    return ("allreduce", "allgatherv", "server") if variable.sparse else ("allreduce", "server")


def served(variables: Sequence[Variable]) -> VariableChoices:
    """All by parameter server."""
    return tuple("server" for _ in variables)


def reduced(variables: Sequence[Variable]) -> VariableChoices:
    """None by parameter server: dense ones by allreduce, sparse ones by allgatherv (Horovod)."""
    return tuple("allgatherv" if of.sparse else "allreduce" for of in variables)


def by_rule(variables: Sequence[Variable]) -> VariableChoices:
    """The paper's hybrid: dense ones by allreduce, sparse ones by parameter server."""
    return tuple("server" if of.sparse else "allreduce" for of in variables)


def held_bytes(
    variable: Variable, choice: ExchangeMethod, exchange: VariableExchange, optimizer: str
) -> int:
    """Bytes per device for a variable: values, gradients and optimizer state of a replica.

    A parameter server's is in the machine's own memory: a device has the used rows and their gradients.
    """
    if choice == "server":
        return round(2 * variable.a * variable.nbytes)
    gathered = exchange.devices.p * variable.a if choice == "allgatherv" else 1.0
    return round(ITEM_BYTES * variable.items * (1 + STATES[optimizer] + gathered))
