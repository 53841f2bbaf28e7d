"""Background traffic: pairs of ranks exchange messages while others are timed."""

from __future__ import annotations

from collections.abc import Sequence

from calib.foundation.errors import InputError
from calib.foundation.layers import ITEM_BYTES
from calib.microbench.communicator import Communicator
from calib.microbench.control import Control
from calib.microbench.timing.repeat import TimedBlock, Timings
from calib.microbench.timing.watchdog import beat


def background_pairs(order: Sequence[int], groups: Sequence[Sequence[int]]) -> list[list[int]]:
    """Pairs of the ranks outside `groups`: of 2 m ranks in machine order, i with i + m.

    They are as far apart as they can be, so that between nodes they cross the links that the
    victims cross. An odd rank stays idle. Raises InputError when fewer than two ranks are left.
    """
    busy = {rank for group in groups for rank in group}
    free = [rank for rank in order if rank not in busy]
    half = len(free) // 2
    if not half:
        raise InputError("background traffic needs two ranks beside the groups")
    return [[free[i], free[i + half]] for i in range(half)]


def background_block(name: str, pair: Communicator, control: Control, nbytes: int) -> TimedBlock:
    """Exchange messages with the other rank of `pair` until all of `control` have finished.

    The first item of each message says whether its sender knows that all have: so both stop after
    the same message, and none is left waiting.
    """
    items = nbytes // ITEM_BYTES
    outgoing, incoming = pair.buffer(items), pair.buffer(items)
    pair.fill(outgoing, 0.0)
    other = 1 - pair.rank

    def block(n: int) -> Timings:
        control.barrier()
        finished = control.start_barrier()
        while True:
            know = finished()
            pair.fill(outgoing[:1], 1.0 if know else 0.0)
            pair.exchange([(outgoing, other)], [(incoming, other)])
            beat()
            if know or pair.read(incoming[:1])[0] == 1.0:
                break
        while not finished():
            pass
        return Timings({name: [None] * n}, [None] * n, {})

    return block


def beside(block: TimedBlock, control: Control) -> TimedBlock:
    """A victim's block between the barriers that begin and end the background traffic."""

    def both(n: int) -> Timings:
        control.barrier()
        timings = block(n)
        finished = control.start_barrier()
        while not finished():
            pass
        return timings

    return both
