"""The collectives of one iteration of a chain, in order, before any is done (formulas.md, "AutoDDL")."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

from calib.training.sbp.placement import Degrees

CollectiveKind = Literal["allreduce", "allgather", "reduce_scatter", "all_to_all"]


class DoneCollective(NamedTuple):
    """A collective: m of formulas.md in bytes, and the members of each group that does it."""

    operation: CollectiveKind
    nbytes: int
    group_size: int


def operations(
    rows: int, widths: Sequence[int], chain: Sequence[Degrees], itemsize: int
) -> list[DoneCollective]:
    """Of X [rows, widths[0]] through all layers and back, without dX of the first.

    Before a layer: an all-to-all of the local block where p1 changes, an allgather over p2; after it a
    reduce-scatter over p3. Backward: an allgather over p3, an allreduce over p1, a reduce-scatter over
    p2, the all-to-all back.
    """
    forward: list[DoneCollective] = []
    backward: list[list[DoneCollective]] = []
    p = math.prod(chain[0])
    for number, ((p1, p2, p3), k, n) in enumerate(zip(chain, widths, widths[1:], strict=False)):
        x, y = rows * k * itemsize // (p1 * p3), rows * n * itemsize // (p1 * p2)
        back = [
            DoneCollective("allgather", y, p3),
            DoneCollective("allreduce", k * n * itemsize // (p2 * p3), p1),
        ]
        if number:
            old = chain[number - 1][0]
            members = max(p1, old) // min(p1, old)
            change = DoneCollective("all_to_all", rows * k * itemsize // p, members)
            forward += [change, DoneCollective("allgather", x, p2)]
            back += [DoneCollective("reduce_scatter", x, p2), change]
        forward.append(DoneCollective("reduce_scatter", y, p3))
        backward.append(back)
    every = [*forward, *(done for back in reversed(backward) for done in back)]
    return [done for done in every if done.group_size > 1]
