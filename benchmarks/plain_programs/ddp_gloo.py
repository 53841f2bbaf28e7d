"""DistributedDataParallel over gloo; started by torchrun."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.plain_programs.models import MODELS, Log, arguments, batches


def main() -> None:
    """Train."""
    args = arguments()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(MODELS[args.model]())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    criterion = nn.CrossEntropyLoss()
    log = Log(quiet=rank != 0)
    for inputs, targets in batches(args.steps, args.batch, seed=rank):
        optimizer.zero_grad()
        loss = criterion(model(inputs), targets)
        loss.backward()
        optimizer.step()
        log(loss.item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
