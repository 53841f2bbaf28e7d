"""Data parallelism as the paper's framework did it: one flat allreduce after the backward.

Each PE has all weights and B/p of the batch; gradients are packed into one buffer, summed over the
PEs, divided by p and copied back (ParaDL section 3.2 "data"; formulas.md).
"""

from __future__ import annotations

from training.flat import FlatAllreduce
from training.worker import Task, Worker, whole_parameters


def make(task: Task) -> Worker:
    """The module as it is; on one rank nothing is exchanged, and it is serial training."""
    held = whole_parameters(task.module)
    exchange = None
    if task.division.p > 1:
        exchange = FlatAllreduce([h.parameter for h in held], task.teams.world)
    return Worker(task, task.module, held, exchange)
