"""Data+filter: groups of p2 ranks share the filters, and p1 such groups have B/p1 samples each.

The segmented allreduce: every rank sums its own gradients with those of its place in the other
groups, and divides by p1 (ParaDL section 4.5.1, A.1.6; formulas.md). One group is filter, groups
of one rank are data. Synchronised batch norms are over the ranks with the same place in their groups,
which have all samples.
"""

from __future__ import annotations

from calib.training.gradients.flat import FlatAllreduce
from calib.training.split.shared_layers import make_shared
from calib.training.split.synchronized_norm import synchronize
from calib.training.worker import Held, Task, Worker


def make(task: Task) -> Worker:
    """This rank's parts of the layers."""
    across = task.teams.across

    def exchange(held: list[Held]) -> FlatAllreduce | None:
        return None if across is None else FlatAllreduce([h.parameter for h in held], across)

    worker = make_shared(task, exchange)
    if task.options.synchronized_batch_norm and across is not None:
        synchronize(worker.module, across, task.clock)
    return worker
