"""Fully sharded data parallelism (FSDP2) over gloo; started by torchrun."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from benchmarks.plain_programs.models import MODELS, Log, arguments, batches


def main() -> None:
    """Train."""
    args = arguments()
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = MODELS[args.model]()
    for module in model:
        if any(True for _ in module.parameters()):
            fully_shard(module, mesh=mesh)
    fully_shard(model, mesh=mesh)
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
