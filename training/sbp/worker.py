"""What a launcher starts on every rank: python -m calib.training.sbp.worker JOB RESULT (both JSON).

Times strategies of one chain in turn, in another order every round, for as long as the job says. A
time is that of the slowest rank, from a barrier on.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from calib.foundation.errors import CalibError
from calib.foundation.files import write_json
from calib.foundation.statistics import median
from calib.microbench.communicators.mpi import MpiCommunicator
from calib.training.sbp.engine import ChainTeams, RankChain, problem
from calib.training.sbp.operations import DoneCollective
from calib.training.sbp.placement import Degrees

PRODUCTS = 8


class ChainJob(BaseModel):
    """`seconds` are of all rounds; `least` and `most` of them are done whatever the time."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rows: int = Field(ge=1)
    widths: tuple[int, ...] = Field(min_length=2)
    strategies: tuple[tuple[Degrees, ...], ...] = Field(min_length=1)
    seconds: float = Field(gt=0)
    least: int = Field(default=3, ge=1)
    most: int = Field(default=30, ge=1)
    seed: int = 0


class Rounds(BaseModel):
    """By strategy, round by round: seconds of iterations.

    `collectives_s` are inside the calls of an iteration without products, `communication_s` of all of
    it (packing of blocks, too), `iteration_s` of one with products.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    collectives_s: list[list[float]]
    communication_s: list[list[float]]
    iteration_s: list[list[float]]
    operations: list[list[DoneCollective]]
    orders: list[list[int]]
    product_s_per_flop: float = Field(description="of a product on every rank at once")


def measure(world: MpiCommunicator, job: ChainJob) -> Rounds:
    """Time all strategies; collective."""
    given = problem(job.rows, job.widths, "float32", job.seed)
    teams = ChainTeams(world)
    pairs = []
    for strategy in job.strategies:
        pair = [
            RankChain(teams, job.rows, job.widths, strategy, communicate_only=only)
            for only in (True, False)
        ]
        for chain in pair:
            chain.load(given)
        pairs.append(pair)
    for pair in pairs:  # warm-up: connections are made, buffers touched
        pair[0].iterate()
    speed = _product(world, job.rows, *job.widths[:2])
    count = len(pairs)
    found: list[list[list[float]]] = [[[] for _ in range(count)] for _ in range(2)]
    inside: list[list[float]] = [[] for _ in range(count)]
    random, orders = np.random.default_rng(job.seed), []
    start = perf_counter()
    for number in range(job.most):
        over = world.broadcast_object(perf_counter() - start > job.seconds)
        if over and number >= job.least:
            break
        order = [int(i) for i in random.permutation(count)]
        orders.append(order)
        for which in order:
            for kind in (0, 1):
                found[kind][which].append(_timed(world, pairs[which][kind].iterate))
            inside[which].append(float(max(world.allgather_object(pairs[which][0].seconds))))
    operations = [pair[0].done for pair in pairs]
    teams.close()
    return Rounds(
        collectives_s=inside,
        communication_s=found[0],
        iteration_s=found[1],
        operations=operations,
        orders=orders,
        product_s_per_flop=speed,
    )


def _product(world: MpiCommunicator, m: int, k: int, n: int) -> float:
    """Seconds per floating-point operation of a product cut in p1 = p, all ranks at work."""
    height = max(1, m // world.size)
    a, b = np.ones((height, k), np.float32), np.ones((k, n), np.float32)
    times = [_timed(world, lambda: a @ b) for _ in range(PRODUCTS)]
    return median(times[1:]) / (2 * height * k * n)


def _timed(world: MpiCommunicator, action: Callable[[], Any]) -> float:
    """Seconds of the slowest rank, from a barrier on."""
    world.barrier()
    begin = perf_counter()
    action()
    return float(max(world.allgather_object(perf_counter() - begin)))


def main(words: list[str]) -> None:
    """Run a job."""
    world = MpiCommunicator()
    try:
        job = ChainJob.model_validate_json(Path(words[0]).read_text())
        rounds = measure(world, job)
        if world.rank == 0:
            write_json(Path(words[1]), rounds.model_dump())
    except CalibError as error:
        print(error, file=sys.stderr, flush=True)
        world.abort(1)


if __name__ == "__main__":
    main(sys.argv[1:])
