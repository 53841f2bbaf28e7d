"""phi: how much longer an operation's bytes take when several groups run it at once.

formulas.md, data+filter: phi is the flows of a node over its links. Measurements take precedence.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from calib.fitting.parameters.contention import ContentionFit
from calib.fitting.parameters.file import Parameters
from calib.foundation.records import Estimate
from calib.oracle.cost import Cost
from calib.oracle.costs.collective_laws import LAYOUT_FACTOR, TimedBytes
from calib.oracle.costs.levels import NODE, GroupLayout, Levels, doublings
from calib.oracle.layout.traffic import Message
from calib.oracle.projection import Basis
from calib.oracle.sources import CONTENTION


@dataclass(frozen=True, slots=True)
class Phi:
    """The factor on the bytes, with its basis and notes."""

    factor: Estimate
    basis: Basis
    notes: tuple[str, ...] = ()

    @classmethod
    def exactly(cls, value: float) -> Phi:
        """A phi without an error."""
        return cls(Estimate.exactly(value), "exact")

    def applied(self, found: TimedBytes) -> Cost:
        """t + (phi - 1) x its time of bytes, with the relative error of t and the error of phi."""
        cost, factor, by_bytes = found.cost, self.factor, found.byte_s
        share = 1.0 + (factor.value - 1.0) * by_bytes / cost.seconds if cost.seconds else 1.0
        grown = cost.times(share).at_best(self.basis)
        errors = (
            *grown.errors,
            (
                CONTENTION,
                (factor.value - factor.low) * by_bytes,
                (factor.high - factor.value) * by_bytes,
            ),
        )
        return Cost(grown.seconds, grown.basis, errors, (*grown.notes, *self.notes))


class ContentionCosts:
    """The contention records of one library and device, and the links of the cluster."""

    def __init__(self, parameters: Parameters, library: str, device: str) -> None:
        self._levels = Levels.of(parameters)
        self._links = parameters.links_per_node
        self._fits = [
            fit for fit in parameters.contention if (fit.library, fit.device) == (library, device)
        ]

    def of(self, message: Message) -> Phi | None:
        """phi of a message; None if its groups share no link or memory."""
        if message.groups == 1:
            return None
        layout = GroupLayout.of(message)
        flows = self._levels.flows(layout)
        inside = flows == 0
        if inside:
            flows = self._levels.together(layout)
        if flows < 2:
            return None
        names = self._levels.names(layout)
        fit = self._nearest(message.operation, layout, names)
        if fit is not None:
            shapes = (self._levels.shape(x) for x in (layout, GroupLayout(fit.ranks, fit.stride)))
            return _measured(fit, message.operation, layout, flows, doublings(*shapes))
        if inside:
            return Phi(
                Estimate(value=1.0, low=1.0, high=float(flows)),
                "extrapolated",
                (
                    f"{flows} groups at once inside a node were not measured: taken as if each were "
                    f"alone, and up to {flows} times as long",
                ),
            )
        return self._of_links(flows)

    def _of_links(self, flows: int) -> Phi:
        """phi from the cluster's links; unknown links are one per node, up to one per flow."""
        links = self._links or 1
        factor = Estimate(value=max(1.0, flows / links), low=1.0, high=float(flows))
        note = f"contention from the cluster's links: {flows} flows leave a node by {links}"
        if not self._links:
            note = (
                f"{flows} flows leave a node, whose links are unknown and whose contention was not "
                "measured: taken as if by one link, at best by as many as there are flows"
            )
        return Phi(factor, "extrapolated", (note,))

    def _nearest(
        self, operation: str, layout: GroupLayout, names: tuple[str, ...]
    ) -> ContentionFit | None:
        """The record of the operation, else of the allreduce, with the nearest ranks and stride."""
        inside = NODE in names
        for name in dict.fromkeys((operation, "allreduce")):
            fits = [f for f in self._fits if f.operation == name and (f.level == NODE) == inside]
            if fits:
                return min(
                    fits,
                    key=lambda f: (
                        f.level not in names,
                        abs(math.log(f.ranks / layout.size)),
                        abs(math.log(f.stride / layout.stride)),
                    ),
                )
        return None

    def share(self, flows: float) -> Phi:
        """phi by the equation: flows (at most a node's ranks) over links, at least 1.

        If the cluster does not state its links, a measured allreduce gives phi; without one there is one
        link, or up to one per flow.
        """
        flows = max(1.0, min(flows, float(self._levels.ranks_per_node)))
        if self._links:
            return Phi.exactly(max(1.0, flows / self._links))
        for fit in self._fits:
            if fit.operation == "allreduce" and fit.level != NODE:
                return Phi(_at_least_one(fit.contention(flows)), "interpolated")
        return self._of_links(round(flows)) if flows > 1 else Phi.exactly(1.0)


def _at_least_one(found: Estimate) -> Estimate:
    """phi at least 1: contention makes nothing faster."""
    return Estimate(value=max(1.0, found.value), low=max(1.0, found.low), high=max(1.0, found.high))


def _measured(
    fit: ContentionFit, operation: str, layout: GroupLayout, flows: int, apart: float
) -> Phi:
    """phi of a record, at the groups of its own layout or at the flows that share a link.

    `apart`, the doublings of nodes or ranks on one from the record's layout, widens the interval, within
    1 and all flows on one link.
    """
    most = fit.points[-1].groups
    same = (fit.ranks, fit.stride) == (layout.size, layout.stride)
    # count groups as measured if the layout is the same, else the flows that meet
    groups = max(flows, min(layout.groups, most)) if same else flows
    factor = _at_least_one(fit.contention(groups))
    if apart:
        unknown = LAYOUT_FACTOR**apart
        high = max(factor.high, min(factor.high * unknown, float(flows)))
        factor = Estimate.around(factor.value, max(1.0, factor.low / unknown), high)
    notes: tuple[str, ...] = ()
    if not same or fit.operation != operation:
        notes = (
            f"contention of {layout.groups} groups of {layout.size} ranks {layout.stride} apart in "
            f"{operation}: that of {groups} groups of {fit.ranks} {fit.stride} apart in "
            f"{fit.operation}",
        )
    near = same and fit.operation == operation and groups <= most
    return Phi(factor, "interpolated" if near else "extrapolated", notes)
