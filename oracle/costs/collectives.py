"""Cost of operations between ranks on a calibrated machine.

A group is as slow as the slowest level it crosses (formulas.md, "Levels"; oracle/costs/levels.py). The
surest law of its operation at that level applies (oracle/costs/collective_laws.py); without one, the
operation is composed of others; failing that, another level stands in, with a wider interval.
Concurrent groups share links: oracle/costs/contention.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

from calib.fitting.parameters.algorithms import ALGORITHMS, GroupShape
from calib.fitting.parameters.capacity import Least
from calib.fitting.parameters.collectives import CollectiveFit, CollectiveLaw
from calib.fitting.parameters.file import Parameters
from calib.fitting.parameters.halos import HALO, neighbours
from calib.fitting.parameters.memory import Overlap
from calib.fitting.parameters.structural import StructuralFit, default_law
from calib.foundation.collectives import Operation, bus_factor, sent_bytes, without_own
from calib.foundation.errors import MissingParameter
from calib.foundation.records import Estimate
from calib.foundation.statistics import median
from calib.oracle.cost import NOTHING, Cost, total, widened
from calib.oracle.costs.collective_laws import (
    HIERARCHICAL,
    LAYOUT_FACTOR,
    Law,
    direct,
    halo,
    layout_doublings,
    names_of,
    nearest,
    repeated,
    structural,
    unsure,
)
from calib.oracle.costs.contention import ContentionCosts, Phi
from calib.oracle.costs.levels import NODE, GroupLayout, Levels, ladder
from calib.oracle.costs.link import Link
from calib.oracle.costs.senders import Sender, base_name, lenders, library_of
from calib.oracle.layout.traffic import Message
from calib.oracle.once import once
from calib.oracle.projection import Basis
from calib.oracle.sources import LAYOUT_LAWS, source_of

# between nodes whose link was not measured the time may be anything; a note says so too
UNMEASURED_LEVEL_FACTOR = 10.0
# an operation composed of others; on one machine reduce-scatter and allgather, and a halo and its
# messages, differed by up to 2.6
COMPOSED_FACTOR = 2.5
# operations with the same steps and volume (formulas.md, "Collectives")
MIRRORS: dict[Operation, tuple[Operation, ...]] = {
    "reduce_scatter": ("allgather",),
    "allgather": ("reduce_scatter", "allgatherv"),
    "allgatherv": ("allgather", "reduce_scatter"),
}
# operations whose alpha and beta stand in for another's, nearest of kin first
KIN = {
    "p2p": ("p2p", "p2p_both", "allreduce"),
    HALO: ("p2p", "p2p_both", "allreduce"),
    "allgather": ("allgather", "reduce_scatter", "allreduce"),
    "reduce_scatter": ("reduce_scatter", "allgather", "allreduce"),
}

PriceOfBytes = Callable[[int], Cost]  # of m bytes


class CollectiveCosts:
    """Looks up collectives, structural laws, contention and overlap in a parameter file."""

    def __init__(
        self,
        parameters: Parameters,
        library: str = "",
        device: str = "",
        levels: Levels | None = None,
        told_apart: bool = False,
    ) -> None:
        """`library` and `device`: see `library_of`. `levels`: on nodes of another size.

        `told_apart`: as `Machine` has it.

        Raises InputError where the parameters hold nothing of the library on the device.
        """
        self.levels = levels or Levels.of(parameters)
        self.sender = library_of(parameters, library, device)
        self._lent = {} if library else self._borrowed(parameters)
        self._fits: dict[tuple[str, str], list[CollectiveFit]] = {}
        for fit in parameters.collectives:
            if self._is_of_sender(fit):
                self._fits.setdefault((fit.operation, fit.level), []).append(fit)
        name = self.sender.library
        overlaps = [law for law in parameters.overlap if law.library == name]
        self._overlaps = overlaps or parameters.overlap
        self._laws = {
            (law.operation, law.level): law
            for law in parameters.structural
            if self._is_of_sender(law)
        }
        self._capacity = parameters.capacity
        self._told_apart = told_apart
        self._contention = ContentionCosts(parameters, name, self.sender.device)
        self.cache: dict[Any, Any] = {}

    def _borrowed(self, parameters: Parameters) -> dict[str, Sender]:
        """Operations that are taken from another library, as none has them or their mirrors here."""
        own = {base_name(fit.operation) for fit in parameters.collectives if self._is_own(fit)}
        return {
            name: lender
            for name, lender in lenders(parameters, self.sender).items()
            if own.isdisjoint(MIRRORS.get(cast("Operation", name), ()))
        }

    def _is_own(self, law: CollectiveLaw) -> bool:
        return (law.library, law.device) == self.sender[:2]

    def sender_of(self, operation: str) -> Sender:
        """Whose times of an operation these are, and what is to be said of that."""
        return self._lent.get(base_name(operation), self.sender)

    def _lender_notes(self, operation: str) -> tuple[str, ...]:
        """What is to be said where an operation that stands in is itself another library's."""
        lender = self._lent.get(operation)
        return lender.notes if lender is not None else ()

    def _is_of_sender(self, law: CollectiveLaw) -> bool:
        return (law.library, law.device) == self.sender_of(law.operation)[:2]

    @property
    def operations(self) -> list[str]:
        """The operations that were measured, sorted."""
        return sorted({operation for operation, _ in self._fits})

    def fit_of(self, message: Message) -> CollectiveFit | None:
        """The direct law of a message: of this operation, measured in this layout."""
        return self._fit_at(message, self.levels.names(GroupLayout.of(message)))

    def _fit_at(self, message: Message, levels: tuple[str, ...]) -> CollectiveFit | None:
        """A law of the operation at these levels that was measured in the message's layout."""
        shape = self._shape(GroupLayout.of(message))
        for name in names_of(message):
            for fit in self._fits_of(name, levels):
                if fit.ranks == shape.ranks and fit.made_on(*shape[1:]):
                    return fit
        return None

    def law_of(self, message: Message) -> StructuralFit | None:
        """The law of a message's operation on any number of ranks, at the level that it crosses."""
        levels = self.levels.names(GroupLayout.of(message))
        laws = (self._laws.get((message.operation, level)) for level in levels)
        return next((law for law in laws if law is not None), None)

    def time(self, message: Message) -> Cost:
        """One operation, by all its groups at once; NOTHING for groups of 1.

        Raises MissingParameter if the file has nothing like it.
        """
        return NOTHING if message.group_size == 1 else self._time(message[:-1])

    @once
    def _time(self, message: tuple[Any, ...]) -> Cost:
        """The time of a message without its `why`."""
        operation, nbytes, *layout = message
        return self._price(operation, *layout)(nbytes)

    @once
    def launch_factor(self, message: Message) -> float:
        """95% of launches have a message within this factor of what many say; 1: not known.

        Of the operation between such ranks, else of all operations between them.
        """
        levels = self.levels.names(GroupLayout.of(message))
        factors: dict[str, list[float]] = {}
        for (operation, level), fits in self._fits.items():
            if level in levels:
                known = [fit.launch_factor for fit in fits if fit.launch_factor > 1]
                factors.setdefault(base_name(operation), []).extend(known)
        mine = factors.get(message.operation) or [x for of in factors.values() for x in of]
        return median(mine) if mine else 1.0

    def saved(self, message: Message, rested_s: float) -> Estimate | None:
        """Seconds that a message saves where its links rested before; None where nothing passes at once.

        The ranks of a node share what its link takes. A message one way was measured on links that rest
        while the answer comes.
        """
        layout = GroupLayout.of(message)
        names = self.levels.names(layout)
        if message.operation == "p2p" or names == (NODE,):
            return None
        fit = next((fit for fit in self._fits_of("p2p_both", names) if fit.burst is not None), None)
        if fit is None or fit.burst is None:
            return None
        p, flows = message.group_size, max(self.levels.flows(layout), 1)
        each = (
            neighbours(message.grid)
            if message.operation == HALO
            else bus_factor(message.operation, p)
        )
        nbytes = message.nbytes * (each or without_own(p)) * flows
        return fit.burst.saved(fit.beta_s_per_byte.value, nbytes, rested_s)

    def overlap(self, p: int) -> Overlap | None:
        """The law of the nearest measured p; None if there is none.

        Outside the measured range of p anything from none to all may be hidden: eta is 0 to 1.
        """
        if not self._overlaps:
            return None
        nearest = min(self._overlaps, key=lambda law: abs(math.log(law.ranks / p)))
        if self.knows_overlap(p):
            return nearest
        anything = Estimate(value=nearest.eta.value, low=0.0, high=1.0)
        return nearest.model_copy(update={"eta": anything})

    def overlapped(self, key: str, p: int) -> Estimate | None:
        """Seconds of an overlapped iteration of this work on p ranks; None where none was measured."""
        measured = (each for law in self._overlaps if law.ranks == p for each in law.iterations)
        return next((each.seconds for each in measured if each.key == key), None)

    def knows_overlap(self, p: int) -> bool:
        """Whether p lies within the range of measured overlap."""
        ranks = [law.ranks for law in self._overlaps]
        return bool(ranks) and min(ranks) <= p <= max(ranks)

    def contention_of(self, flows: float, span: int) -> Phi:
        """phi of so many concurrent rings among `span` adjacent ranks.

        1 inside a node, as the paper's phi is of the links between nodes.
        """
        inside = span <= self.levels.ranks_per_node
        return Phi.exactly(1.0) if inside else self._contention.share(flows)

    @once
    def link(self, span: int, operation: str, groups: int = 1) -> Link:
        """alpha and beta of a Hockney line, at the slowest level that `groups` of `span` ranks cross.

        The groups are consecutive, so some cross the end of a node that is no multiple of `span`. The
        line is that of the nearest measured p, or of the operation's nearest kin. Raises
        MissingParameter if no level has either.
        """
        levels = self.levels.names(GroupLayout(span, 1, groups))
        shape = self._shape(GroupLayout(span, 1, groups))
        for names in ladder(levels):
            for name in KIN.get(operation, (operation, "allreduce")):
                fits = self._fits_of(name, names)
                if fits:
                    return self._link(nearest(fits, shape), shape, operation, levels)
        raise self._missing(operation, levels)

    def _link(
        self, fit: CollectiveFit, shape: GroupShape, operation: str, levels: tuple[str, ...]
    ) -> Link:
        notes, factor = list(self.sender_of(fit.operation).notes), fit.line_error_factor
        basis: Basis = "interpolated"
        span, apart = shape.ranks, layout_doublings(shape, fit)
        if fit.operation in ALGORITHMS and (fit.ranks != span or apart):
            ranks = [f.ranks for f in self._fits_of(fit.operation, (fit.level,))]
            between = min(ranks) <= span <= max(ranks) and not apart
            basis = "interpolated" if between else "extrapolated"
            factor = widened(fit.line_error_factor, max(span / fit.ranks, fit.ranks / span), 1.0)
            factor *= LAYOUT_FACTOR**apart
            notes.append(
                f"alpha and beta of {fit.operation} are those of {fit.ranks} ranks{fit.among}"
            )
        if fit.operation != KIN.get(operation, (operation,))[0]:
            basis = "extrapolated"
            notes.append(
                f"no {operation} was measured: alpha and beta are those of {fit.operation}"
            )
        if fit.level not in levels:
            basis, factor = "extrapolated", factor * UNMEASURED_LEVEL_FACTOR
            notes.append(self._elsewhere(GroupLayout(span), fit.level))
        alpha, beta = (
            Estimate(value=e.value, low=e.low / factor, high=e.high * factor)
            for e in (fit.alpha_s, fit.beta_s_per_byte)
        )
        return Link(levels[0], alpha, beta, basis, tuple(notes))

    @once
    def _price(self, operation: Operation, *layout: Any) -> PriceOfBytes:
        """The cost of messages of any m; all that does not depend on m is done here."""
        message = Message(operation, 0, *layout)
        levels = self.levels.names(GroupLayout.of(message))
        law = self._measured(message, levels)
        if law is None and message.operation == HIERARCHICAL:
            return self._by_leaders(message)
        for names in ladder(levels):
            if law is not None:
                break
            law = self._similar(message, names)
            if law is not None and names != levels:
                note = self._elsewhere(GroupLayout.of(message), names[0])
                source = source_of(LAYOUT_LAWS, f"unmeasured {levels[0]}")
                law = unsure(law, UNMEASURED_LEVEL_FACTOR, source, note)
        if law is None:
            raise self._missing(message.operation, levels)
        return self._crowded(law, message)

    def _crowded(self, law: Law, message: Message) -> PriceOfBytes:
        """The law under the contention of the message's groups, with the notes of the library."""
        operation, p = message.operation, message.group_size
        phi, about = self._contention.of(message), self.sender_of(operation).notes

        def price(nbytes: int) -> Cost:
            found = law(sent_bytes(operation, nbytes, p))
            cost = phi.applied(found) if phi is not None else found.cost
            return cost.noted(*about) if about else cost

        return price

    def _measured(self, message: Message, levels: tuple[str, ...]) -> Law | None:
        """A law of the operation at its level: of this layout, else scaled from others."""
        shape, fit = self._shape(GroupLayout.of(message)), self._fit_at(message, levels)
        if fit is not None:
            return direct(fit, self._told_apart)
        return self._scaled(message.operation, levels, shape, packed=message.stride == 1)

    def _scaled(
        self, operation: str, levels: tuple[str, ...], shape: GroupShape, packed: bool = False
    ) -> Law | None:
        """The structural law of the first of these levels that has the operation.

        `packed` where the nodes of the group are next to one another.
        """

        def least(nbytes: int) -> Least:
            return self._capacity.least(operation, shape, nbytes, packed)

        for level in levels:
            fits = self._fits_of(operation, (level,))
            if fits and operation in ALGORITHMS:
                law = self._laws.get((operation, level))
                on = law and law.on(shape, fits)
                if not on:
                    on = default_law(fits, self._capacity.shared_links).on(shape, fits)
                return structural(on, least) if on else None
        return None

    def _shape(self, layout: GroupLayout) -> GroupShape:
        return GroupShape(layout.size, *self.levels.shape(layout))

    def _similar(self, message: Message, levels: tuple[str, ...]) -> Law | None:
        """A law from another layout at these levels, or composed of other operations there."""
        operation, shape = message.operation, self._shape(GroupLayout.of(message))
        if operation == HALO:
            return self._halo(message, levels)
        fits = self._fits_of(operation, levels)
        if fits:
            return self._from_nearest(fits, shape)
        for mirror in MIRRORS.get(operation, ()):
            like = message._replace(operation=mirror)
            fits = self._fits_of(mirror, levels)
            law = self._measured(like, levels) or (
                self._from_nearest(fits, shape) if fits else None
            )
            if law is not None:
                note = f"no {operation} was measured: taken from {mirror}, of the same steps"
                notes = (note, *self._lender_notes(mirror))
                source = source_of(LAYOUT_LAWS, f"{operation} of {mirror}")
                return unsure(law, COMPOSED_FACTOR, source, *notes)
        return None

    def _from_nearest(self, fits: list[CollectiveFit], shape: GroupShape) -> Law:
        """The nearest measured layout as it was; of another level, scaled as if it were this one's."""
        fit = nearest(fits, shape)
        apart = layout_doublings(shape, fit)
        if not apart and fit.ranks == shape.ranks:  # at another level
            return direct(fit, self._told_apart)
        there = GroupShape(shape.ranks, 1, shape.ranks)
        if fit.level != NODE:
            there = shape if shape.nodes > 1 else GroupShape(shape.ranks, shape.ranks, 1)
        scaled = self._scaled(fit.operation, (fit.level,), there)
        if scaled is not None:
            return scaled
        note = f"{fit.operation} on {shape.words} was not measured: that of {fit.ranks}{fit.among}"
        source = source_of(LAYOUT_LAWS, f"{fit.operation} elsewhere")
        return unsure(direct(fit), LAYOUT_FACTOR**apart, source, note)

    def _halo(self, message: Message, levels: tuple[str, ...]) -> Law | None:
        """A halo of another grid, else a message to each neighbour in turn."""
        fits = [
            fit
            for (name, level), fits in self._fits.items()
            for fit in fits
            if level in levels and name.startswith(HALO) and not name.endswith("graph")
        ]
        if fits:
            return halo(fits, message.grid, self._shape(GroupLayout.of(message)))
        many = neighbours(message.grid)
        for name in ("p2p_both", "p2p"):
            fits = self._fits_of(name, levels)
            if fits:
                note = f"no halo was measured: taken as {many} {name}, one for each neighbour"
                notes = (note, *self._lender_notes(name))
                law = repeated(direct(fits[0]), many)
                source = source_of(LAYOUT_LAWS, f"halo of {name}")
                return unsure(law, COMPOSED_FACTOR, source, *notes)
        return None

    def _by_leaders(self, message: Message) -> PriceOfBytes:
        """An allreduce inside every group of `inner`, then between their leaders (formulas.md)."""
        p, inner, stride = message.group_size, message.inner, message.stride
        if inner in (1, p):
            return self._price("allreduce", p, stride, message.groups)
        groups = p // inner * message.groups
        inside = self._price("allreduce", inner, stride, groups)
        leaders = self._price("allreduce", p // inner, stride * inner, message.groups)
        note = (
            f"hierarchical allreduce of {inner} of {p} ranks was not measured: an allreduce of "
            f"{inner} and one of {p // inner} leaders"
        )

        def price(nbytes: int) -> Cost:
            within = inside(nbytes)
            # inside a group it is a reduce and a broadcast, not an allreduce
            unsure = (
                within.seconds * (1 - 1 / COMPOSED_FACTOR),
                within.seconds * (COMPOSED_FACTOR - 1),
            )
            source = source_of(LAYOUT_LAWS, "reduce and broadcast")
            reduced = within._replace(errors=(*within.errors, (source, *unsure)))
            return total([reduced, leaders(nbytes)]).at_best("extrapolated").noted(note)

        return price

    def _fits_of(self, name: str, levels: tuple[str, ...]) -> list[CollectiveFit]:
        """The fits of an operation at these levels, in order."""
        return [fit for level in levels for fit in self._fits.get((name, level), ())]

    def _elsewhere(self, layout: GroupLayout, level: str) -> str:
        """The note on an operation measured at another level only."""
        apart = f" {layout.stride} apart" if layout.stride > 1 else ""
        if level == NODE:
            return (
                f"{layout.size} ranks{apart} are on more than one node of "
                f"{self.levels.ranks_per_node} and no link between nodes was measured: taken as the "
                "node's own, with a guess for an interval; calibrate on two nodes"
            )
        return (
            f"{layout.size} ranks{apart} are at a level that was not measured: the link is that of "
            f"the {level} and the interval is a guess"
        )

    def _missing(self, operation: str, levels: tuple[str, ...]) -> MissingParameter:
        where, how = "inside a node", "measure it on 2 ranks"
        if levels != (NODE,):
            where, how = "between nodes, nor inside one", "calibrate on two nodes"
        name = operation.replace("_", " ")
        return MissingParameter(
            f"the parameters hold no {name} {where}, nor what it could be derived from; {how}"
        )
