"""Inputs of the `paper` form from a parameter file: per-sample layer times on one PE.

ParaDL profiles "the average computation time per sample of each layer" on one PE (section 4.4), once.
A layer's time per sample depends on the profiled batch. Here it is max(1, B/p), the batch of data
parallelism on as many PEs, for every strategy: all of them divide the same sums, p1 and p2 change
nothing, and the profiled work is about a PE's share of an iteration.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from calib.foundation.division import Division
from calib.foundation.layers import Direction
from calib.oracle.cost import NOTHING, Cost, counted
from calib.oracle.costs.contention import Phi
from calib.oracle.costs.link import Link
from calib.oracle.costs.machine import Costs, Machine
from calib.oracle.layout.workload import FREE, Select, Workload, model_weights, tensors, workload
from calib.oracle.model.spec import ModelSpec
from calib.oracle.once import once
from calib.oracle.paper.form import SELECTED

# one PE alone, as the paper profiles
ACTIVE_RANKS = 1


def profile_batch(division: Division) -> int:
    """The batch at which layers are profiled: max(1, B/p)."""
    return max(1, division.batch // division.p)


def paper_costs(
    machine: Machine, model: ModelSpec, division: Division, optimizer: str
) -> FittedPaperCosts:
    """The inputs of the `paper` form; the same object for the same profile."""
    return _profiled(machine, model, profile_batch(division), optimizer)


@once
def _profiled(machine: Machine, model: ModelSpec, batch: int, optimizer: str) -> FittedPaperCosts:
    return FittedPaperCosts(machine, model, batch, optimizer)


class FittedPaperCosts:
    """PaperCosts of one model on a calibrated machine, profiled at `batch` samples."""

    def __init__(self, machine: Machine, model: ModelSpec, batch: int, optimizer: str) -> None:
        self.machine, self.model = machine, model
        self.batch, self.optimizer = batch, optimizer
        self._whole = workload(model, Division("serial", 1, 1))
        self._costs = machine.costs(ACTIVE_RANKS, optimizer, model.execution)
        self.cache: dict[Any, Any] = {}

    @once
    def each(self, direction: Direction) -> Sequence[Cost]:
        """FW_l or BW_l: seconds per sample of every layer, NOTHING for a view."""
        pieces = self._pieces(direction)
        return [NOTHING if number == FREE else pieces[number] for number in self._whole.index]

    @once
    def _pieces(self, direction: Direction) -> Sequence[Cost]:
        """FW_l or BW_l of every distinct layer."""
        found = self._costs.layers.pieces(self._whole, self.batch, direction)
        return [cost.times(1.0 / self.batch) for cost in found]

    @once
    def total(self, work: Workload, select: Select, direction: Direction) -> Cost:
        """The sum of `each` over the layers that `select` names."""
        chosen = (
            number
            for number, is_split in zip(self._whole.index, work.split, strict=True)
            if number != FREE and is_split in SELECTED[select]
        )
        pieces = self._pieces(direction)
        return counted((pieces[number], count) for number, count in Counter(chosen).items())

    def update(self) -> Sequence[Cost]:
        """WU_l: each layer's share of one update of all weights.

        Shares are in proportion to the layers' updates alone, which would add up to more.
        """
        return _updates(self._costs, self.model)

    def update_total(self) -> Cost:
        """The update of all weights."""
        return self._costs.update(self._whole.weights)

    def link(self, span: int, operation: str, groups: int = 1) -> Link:
        """alpha and beta of the slowest level that any of `groups` of `span` adjacent PEs crosses."""
        return self.machine.network.link(span, operation, groups)

    def contention(self, flows: float, span: int) -> Phi:
        """phi of so many concurrent rings that leave a node."""
        return self.machine.network.contention_of(flows, span)


@once
def _updates(costs: Costs, model: ModelSpec) -> Sequence[Cost]:
    shapes = [layer.own_parameters for layer in model.layers]
    alone = {of: costs.update(tensors(of, model.items)).seconds for of in set(shapes) if of}
    # without weights all updates take 0
    summed = math.fsum(alone[of] for of in shapes if of) or 1.0
    together = costs.update(model_weights(model))
    parts = {of: together.times(seconds / summed) for of, seconds in alone.items()}
    return [parts.get(of, NOTHING) for of in shapes]
