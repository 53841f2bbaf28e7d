"""Training in one process."""

from __future__ import annotations

import torch
from torch import nn

from benchmarks.plain_programs.models import MODELS, Log, arguments, batches


def main() -> None:
    """Train."""
    args = arguments()
    torch.manual_seed(0)
    model = MODELS[args.model]()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    criterion = nn.CrossEntropyLoss()
    log = Log()
    for inputs, targets in batches(args.steps, args.batch):
        optimizer.zero_grad()
        loss = criterion(model(inputs), targets)
        loss.backward()
        optimizer.step()
        log(loss.item())


if __name__ == "__main__":
    main()
