"""The oracle's times of operations over sizes and ranks, for the exporters.

So a target is fitted to what `calib predict` says, with its laws, levels and extrapolations, and not to
single numbers of the file.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import cast

from calib.export.target import ExportPoint, ExportRequest
from calib.fitting.parameters.algorithms import ALGORITHMS
from calib.fitting.parameters.collectives import CollectiveFit
from calib.fitting.parameters.file import Parameters
from calib.foundation.collectives import Operation
from calib.foundation.errors import InputError, MissingParameter
from calib.oracle.costs.collective_laws import library_of
from calib.oracle.costs.collectives import CollectiveCosts
from calib.oracle.costs.levels import GroupLayout
from calib.oracle.layout.traffic import Message

# seconds that a call can take: what is outside is a mistake, and no target can hold it
POSSIBLE_S = (1e-12, 1e9)


def of_library(parameters: Parameters, library: str) -> Parameters:
    """The parameters with the network laws of one library alone. Raises InputError where it has none."""
    known = sorted({fit.library for fit in parameters.collectives})
    if library not in known:
        raise InputError(
            f"the parameters hold nothing of the library {library!r}; they hold: "
            f"{', '.join(known) or 'no collective at all'}"
        )
    return parameters.model_copy(
        update={
            name: [law for law in getattr(parameters, name) if law.library == library]
            for name in ("collectives", "structural", "contention")
        }
    )


class Reference:
    """The network of a request's parameters, by the library that predictions take."""

    def __init__(self, request: ExportRequest) -> None:
        self.request, self.parameters = request, request.parameters
        self.library, _ = library_of(request.parameters)
        self._network = CollectiveCosts(request.parameters)

    @cached_property
    def fits(self) -> list[CollectiveFit]:
        """The direct laws of the library."""
        fits = self.parameters.collectives
        return [fit for fit in fits if fit.library == self.library and fit.at_home]

    @cached_property
    def operations(self) -> frozenset[str]:
        """Those that the library has a law of, direct or structural."""
        laws = self.parameters.structural
        return frozenset(
            [fit.operation for fit in self.fits]
            + [law.operation for law in laws if law.library == self.library]
        )

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
        """Whether there is any law of the slowest level that so many ranks, `stride` apart, cross."""
        crossed = self._network.levels.names(GroupLayout(ranks, stride))
        return bool(self._levels.intersection(crossed))

    @cached_property
    def _levels(self) -> set[str]:
        laws = (law for law in self.parameters.structural if law.library == self.library)
        return {fit.level for fit in self.fits} | {law.level for law in laws}

    def ranks(self, operation: str) -> tuple[int, ...]:
        """The p that the request asks for, else those that were measured of the operation."""
        if self.request.ranks:
            return self.request.ranks
        laws = [
            law
            for law in self.parameters.structural
            if law.library == self.library and law.operation == operation
        ]
        found = {fit.ranks for fit in self.fits if fit.operation == operation}
        return tuple(sorted(found.union(*(law.ranks for law in laws)))) or (2,)

    def nbytes(self, operation: str) -> tuple[int, int]:
        """The sizes that the request asks for, else those that were measured for all those p."""
        if self.request.nbytes is not None:
            return self.request.nbytes
        ranges = [fit.range_nbytes for fit in self.fits if fit.operation == operation]
        ranges += [
            (round(law.range_nbytes[0]), round(law.range_nbytes[1]))
            for law in self.parameters.structural
            if law.library == self.library and law.operation == operation
        ]
        low, high = max(r[0] for r in ranges), min(r[1] for r in ranges)
        if low <= high:
            return max(1, low), max(1, high)
        return max(1, min(r[0] for r in ranges)), max(r[1] for r in ranges)

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


def with_ranks(request: ExportRequest, ranks: Sequence[int]) -> ExportRequest:
    """The same request for these p."""
    return replace(request, ranks=tuple(ranks))


COLLECTIVES = tuple(ALGORITHMS)
