"""A pipeline of two stages with torch.distributed.pipelining over gloo; started by torchrun."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

from benchmarks.plain_programs.models import CUTS, MODELS, Log, arguments, batches

MICRO_BATCHES = 4


def main() -> None:
    """Train."""
    args = arguments()
    dist.init_process_group("gloo")
    rank, stages = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model, cut = MODELS[args.model](), CUTS[args.model]
    part = model[:cut] if rank == 0 else model[cut:]
    stage = PipelineStage(part, rank, stages, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, MICRO_BATCHES, loss_fn=nn.CrossEntropyLoss())
    optimizer = torch.optim.SGD(part.parameters(), lr=0.01, momentum=0.9)
    log = Log(quiet=rank == 0)
    for inputs, targets in batches(args.steps, args.batch):
        optimizer.zero_grad()
        losses: list[Tensor] = []
        if rank == 0:
            schedule.step(inputs)
        else:
            schedule.step(target=targets, losses=losses)
        optimizer.step()
        log(float(torch.stack(losses).mean()) if losses else 0.0)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
