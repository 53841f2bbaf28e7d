"""Data parallelism over MPI; started by mpiexec.

PyTorch's wheels have no MPI backend, so the gradients are flattened and summed by mpi4py.
"""

from __future__ import annotations

import torch
from mpi4py import MPI
from torch import nn

from benchmarks.plain_programs.models import MODELS, Log, arguments, batches


def average(model: nn.Module, comm: MPI.Comm) -> None:
    """Replace every gradient by its mean over the ranks."""
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    comm.Allreduce(MPI.IN_PLACE, flat.numpy())
    flat /= comm.size
    parts = torch.split(flat, [gradient.numel() for gradient in gradients])
    for gradient, part in zip(gradients, parts, strict=True):
        gradient.copy_(part.view_as(gradient))


def main() -> None:
    """Train."""
    args = arguments()
    comm = MPI.COMM_WORLD
    torch.manual_seed(0)
    model = MODELS[args.model]()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    criterion = nn.CrossEntropyLoss()
    log = Log(quiet=comm.rank != 0)
    for inputs, targets in batches(args.steps, args.batch, seed=comm.rank):
        optimizer.zero_grad()
        loss = criterion(model(inputs), targets)
        loss.backward()
        average(model, comm)
        optimizer.step()
        log(loss.item())


if __name__ == "__main__":
    main()
