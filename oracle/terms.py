"""The terms of a prediction, each with its phase, cause and formula."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple

from calib.oracle.cost import Cost, total
from calib.oracle.projection import PHASES, Phase, TermTime

# what takes the time, as ParaDL's Table 6 names it (oracle/bottlenecks.py)
TermCause = Literal[
    "compute",  # work that the strategy divides
    "redundant",  # work that every rank of a group repeats: whole layers, split and concat
    "bubble",  # pipeline stages waiting for others
    "gradient exchange",
    "layer-wise",
    "p2p",
    "pack",
    "update",
]
TermValue = float | str
NO_VALUES: Mapping[str, TermValue] = MappingProxyType({})


class Term(NamedTuple):
    """One term: its `formula` in the symbols of formulas.md and the `values` of those symbols.

    --explain prints the values, in SI units.
    """

    phase: Phase
    cause: TermCause
    what: str
    cost: Cost
    formula: str = ""
    values: Mapping[str, TermValue] = NO_VALUES

    def record(self) -> TermTime:
        """The record that predictions.json holds."""
        return TermTime(
            phase=self.phase,
            what=self.what,
            formula=self.formula,
            values=dict(self.values),
            time=self.cost.record(),
        )


def by_phase(terms: Iterable[Term]) -> dict[Phase, Cost]:
    """The cost of every phase, in the order of PHASES."""
    costs: dict[Phase, list[Cost]] = {phase: [] for phase in PHASES}
    for term in terms:
        costs[term.phase].append(term.cost)
    return {phase: total(parts) for phase, parts in costs.items()}
