"""Terms of a prediction: summed by phase and cause, each with its formula."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple

from calib.oracle.cost import NOTHING, Cost, total
from calib.oracle.projection import PHASES, Phase, TermTime

# what takes the time, in the words of ParaDL's Table 6 (oracle/bottlenecks.py)
TermCause = Literal[
    "compute",  # what the strategy divides
    "redundant",  # what every rank of a group does again: whole layers, split and concat
    "bubble",  # stages of a pipeline that wait for others
    "gradient exchange",
    "layer-wise",
    "p2p",
    "pack",
    "update",
]
TermValue = float | str
NO_VALUES: Mapping[str, TermValue] = MappingProxyType({})


class Term(NamedTuple):
    """One term: `formula` in the symbols of formulas.md, and the `values` that are put in.

    The values are those of --explain: by symbol, in SI units.
    """

    phase: Phase
    cause: TermCause
    what: str
    cost: Cost
    formula: str = ""
    values: Mapping[str, TermValue] = NO_VALUES

    def record(self) -> TermTime:
        """As it is written."""
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
        if term.cost is not NOTHING:
            costs[term.phase].append(term.cost)
    return {phase: total(parts) if parts else NOTHING for phase, parts in costs.items()}
