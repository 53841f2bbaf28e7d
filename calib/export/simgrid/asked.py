"""Ranks and machine of a SimGrid platform, and the oracle's times on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from calib.export.reference import Reference
from calib.export.simgrid.factors import MOST_BYTES, Algorithm, sizes
from calib.export.simgrid.topology import LINKS_OF_A_HOST, SimGridHosts, machine_of
from calib.export.target import ExportPoint, ExportRequest
from calib.fitting.parameters.collectives import CollectiveFit
from calib.foundation.errors import InputError
from calib.foundation.layers import ITEM_BYTES
from calib.oracle.costs.levels import NODE

ALLREDUCE, P2P = "allreduce", "p2p"


@dataclass(frozen=True)
class SimGridTimes:
    """The ranks and the machine that are asked for, and the oracle's times on them.

    `links`: p -> links of the routes of a ring, 0 inside a host. `main`: the p that the factors are
    fitted to, those over several hosts if there are such.
    """

    reference: Reference
    machine: SimGridHosts
    ranks: tuple[int, ...]
    links: dict[int, int]

    @property
    def per_node(self) -> int:
        return self.reference.parameters.ranks_per_node

    @property
    def spanning(self) -> tuple[int, ...]:
        return tuple(p for p in self.ranks if self.links[p])

    @property
    def main(self) -> tuple[int, ...]:
        return self.spanning or self.ranks

    @property
    def route(self) -> int:
        """Links of the routes that the factors are fitted on; 2 where all is inside a host."""
        return self.links[max(self.main)] or LINKS_OF_A_HOST

    @property
    def shared(self) -> bool:
        """Whether a ring over hosts has messages inside one, too."""
        return bool(self.spanning) and self.per_node > 1

    def measured(self, operation: str, spanning: bool) -> list[int]:
        """The p at which an operation was measured between hosts, or inside one."""
        return [
            fit.ranks
            for fit in self.reference.fits
            if fit.operation == operation and (fit.level != NODE) == spanning
        ]

    def alone(self, nbytes: int, spanning: bool) -> ExportPoint:
        """One message between neighbours."""
        return self.reference.seconds(P2P, nbytes, 2, self.per_node if spanning else 1)

    def steps(
        self, ranks: Sequence[int], algorithm: Algorithm, knows_alone: bool = False
    ) -> dict[int, list[tuple[int, float]]]:
        """Bytes of a step, rising -> (p, the oracle's seconds for a step) of each p."""
        low, high = self.reference.nbytes(ALLREDUCE)
        top = max(high, MOST_BYTES)
        parts = {p: algorithm.parts(p) for p in ranks}
        more = [
            size / algorithm.parts(fit.ranks)
            for fit in self.reference.fits
            if fit.operation == ALLREDUCE and fit.ranks in parts
            for size in own_sizes(fit)
        ]
        least, most = low // max(parts.values()), top // min(parts.values())
        least = max(ITEM_BYTES, least - least % ITEM_BYTES)
        found: dict[int, list[tuple[int, float]]] = {}
        for size in sizes(least, max(least, most), more):
            for p, part in parts.items():
                m = size * part
                inside = low <= m <= high
                if not inside and (size != least and not low <= m <= top):
                    continue
                try:
                    seconds = self.reference.seconds(ALLREDUCE, m, p).seconds
                except InputError:  # beyond what was asked there may be no possible time
                    if inside:
                        raise
                    continue
                found.setdefault(size, []).append((p, seconds))
        if not found:
            raise InputError(
                f"by these parameters no allreduce of {low} B to {high} B takes a time that SimGrid "
                "can be given"
            )
        smallest: dict[int, float] = {}
        for of in found.values():
            for p, seconds in of:
                smallest.setdefault(p, seconds)
        rest = None
        if knows_alone:
            rest = self.alone(ITEM_BYTES, bool(self.links[max(ranks)])).seconds
        return {
            size: [(p, algorithm.step_of(seconds, p, smallest[p], rest)) for p, seconds in of]
            for size, of in found.items()
        }


def own_sizes(fit: CollectiveFit) -> list[float]:
    """The measured sizes, and where pieces of the law begin and end."""
    ends = [end for piece in fit.pieces for end in (piece.from_nbytes, piece.to_nbytes)]
    return [*(point.nbytes for point in fit.points), *ends]


def asked_of(request: ExportRequest, reference: Reference, operation: str) -> SimGridTimes:
    """What a request asks for, at the p of this operation. Raises InputError."""
    per_node = request.parameters.ranks_per_node
    ranks = [p for p in reference.ranks(operation) if p > 1]
    if request.ranks and not ranks:
        raise InputError("simgrid: one rank sends nothing; give --ranks 2 or more")
    if request.nodes and not request.ranks:
        ranks = [p for p in ranks if p <= request.nodes * per_node]
    machine = machine_of(request, -(-max(ranks, default=1) // per_node))
    if not ranks or (not request.ranks and machine.nodes > 1 and max(ranks) <= per_node):
        # only the oracle's time on all hosts says anything about messages between them
        ranks.append(machine.nodes * per_node)
    if max(ranks) < 2:
        raise InputError("simgrid: a machine of one rank sends nothing; give --nodes 2 or more")
    links = {
        p: machine.ring_links(-(-p // per_node)) if p > per_node else 0 for p in sorted(set(ranks))
    }
    return SimGridTimes(reference, machine, tuple(links), links)
