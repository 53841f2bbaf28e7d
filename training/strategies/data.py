"""Data parallelism: each rank has all weights and B/p of the batch (ParaDL section 3.2; formulas.md).

Gradients are averaged in one of four ways, by the division and the run's options:

- one flat allreduce after the backward, as the paper's framework did (flat.py): the default;
- DistributedDataParallel, during the backward (overlap) or in one bucket at its end (ddp): ddp.py;
- a reduce-scatter, with an optimizer that is sharded over the ranks (sharded.py).
"""

from __future__ import annotations

from calib.training.gradients.ddp import DdpWorker
from calib.training.gradients.flat import FlatAllreduce
from calib.training.gradients.sharded import ShardedWorker
from calib.training.split.synchronized_norm import synchronize
from calib.training.worker import Task, Worker, whole_parameters


def make(task: Task) -> Worker:
    """The module as it is; on one rank nothing is exchanged, and it is serial training."""
    held, team, division = whole_parameters(task.module), task.teams.world, task.division
    if division.p == 1:
        return Worker(task, task.module, held)
    in_buckets = division.overlap or task.options.ddp
    if task.options.synchronized_batch_norm:
        synchronize(task.module, team, task.clock)
    if division.sharded_optimizer:
        return ShardedWorker(task, held)
    if in_buckets:
        return DdpWorker(task, held, division.overlap)
    return Worker(task, task.module, held, FlatAllreduce([h.parameter for h in held], team))
