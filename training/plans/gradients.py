"""Gradient exchange under a plan: each layer's, among the ranks with the same weights.

Ranks whose parts differ only in samples and in space have the same channels, and each has the gradient
of its own samples and pixels. The loss is scaled to the mean over the global batch, so they are summed
and not divided: one flat allreduce for each group of ranks, over all layers that it shares.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from calib.microbench.communicator import TorchGroup
from calib.training.gradients.flat import GroupSums
from calib.training.plans.division import RankTuple


class PlanGroups:
    """Communicators of groups of ranks, each made once. `world` has all ranks."""

    def __init__(self, world: TorchGroup) -> None:
        self._world = world
        self._made: dict[RankTuple, TorchGroup] = {}
        self._known: set[tuple[RankTuple, ...]] = set()

    def make(self, apart: Sequence[RankTuple]) -> None:
        """Those of disjoint groups; collective, in the same order on every rank."""
        key = tuple(ranks for ranks in apart if 1 < len(ranks) < self._world.size)
        if not key or key in self._known:
            return
        self._known.add(key)
        mine = next((ranks for ranks in key if self._world.rank in ranks), None)
        made = self._world.group(mine)
        if made is None or mine is None:
            return
        if mine in self._made:
            made.close()
        else:
            self._made[mine] = made

    def of(self, ranks: RankTuple) -> TorchGroup:
        """The communicator of one group."""
        return self._world if len(ranks) == self._world.size else self._made[ranks]

    def close(self) -> None:
        """Free them."""
        for group in self._made.values():
            group.close()
        self._made.clear()


def shared_gradients(
    parameters: Sequence[Tensor], sharers: Sequence[RankTuple], groups: PlanGroups
) -> GroupSums:
    """The exchange of a rank's parameters, in their order; `sharers` has the group of each."""
    places: dict[RankTuple, list[int]] = {}
    for place, ranks in enumerate(sharers):
        if len(ranks) > 1:
            places.setdefault(ranks, []).append(place)
    return GroupSums(parameters, [(places[ranks], groups.of(ranks)) for ranks in sorted(places)])
