"""The collectives of one iteration of a chain, in order, before any is done (formulas.md, "AutoDDL")."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

from calib.training.sbp.placement import Degrees

Kind = Literal["allreduce", "allgather", "reduce_scatter", "all_to_all"]


class Done(NamedTuple):
    """A collective: m of formulas.md in bytes, and the members of each group that does it."""

    operation: Kind
    nbytes: int
    group_size: int


def operations(
    rows: int, widths: Sequence[int], chain: Sequence[Degrees], itemsize: int
) -> list[Done]:
    """Of X [rows, widths[0]] through all layers and back, without dX of the first.

    Before a layer: an all-to-all of the local block where p1 changes, an allgather over p2; after it a
    reduce-scatter over p3. Backward: an allgather over p3, an allreduce over p1, a reduce-scatter over
    p2, the all-to-all back.
    """
    forward: list[Done] = []
    backward: list[list[Done]] = []
    p = math.prod(chain[0])
    for number, ((p1, p2, p3), k, n) in enumerate(zip(chain, widths, widths[1:], strict=False)):
        x, y = rows * k * itemsize // (p1 * p3), rows * n * itemsize // (p1 * p2)
        back = [Done("allgather", y, p3), Done("allreduce", k * n * itemsize // (p2 * p3), p1)]
        if number:
            old = chain[number - 1][0]
            members = max(p1, old) // min(p1, old)
            change = Done("all_to_all", rows * k * itemsize // p, members)
            forward += [change, Done("allgather", x, p2)]
            back += [Done("reduce_scatter", x, p2), change]
        forward.append(Done("reduce_scatter", y, p3))
        backward.append(back)
    every = [*forward, *(done for back in reversed(backward) for done in back)]
    return [done for done in every if done.group_size > 1]
