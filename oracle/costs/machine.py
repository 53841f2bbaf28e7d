"""Costs of the parts of an iteration on a calibrated machine, each with interval and basis.

A `Machine` is a parameter file with its tables and cached look-ups; its `Costs` are those with a given
number of busy ranks per node.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

from calib.fitting.parameters.file import Parameters
from calib.foundation.collectives import SUMS
from calib.foundation.execution import USUAL
from calib.oracle.cost import NOTHING, Cost
from calib.oracle.costs.collectives import CollectiveCosts
from calib.oracle.costs.layers import LayerCosts
from calib.oracle.costs.tensors import TensorCosts
from calib.oracle.layout.traffic import Message
from calib.oracle.layout.workload import Tensors
from calib.oracle.once import once
from calib.oracle.sources import IN_PLACE, source_of

WIDE = 4  # bytes of an item of the narrowest type that MPI adds up in: float32
WIDENED = "MPI sums half precision as float32, which is what travels; the conversion is not counted"


class Machine:
    """A parameter file, ready for many predictions.

    With `told_apart` every measured time is an error source of its own (oracle/sensitivity.py): the
    seconds are the same, but intervals are not, as errors of measured times are fully correlated.
    """

    def __init__(self, parameters: Parameters, told_apart: bool = False) -> None:
        self.parameters = parameters
        self.told_apart = told_apart
        self.cache: dict[Any, Any] = {}

    @cached_property
    def network(self) -> CollectiveCosts:
        """Costs of operations between ranks; they do not depend on who computes."""
        return CollectiveCosts(self.parameters, told_apart=self.told_apart)

    @once
    def tables(self, active_ranks: int, execution: str) -> tuple[LayerCosts, TensorCosts]:
        """Costs of layers and tensor passes; they do not depend on the optimizer."""
        about = self.parameters, active_ranks, execution, self.told_apart
        return LayerCosts(*about), TensorCosts(*about)

    @once
    def costs(
        self, active_ranks: int, optimizer: str = "momentum", execution: str = USUAL
    ) -> Costs:
        """The costs with `active_ranks` busy ranks per node; equal arguments give the same object.

        `execution` is the full name, with the mark of CUDA graphs.
        """
        return Costs(self, active_ranks, optimizer, execution)


class Costs:
    """The look-ups of one prediction: `layers`, `tensors`, `network`."""

    def __init__(self, machine: Machine, active_ranks: int, optimizer: str, execution: str) -> None:
        self.layers, self.tensors = machine.tables(active_ranks, execution)
        self.network = machine.network
        self.optimizer, self.execution = optimizer, execution
        self._widens = machine.parameters.device_kind == "cpu"
        self.cache: dict[Any, Any] = {}

    def sent(self, message: Message, item_bytes: int) -> Cost:
        """An operation among ranks, in one launch of them.

        MPI adds up items of 2 bytes as float32 (torch_mpi.py).
        """
        about: tuple[str, ...] = ()
        if self._widens and item_bytes < WIDE and message.operation in SUMS:
            message = message._replace(nbytes=message.nbytes * WIDE // item_bytes)
            about = (WIDENED,)
        cost = self.network.time(message)
        # what messages differ by is their own: a link does not slow down with the cores
        factor = self.network.launch_factor(message._replace(nbytes=0, why=""))
        return cost.in_one_launch(factor).noted(*about)

    def rested(self, message: Message, rested_s: float, sent: Cost) -> Cost:
        """What a message that takes `sent` in a row saves after `rested_s` of work: 0 or below."""
        saved = self.network.saved(message, rested_s)
        if saved is None or not sent.seconds:
            return NOTHING
        value, low, high = (min(of, sent.seconds) for of in saved.numbers)
        error = source_of(IN_PLACE, "after work"), high - value, value - low
        return Cost(-value, sent.basis, (error,))

    def update(self, weights: Tensors, share: int = 1) -> Cost:
        """The optimizer's pass over weights, or over a `share`-th of them."""
        return self.tensors.update(weights, self.optimizer, share)
