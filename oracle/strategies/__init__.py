"""Parallel strategies, one file each: phases, memory and limits of one iteration. One line here."""

from __future__ import annotations

from importlib import import_module
from typing import Protocol, cast

from foundation.errors import InputError
from oracle.costs import Costs
from oracle.model import ModelSpec
from oracle.projection import PhaseTime

STRATEGIES = {"serial": "oracle.strategies.serial", "data": "oracle.strategies.data"}


class Strategy(Protocol):
    """A module of this package."""

    def phases(
        self, model: ModelSpec, p: int, batch_per_pe: int, costs: Costs
    ) -> dict[str, PhaseTime]:
        """Seconds per iteration; keys are projection.PHASES."""

    def memory(self, model: ModelSpec, p: int, batch_per_pe: int) -> dict[str, int]:
        """Bytes per PE by part, naive sum."""

    def limits(self, model: ModelSpec, p: int, batch_per_pe: int) -> list[str]:
        """Why it cannot run on p PEs; empty if it can."""


def strategy_named(name: str) -> Strategy:
    """The strategy of that name. Raises InputError with the known names."""
    if name not in STRATEGIES:
        raise InputError(f"unknown strategy {name!r}; known: {', '.join(STRATEGIES)}")
    return cast(Strategy, import_module(STRATEGIES[name]))
