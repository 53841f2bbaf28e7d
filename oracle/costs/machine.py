"""What the parts of an iteration cost on a calibrated machine, each with its interval and basis.

A `Machine` is a parameter file with its tables and what was looked up before; its `Costs` are those of
ranks that have so many ranks of their node at work.
"""

from __future__ import annotations

from functools import cached_property

from calib.fitting.parameters.file import Parameters
from calib.oracle.cost import Cost
from calib.oracle.costs.collectives import CollectiveCosts
from calib.oracle.costs.layers import LayerCosts
from calib.oracle.costs.tensors import TensorCosts
from calib.oracle.division import Division
from calib.oracle.model.spec import ModelSpec
from calib.oracle.paper.costs import FittedPaperCosts, profile_batch


class Machine:
    """A parameter file, ready for many predictions.

    `updates` are those of the `paper` form (oracle/paper/costs.py), by model and optimizer.
    """

    def __init__(self, parameters: Parameters) -> None:
        self.parameters = parameters
        self._tables: dict[int, tuple[LayerCosts, TensorCosts]] = {}
        self._costs: dict[tuple[int, str], Costs] = {}
        # by the identity of a model, which hashes slowly; the costs hold it, so that it stays
        self._paper: dict[tuple[int, int, str], FittedPaperCosts] = {}
        self.updates: dict[tuple[int, str], tuple[Cost, ...]] = {}

    @cached_property
    def network(self) -> CollectiveCosts:
        """What operations between PEs cost; the same whoever computes."""
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

    def paper(self, model: ModelSpec, division: Division, optimizer: str) -> FittedPaperCosts:
        """What the `paper` form of a division is fed with; the same object for the same profile."""
        batch = profile_batch(division)
        key = (id(model), batch, optimizer)
        if key not in self._paper:
            self._paper[key] = FittedPaperCosts(self, model, batch, optimizer)
        return self._paper[key]


class Costs:
    """The look-ups of one strategy: `layers`, `tensors`, `network`."""

    def __init__(self, machine: Machine, active_ranks: int, optimizer: str) -> None:
        self.layers, self.tensors = machine.tables(active_ranks)
        self.network = machine.network
        self.optimizer = optimizer
