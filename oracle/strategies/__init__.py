"""Parallel strategies, one file each: terms, memory and limit of one iteration.

The registry is STRATEGIES of foundation/division.py.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Protocol, cast

from calib.foundation.division import STRATEGIES, Division
from calib.foundation.errors import InputError
from calib.oracle.costs.machine import Costs
from calib.oracle.model.spec import ModelSpec
from calib.oracle.paper.form import PaperCosts
from calib.oracle.projection import Limit
from calib.oracle.terms import Term


class Strategy(Protocol):
    """A module of this package; it is asked about possible divisions only (shards.why_impossible)."""

    def measured(self, model: ModelSpec, division: Division, costs: Costs) -> list[Term]:
        """The terms of one iteration at the shapes that ranks run. Raises MissingParameter."""

    def paper(self, model: ModelSpec, division: Division, costs: PaperCosts) -> list[Term]:
        """The terms of formulas.md, "ParaDL, per iteration". Raises MissingParameter."""

    def memory(self, model: ModelSpec, division: Division, optimizer: str) -> dict[str, int]:
        """Naive bytes per rank by part: activations, weights, gradients, ..."""

    def limit(self, model: ModelSpec, division: Division) -> Limit:
        """The most ranks p, and why."""


@cache
def strategy_named(name: str) -> Strategy:
    """The strategy of that name. Raises InputError with the known names."""
    if name not in STRATEGIES:
        raise InputError(f"unknown strategy {name!r}; known: {', '.join(STRATEGIES)}")
    return cast(Strategy, import_module(f"{__name__}.{STRATEGIES[name].module}"))
