"""DistributedDataParallel over gloo, with a mistake that such scripts have; started by torchrun."""

from __future__ import annotations

from collections.abc import Sequence
from time import sleep

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

from benchmarks.plain_programs.models import CLASSES, MODELS, SHAPE, Log, parser

MISTAKES = ("none", "slow", "loader", "bucket", "doubled", "dtype")
LONGER = 1.2  # as many samples at the rank that is slow
STALL_S, STALLED = 0.15, 4  # at the rank whose data come late: how long, and every which batch
SMALL_MB = 0.05


class Samples(Dataset[tuple[Tensor, Tensor]]):
    """Made-up samples; every `late`th takes long to read, as where a file has to be opened first."""

    def __init__(self, n: int, seed: int, late: int | None) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.inputs = torch.randn(n, *SHAPE, generator=generator)
        self.targets = torch.randint(CLASSES, (n,), generator=generator)
        self.late = late

    def __len__(self) -> int:
        return len(self.targets)

    def __getitems__(self, which: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
        """The samples of a batch."""
        if self.late and any(n % self.late == 0 for n in which):
            sleep(STALL_S)
        return [(self.inputs[n], self.targets[n]) for n in which]


class Float64(nn.Module):
    """A layer in float64 between others."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer.double()

    def forward(self, x: Tensor) -> Tensor:
        """The layer's output in the item type of its input."""
        y: Tensor = self.layer(x.double())
        return y.to(x.dtype)


def average(model: nn.Module) -> None:
    """Replace every gradient by its mean over the ranks."""
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    parts = torch.split(flat, [gradient.numel() for gradient in gradients])
    for gradient, part in zip(gradients, parts, strict=True):
        gradient.copy_(part.view_as(gradient))


def main() -> None:
    """Train."""
    words = parser()
    words.add_argument("--mistake", choices=MISTAKES, default="none")
    words.add_argument("--at", type=int, default=0, help="the rank that makes it")
    args = words.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    mine = args.mistake if rank == args.at else ""
    batch = round(args.batch * LONGER) if mine == "slow" else args.batch
    late = batch * STALLED if mine == "loader" else None
    torch.manual_seed(0)
    model = MODELS[args.model]()
    if args.mistake == "dtype":
        model[-1] = Float64(model[-1])
    cap = SMALL_MB if args.mistake == "bucket" else None
    replica = DistributedDataParallel(model, bucket_cap_mb=cap)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    criterion = nn.CrossEntropyLoss()
    log = Log(quiet=rank != 0)
    for inputs, targets in DataLoader(Samples(args.steps * batch, rank, late), batch):
        optimizer.zero_grad()
        loss = criterion(replica(inputs), targets)
        loss.backward()
        if args.mistake == "doubled":
            average(model)
        optimizer.step()
        log(loss.item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
