"""Gradient exchange under a plan, layer by layer among ranks with the same weights.

Ranks whose parts differ in samples and in space alone have the same channels, and each the gradient of
its own samples and pixels: what the loss's gradient is of the mean over the global batch makes of them
is their sum. One flat allreduce for each group of ranks, of all layers that it has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from calib.microbench.communicator import TorchGroup
from calib.oracle.layout.partitions import Configuration
from calib.training.gradients.flat import FlatAllreduce
from calib.training.plans.division import RankTuple


def summers(of: Configuration) -> list[RankTuple]:
    """The groups of ranks with terms of the same output."""
    return (
        [tuple(range(first, first + of.input)) for first in range(0, of.parts, of.input)]
        if of.input > 1
        else []
    )


class PlanGroups:
    """Communicators of groups of ranks, each made once. `world` is that of all of them."""

    def __init__(self, world: TorchGroup) -> None:
        self._world = world
        self._made: dict[RankTuple, TorchGroup] = {}
        self._known: set[tuple[RankTuple, ...]] = set()

    def make(self, apart: Sequence[RankTuple]) -> None:
        """Those of groups without a common rank; collective, in the same order on every rank."""
        key = tuple(ranks for ranks in apart if 1 < len(ranks) < self._world.size)
        if not key or key in self._known:
            return
        self._known.add(key)
        mine = next((ranks for ranks in key if self._world.rank in ranks), None)
        again = mine is not None and mine in self._made
        made = self._world.group(mine)
        if made is None or mine is None:
            return
        if again:
            made.close()
        else:
            self._made[mine] = made

    def of(self, ranks: RankTuple) -> TorchGroup:
        """That of one group."""
        return self._world if len(ranks) == self._world.size else self._made[ranks]

    def close(self) -> None:
        """Free them."""
        for group in self._made.values():
            group.close()
        self._made.clear()


class SharedGradients:
    """Gradients of all parameters of this rank, in their order; `sharer` tells the group of each."""

    def __init__(
        self, parameters: Sequence[Tensor], sharer: Sequence[RankTuple], groups: PlanGroups
    ) -> None:
        # groups in one order on every rank: no two wait for one another
        self._places = {
            ranks: [i for i, of in enumerate(sharer) if of == ranks]
            for ranks in sorted(set(sharer))
            if len(ranks) > 1
        }
        self._flat = {
            ranks: FlatAllreduce([parameters[i] for i in places], groups.of(ranks), 1)
            for ranks, places in self._places.items()
        }

    def pack(self, gradients: Sequence[Tensor]) -> None:
        """Copy the gradients into the flat buffers."""
        self._each(lambda flat, own: flat.pack(own), gradients)

    def exchange(self) -> None:
        """Sum them, group by group."""
        for flat in self._flat.values():
            flat.exchange()

    def unpack(self, gradients: Sequence[Tensor]) -> None:
        """Copy the sums back."""
        self._each(lambda flat, own: flat.unpack(own), gradients)

    def _each(
        self, do: Callable[[FlatAllreduce, list[Tensor]], None], gradients: Sequence[Tensor]
    ) -> None:
        for ranks, flat in self._flat.items():
            do(flat, [gradients[i] for i in self._places[ranks]])
