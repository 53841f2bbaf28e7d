"""Training loops that take turns on the same ranks: ours, and the way anybody would write it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import perf_counter
from typing import TYPE_CHECKING, Any

from calib.foundation.division import Division
from calib.foundation.statistics import median, median_interval
from calib.training.models import ModelEntry, built

if TYPE_CHECKING:
    from calib.microbench.communicators.mpi import MpiCommunicator
    from calib.training.step import TrainingStep
    from calib.training.teams import Teams

Seconds = dict[str, list[float]]

RANKS = 2
SEED = 0
WARM_UP = 2


def ratios(above: list[float], below: list[float]) -> str:
    """The median over rounds of above / below, with its 95% interval."""
    each = [a / b for a, b in zip(above, below, strict=True)]
    low, high = median_interval(each)
    return f"{median(each):.3f} [{low:.3f}, {high:.3f}]"


def milliseconds(seconds: list[float]) -> str:
    """A median, as text."""
    return f"{median(seconds) * 1e3:.2f} ms"


def in_turn(
    control: MpiCommunicator, loops: Mapping[str, Callable[[], object]], rounds: int, block_s: float
) -> Seconds:
    """Seconds per iteration of every loop in each round, whose order turns from round to round.

    A loop runs for about `block_s` in a round, on all ranks the same number of times.
    """
    names = list(loops)
    counts = {}
    for name, iterate in loops.items():
        for _ in range(WARM_UP):
            iterate()
        counts[name] = control.broadcast_object(max(1, round(block_s / block(control, iterate, 2))))
    seconds: Seconds = {name: [] for name in names}
    for number in range(rounds):
        turn = number % len(names)
        for name in (*names[turn:], *names[:turn]):
            seconds[name].append(block(control, loops[name], counts[name]))
    return seconds


def block(control: MpiCommunicator, iterate: Callable[[], object], count: int) -> float:
    """Seconds per iteration of `count` in a row, from when all ranks begin to when all have ended."""
    control.barrier()
    start = perf_counter()
    for _ in range(count):
        iterate()
    control.barrier()
    return (perf_counter() - start) / count


def make_step(about: ModelEntry, strategy: str, teams: Teams, ddp: bool = False) -> TrainingStep:
    """Our step: the batch of the model on every rank under data, of one rank otherwise."""
    from calib.training.step import TrainingStep
    from calib.training.worker import WorkerOptions

    replicas = RANKS if strategy == "data" else 1
    division = Division(strategy, RANKS, about.batch_per_rank * replicas, overlap=ddp)
    return TrainingStep(about, division, SEED, teams, WorkerOptions(ddp=ddp))


def plain_loop(about: ModelEntry, rank: int, group: Any = None) -> Callable[[], object]:
    """The way anybody would: DistributedDataParallel over `group`, or none, SGD with momentum."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    from calib.training.step import loss_function, synthetic_batch

    model: torch.nn.Module = built(about, SEED).train()
    if group is not None:
        model = DistributedDataParallel(model, process_group=group)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    criterion = loss_function(about)
    inputs, targets = synthetic_batch(about, about.batch_per_rank, SEED + 1 + rank)

    def iterate() -> float:
        optimizer.zero_grad()
        loss = criterion(model(inputs), targets)
        loss.backward()
        optimizer.step()
        return float(loss.item())

    return iterate
