"""The oracle's times of operations over sizes and ranks, for the exporters.

A target is fitted to what `calib predict` says, with its laws, levels and extrapolations, not to single
numbers of the file.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import NamedTuple, cast

from calib.export.target import ExportPoint, ExportRequest
from calib.fitting.parameters.collectives import CollectiveFit
from calib.foundation.collectives import Operation
from calib.foundation.errors import InputError, MissingParameter
from calib.oracle.costs.collectives import CollectiveCosts
from calib.oracle.costs.levels import GroupLayout
from calib.oracle.costs.senders import library_of
from calib.oracle.layout.traffic import Message

# seconds that a call can take: what is outside is a mistake, and no target can hold it
POSSIBLE_S = (1e-12, 1e9)


class Place(NamedTuple):
    """One law of an operation: the level it is of, its ranks, and the sizes that were measured."""

    level: str
    ranks: tuple[int, ...]
    nbytes: tuple[int, int]


def common_sizes(found: Sequence[Place]) -> tuple[int, int]:
    """The sizes that all of these laws were measured at; where they share no range, those of any."""
    low, high = max(p.nbytes[0] for p in found), min(p.nbytes[1] for p in found)
    if low >= high:
        low, high = min(p.nbytes[0] for p in found), max(p.nbytes[1] for p in found)
    return max(1, low), max(1, high)


class Reference:
    """The network of a request's parameters, by the library that predictions take."""

    def __init__(self, request: ExportRequest) -> None:
        self.request, self.parameters = request, request.parameters
        self.library = library_of(request.parameters).library
        self._network = CollectiveCosts(request.parameters)

    @cached_property
    def fits(self) -> list[CollectiveFit]:
        """The direct laws of the library."""
        fits = self.parameters.collectives
        return [fit for fit in fits if fit.library == self.library and fit.at_home]

    @cached_property
    def _places(self) -> dict[str, list[Place]]:
        found: dict[str, list[Place]] = defaultdict(list)
        for fit in self.fits:
            found[fit.operation].append(Place(fit.level, (fit.ranks,), fit.range_nbytes))
        for law in self.parameters.structural:
            if law.library == self.library:
                low, high = map(round, law.range_nbytes)
                found[law.operation].append(Place(law.level, tuple(law.ranks), (low, high)))
        return dict(found)

    @property
    def operations(self) -> frozenset[str]:
        """Those that the library has a law of, direct or structural."""
        return frozenset(self._places)

    def places(self, operation: str) -> list[Place]:
        """The laws of an operation that the library has, direct ones first."""
        return self._places.get(operation, [])

    def needed(self, target: str, *operations: str) -> str:
        """The first of these operations that was measured. Raises MissingParameter where none was."""
        for operation in operations:
            if operation in self.operations:
                return operation
        known = any(fit.at_home for fit in self.parameters.collectives)
        raise MissingParameter(
            f"{target} needs times of {' or '.join(operations)}, and the parameters hold none"
            f"{f' of {self.library}' * known}; `calib measure -n 2 -o RUN` and `calib fit RUN` add them"
        )

    def measured_at(self, ranks: int, stride: int = 1) -> bool:
        """Whether any law is of the slowest level that these ranks, `stride` apart, cross."""
        crossed = self._network.levels.names(GroupLayout(ranks, stride))
        return any(law.level in crossed for laws in self._places.values() for law in laws)

    def ranks(self, operation: str) -> tuple[int, ...]:
        """The p that the request asks for, else those that were measured of the operation."""
        measured = {p for place in self.places(operation) for p in place.ranks}
        return self.request.ranks or tuple(sorted(measured)) or (2,)

    def nbytes(self, operation: str) -> tuple[int, int]:
        """The sizes that the request asks for, else those that were measured for all those p."""
        return self.request.nbytes or common_sizes(self.places(operation))

    def seconds(
        self, operation: str, nbytes: int, ranks: int, stride: int = 1, groups: int = 1
    ) -> ExportPoint:
        """One operation. Raises MissingParameter, or InputError for a time that cannot be."""
        message = Message(cast("Operation", operation), nbytes, ranks, stride, groups)
        cost = self._network.time(message)
        if not POSSIBLE_S[0] <= cost.seconds <= POSSIBLE_S[1]:
            raise InputError(
                f"by these parameters {operation} of {nbytes} B on {ranks} ranks takes "
                f"{cost.seconds:g} s, which no other tool can be given"
            )
        return ExportPoint(
            operation, nbytes, ranks, cost.seconds, cost.basis, (cost.low, cost.high)
        )

    def points(
        self,
        operation: str,
        ranks: Iterable[int] | None = None,
        nbytes: tuple[int, int] | None = None,
        stride: int = 1,
    ) -> list[ExportPoint]:
        """Times over the stated ranks and sizes (`steps`)."""
        ends = nbytes or self.nbytes(operation)
        chosen = self.ranks(operation) if ranks is None else ranks
        return [self.seconds(operation, m, p, stride) for p in chosen for m in steps(ends)]


def steps(ends: tuple[int, int]) -> list[int]:
    """Sizes from one end to the other: both, and the powers of two between them."""
    low, high = ends
    between = [1 << k for k in range(low.bit_length(), high.bit_length()) if low < 1 << k < high]
    return sorted({low, *between, high})


def whole_machine(request: ExportRequest) -> tuple[int, int]:
    """(nodes, ranks of a node) of the machine that the target describes."""
    return request.nodes or max(request.parameters.nodes, 1), request.parameters.ranks_per_node
