"""Memory of a pipeline's devices, counted exactly: activations in flight, weights, versions."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from calib.fitting.parameters.memory import STATES
from calib.foundation.arrays import Floats
from calib.foundation.errors import InputError
from calib.search.pipelines.partition import BytesHeld, Partition, between, chain_of, in_a_row
from calib.search.pipelines.work import PricedStates
from calib.search.request import BudgetOver

ROUNDS = 60


@dataclass(frozen=True)
class Holding:
    """What a schedule keeps. `stashing`: a version of the weights for each mini-batch in flight.

    `recompute` keeps the inputs of those in flight and the activations of one. Under gpipe all
    `microbatches` are in flight, else at most one for the device and each that follows.
    """

    schedule: str
    microbatches: int
    recompute: bool
    optimizer: str

    @property
    def stashing(self) -> bool:
        """Whether weights change while mini-batches are in flight."""
        return self.schedule == "pipedream"

    def flying(self, behind: int) -> int:
        """Mini-batches in flight on a device, `behind` of them for the devices that follow."""
        if self.schedule == "gpipe":
            return self.microbatches
        return behind + 1 if self.stashing else min(self.microbatches, behind + 1)

    def nbytes(
        self, activations: Floats, again: Floats, inputs: Floats, parameters: Floats, n: int
    ) -> Floats:
        """Bytes with n in flight, one of which makes `again` what checkpointed regions do not keep."""
        versions = n if self.stashing else 1
        kept = inputs * n + activations if self.recompute else activations * n
        found: Floats = kept + again + parameters * (versions + 1 + STATES[self.optimizer])
        return found


def held_by(pieces: PricedStates, holding: Holding) -> BytesHeld:
    """For `solve`: the bytes that [i, j] holds with so many more in flight behind it."""
    activations, again = pieces.held_bytes, pieces.again_bytes
    parameters = between(pieces.states.parameter_bytes)
    inputs = np.concatenate(([0.0], pieces.states.output_bytes))[:, None]
    known: dict[int, Floats] = {}

    def held(behind: int) -> Floats:
        n = holding.flying(behind)
        if n not in known:
            known[n] = holding.nbytes(activations, again, inputs, parameters, n)
        return known[n]

    return held


def stage_bytes(pieces: PricedStates, holding: Holding, start: int, end: int, flying: int) -> int:
    """Bytes of states [start, end) with so many in flight."""

    held, again = (of[start, end - 1] for of in (pieces.held_bytes, pieces.again_bytes))
    before = np.array(pieces.states.output_bytes[start - 1] if start else 0.0)
    sums = pieces.states.parameter_bytes
    parameters = np.array(sums[end - 1] - (sums[start - 1] if start else 0.0))
    return math.ceil(holding.nbytes(held, again, before, parameters, flying))


def smallest(solved: Callable[[float], Partition | None], limit: float) -> tuple[int, bool]:
    """(the least bytes per device that hold a pipeline, to 1/1000, True).

    Where the budget ends before: (bytes that are known to do, or 0, False).
    """
    low, high, found = limit, max(limit, 1.0) * 2, 0.0
    try:
        for _ in range(ROUNDS):
            if solved(high) is not None:
                found = high
                break
            low, high = high, 2 * high
        else:
            raise InputError("there is no such pipeline in any memory")
        while high - low > 1e-3 * low:
            middle = (low + high) / 2
            low, high = (low, middle) if solved(middle) is not None else (middle, high)
            found = high
    except BudgetOver:
        return math.ceil(found), False
    return math.ceil(found), True


def fewest_bytes(pieces: PricedStates, optimizer: str, machines: int) -> int:
    """Bytes of the fullest of at most so many devices in a row, with one mini-batch at a time."""
    each = 2 + STATES[optimizer]  # weights, gradients, state
    held = pieces.held_bytes[0] + each * pieces.states.parameter_bytes
    chain, alone = chain_of(pieces.states.before), Holding("1f1b", 1, False, optimizer)
    (stages,) = in_a_row(held, chain, min(machines, len(chain))).levels
    return max(stage_bytes(pieces, alone, of.start, of.end, 1) for of in stages)
