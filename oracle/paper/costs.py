"""Inputs of the `paper` form from a parameter file: per-sample layer times on one PE.

ParaDL profiles "the average computation time per sample of each layer" on one PE (section 4.4), once. A
layer's time per sample depends on the batch it was profiled at, so this has to be said: it is B/p
(at least 1), the batch of data parallelism on as many PEs, the same for every strategy. So all of them
divide the same sums, at a batch whose work is about what one of p PEs does of an iteration, and p1 and
p2 change nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from calib.foundation.division import Division
from calib.foundation.layers import Direction
from calib.oracle.cost import NOTHING, Cost, total
from calib.oracle.costs.contention import Phi
from calib.oracle.costs.link import Link
from calib.oracle.costs.machine import Machine
from calib.oracle.layout.workload import FREE, Select, Workload, tensors, workload
from calib.oracle.model.spec import ModelSpec

# one PE alone, as the paper profiles
ACTIVE_RANKS = 1
CHOSEN: dict[Select, tuple[bool, ...]] = {"all": (False, True), "split": (True,), "whole": (False,)}


def profile_batch(division: Division) -> int:
    """The batch at which layers are profiled for a division: max(1, B/p)."""
    return max(1, division.batch // division.p)


def paper_costs(
    machine: Machine, model: ModelSpec, division: Division, optimizer: str
) -> FittedPaperCosts:
    """What the `paper` form of a division is fed with; the same object for the same profile."""
    batch = profile_batch(division)
    # by the identity of a model, which hashes slowly; the costs hold it, so that it stays
    key = ("paper costs", id(model), batch, optimizer)
    if key not in machine.found:
        machine.found[key] = FittedPaperCosts(machine, model, batch, optimizer)
    found: FittedPaperCosts = machine.found[key]
    return found


class FittedPaperCosts:
    """PaperCosts of one model on a calibrated machine, profiled at `batch` samples."""

    def __init__(self, machine: Machine, model: ModelSpec, batch: int, optimizer: str) -> None:
        self.machine, self.model = machine, model
        self.batch, self.optimizer = batch, optimizer
        self._whole = workload(model, Division("serial", 1, 1))
        self._costs = machine.costs(ACTIVE_RANKS, optimizer)
        self._each: dict[Direction, tuple[Cost, ...]] = {}
        self._totals: dict[tuple[Workload, Select, Direction], Cost] = {}
        self._links: dict[tuple[int, str, int], Link] = {}

    def each(self, direction: Direction) -> Sequence[Cost]:
        """FW_l or BW_l: seconds per sample of every layer, NOTHING of a view."""
        if direction not in self._each:
            found = self._costs.layers.each(self._whole, self.batch, direction)
            # equal layers share one Cost: a network repeats its layers
            scaled = {
                number: cost.times(1.0 / self.batch)
                for number, cost in zip(self._whole.index, found, strict=True)
                if number != FREE
            }
            self._each[direction] = tuple(scaled.get(i, NOTHING) for i in self._whole.index)
        return self._each[direction]

    def total(self, work: Workload, select: Select, direction: Direction) -> Cost:
        """Their sum over the layers that `work` splits, does not split, or all of them."""
        key = (work, select, direction)
        if key not in self._totals:
            each = self.each(direction)
            self._totals[key] = total(
                each[layer].times(count) for layer, count in self._repeated(work, select)
            )
        return self._totals[key]

    def _repeated(self, work: Workload, select: Select) -> list[tuple[int, int]]:
        """(a layer, how many are equal to it) of those that `select` names."""
        key = ("whole layers", work, select)
        if key not in self.model.cache:
            first: dict[int, int] = {}
            counts: dict[int, int] = {}
            layers = zip(self._whole.index, work.split, strict=True)
            for layer, (number, is_split) in enumerate(layers):
                if number != FREE and is_split in CHOSEN[select]:
                    counts[number] = counts.get(number, 0) + 1
                    first.setdefault(number, layer)
            self.model.cache[key] = [(first[number], n) for number, n in counts.items()]
        found: list[tuple[int, int]] = self.model.cache[key]
        return found

    def update(self) -> Sequence[Cost]:
        """WU_l: each layer's part of the update of all weights, in proportion to its update alone.

        One pass updates all of them: as many passes as layers would cost more than the sum.
        """
        key = ("paper updates", id(self.model), self.optimizer)
        if key not in self.machine.found:
            self.machine.found[key] = self._updates()
        found: tuple[Cost, ...] = self.machine.found[key]
        return found

    def update_total(self) -> Cost:
        """Their sum: the update of all weights."""
        return self._costs.tensors.update(self._whole.weights, self.optimizer)

    def _updates(self) -> tuple[Cost, ...]:
        look_up, together = self._costs.tensors.update, self.update_total()
        shapes = [layer.shape.parameter_shapes for layer in self.model.layers]
        alone = {of: look_up(tensors(of), self.optimizer).seconds for of in set(shapes) if of}
        # update times of 0 (no weights at all) have no proportion
        summed = math.fsum(alone[of] for of in shapes if of) or 1.0
        parts = {of: together.times(seconds / summed) for of, seconds in alone.items()}
        return tuple(parts.get(of, NOTHING) for of in shapes)

    def link(self, span: int, operation: str, groups: int = 1) -> Link:
        """alpha and beta of the slowest level that any group of `span` adjacent PEs crosses."""
        key = (span, operation, groups)
        if key not in self._links:
            self._links[key] = self.machine.network.link(span, operation, groups)
        return self._links[key]

    def contention(self, flows: float, span: int) -> Phi:
        """phi of so many rings at once that leave a node."""
        return self.machine.network.contention_of(flows, span)
