"""Many cases of different numbers of ranks in one launch, as many at a time as have room."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from calib.microbench.communicators.mpi import MpiCommunicator

Case = TypeVar("Case")


def side_by_side(
    everyone: MpiCommunicator, cases: Sequence[Case], ranks_of: Callable[[Case], int]
) -> Iterator[tuple[Case, MpiCommunicator]]:
    """The cases of this rank, each with the ranks that run it.

    Those of one number of ranks first, then of the next; who has none left waits without spinning.
    """
    for p in sorted(set(map(ranks_of, cases))):
        count = everyone.size // p
        group = everyone.rank // p
        ranks = range(group * p, (group + 1) * p) if group < count else None
        control = everyone.part(ranks)
        if control is not None:
            mine = [case for case in cases if ranks_of(case) == p][group::count]
            for case in mine:
                yield case, control
        everyone.quiet_barrier()  # who is done leaves the cores to the others
