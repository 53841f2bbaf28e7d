"""Parallel strategies, one file each: terms, memory and limit of one iteration. One line here."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Protocol, cast

from foundation.errors import InputError
from oracle.costs import Costs
from oracle.division import Division
from oracle.model import ModelSpec
from oracle.paper import PaperCosts
from oracle.projection import Limit
from oracle.terms import Term

STRATEGIES = {
    "serial": "oracle.strategies.serial",
    "data": "oracle.strategies.data",
    "spatial": "oracle.strategies.spatial",
    "pipeline": "oracle.strategies.pipeline",
    "filter": "oracle.strategies.filter",
    "channel": "oracle.strategies.channel",
    "data+filter": "oracle.strategies.data_filter",
    "data+spatial": "oracle.strategies.data_spatial",
}


class Strategy(Protocol):
    """A module of this package. Divisions are possible ones (oracle/shards.py, why_impossible)."""

    def measured(self, model: ModelSpec, division: Division, costs: Costs) -> list[Term]:
        """The terms of one iteration at the shapes that ranks run; raises MissingParameter."""

    def paper(self, model: ModelSpec, division: Division, costs: PaperCosts) -> list[Term]:
        """The terms of formulas.md, "ParaDL, per iteration"; raises MissingParameter."""

    def memory(self, model: ModelSpec, division: Division, optimizer: str) -> dict[str, int]:
        """Bytes per PE by part, naive sum (oracle/memory.py): activations, weights, gradients, ..."""

    def limit(self, model: ModelSpec, division: Division) -> Limit:
        """The most PEs (of a hybrid: of p), and why."""


@cache
def strategy_named(name: str) -> Strategy:
    """The strategy of that name. Raises InputError with the known names."""
    if name not in STRATEGIES:
        raise InputError(f"unknown strategy {name!r}; known: {', '.join(STRATEGIES)}")
    return cast(Strategy, import_module(STRATEGIES[name]))
