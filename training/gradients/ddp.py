"""Data parallelism by torch's DistributedDataParallel: gradients travel in buckets.

DDP fills buckets in the reverse order of the parameters' use, from the second iteration on in the order
in which the first made the gradients, and starts a bucket's allreduce when its last gradient is there.
By default the first bucket ends at 1 MiB and the others at 25 MiB, and the first iteration has a single
bucket (torch 2.13: _BucketCapacityConfig, Reducer.rebuild_buckets). A single bucket in all iterations is
DDP without overlap.
"""

from __future__ import annotations

import inspect
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from calib.training.clock import PhaseClock
from calib.training.worker import Held, Task, Worker

_MIB = 2**20


def _reduce(bucket: Any, group: Any, clock: PhaseClock) -> torch.futures.Future[Tensor]:
    """Average a bucket as DDP does; the clock is in "exchange" when the last is on its way."""
    work = dist.all_reduce(bucket.buffer().div_(group.size()), group=group, async_op=True)
    if bucket.is_last():
        clock.switch("exchange")
    assert work is not None  # this rank is in the group
    future: torch.futures.Future[Tensor] = work.get_future().then(lambda done: done.value()[0])
    return future


class DdpWorker(Worker):
    """The module inside DDP. "backward" includes DDP's copies into its buckets and the exchange that it
    hides; "exchange" begins when the last bucket has been handed over and includes the copies back.

    Each rank keeps its own buffers: batch norms have the statistics of its samples, as in the paper.
    """

    def __init__(self, task: Task, held: list[Held], overlap: bool) -> None:
        super().__init__(task, task.module, held)
        group, clock = task.teams.world.process_group, task.clock
        kept: dict[str, Any] = {"broadcast_buffers": False}
        if "forward_sync_buffers" in inspect.signature(DistributedDataParallel).parameters:
            kept = {"forward_sync_buffers": False}  # its name since torch 2.13
        if not overlap:
            nbytes = sum(h.parameter.nbytes for h in held)
            kept["bucket_cap_mb"] = nbytes // _MIB + 1  # never full
        self._ddp: DistributedDataParallel | None = DistributedDataParallel(
            task.module, process_group=group, **kept
        )
        # a hook that refers to this worker, and so to DDP, would keep both from being freed; DDP
        # refuses a hook whose annotations are text
        self._ddp.register_comm_hook(None, lambda _, bucket: _reduce(bucket, group, clock))

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """As Worker's, through DDP."""
        with self._cast():
            assert self._ddp is not None, "closed"
            loss: Tensor = self._loss(self._ddp(inputs), targets)
        return loss

    def adding(self) -> AbstractContextManager[object]:
        """DDP exchanges nothing in it, and the gradients stay where they are."""
        assert self._ddp is not None, "closed"
        return self._ddp.no_sync()

    def compute(self, inputs: Tensor, targets: Tensor) -> Tensor | None:
        """As Worker's; the backward returns when the gradients are averages."""
        loss = super().compute(inputs, targets)
        self.clock.switch("backward")
        return loss

    def close(self) -> None:
        """Release DDP, whose buckets hold the process group."""
        super().close()
        self._ddp = None
