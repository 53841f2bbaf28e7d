"""Cost of the parts of an iteration on a calibrated machine, each with interval and basis.

A `Machine` is a parameter file with its tables and what was looked up before; its `Costs` are those of
ranks that have so many ranks of their node at work.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import cached_property
from typing import Any

from calib.fitting.parameters.file import Parameters
from calib.oracle.costs.collectives import CollectiveCosts
from calib.oracle.costs.layers import LayerCosts
from calib.oracle.costs.tensors import TensorCosts


class Machine:
    """A parameter file, ready for many predictions.

    `found` is a place for what the `paper` form looks up once (oracle/paper/costs.py).
    """

    def __init__(self, parameters: Parameters) -> None:
        self.parameters = parameters
        self._tables: dict[int, tuple[LayerCosts, TensorCosts]] = {}
        self._costs: dict[tuple[int, str], Costs] = {}
        self.found: dict[Hashable, Any] = {}

    @cached_property
    def network(self) -> CollectiveCosts:
        """What operations between ranks cost; the same whoever computes."""
        return CollectiveCosts(self.parameters)

    def tables(self, active_ranks: int) -> tuple[LayerCosts, TensorCosts]:
        """Layers and passes over tensors, the same for all optimizers."""
        if active_ranks not in self._tables:
            parameters = self.parameters
            made = LayerCosts(parameters, active_ranks), TensorCosts(parameters, active_ranks)
            self._tables[active_ranks] = made
        return self._tables[active_ranks]

    def costs(self, active_ranks: int, optimizer: str = "momentum") -> Costs:
        """The costs with so many ranks of a node at work; the same object for the same numbers."""
        key = (active_ranks, optimizer)
        if key not in self._costs:
            self._costs[key] = Costs(self, active_ranks, optimizer)
        return self._costs[key]


class Costs:
    """The look-ups of one strategy: `layers`, `tensors`, `network`."""

    def __init__(self, machine: Machine, active_ranks: int, optimizer: str) -> None:
        self.layers, self.tensors = machine.tables(active_ranks)
        self.network = machine.network
        self.optimizer = optimizer
