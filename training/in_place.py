"""The in-place calibration: whole iterations of a model, to see what the sum of its parts leaves out.

Handed to microbench's session by the front door as the runner of `in_place` cases.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_leaves

from microbench.cases import InPlaceCase
from microbench.memory import account, optimizer_tensors
from microbench.repeat import FEWEST_REPETITIONS, Block, Repetitions, Timings, repeat
from microbench.tensors import update
from microbench.watchdog import beat
from oracle.division import Division
from training.layers_in_place import LayerTimes
from training.models import entry
from training.step import TrainingStep
from training.teams import Teams, make_teams
from training.worker import Options

if TYPE_CHECKING:
    from microbench.communicators import Control

# of the layers' pass: a median needs no more, and the phases need the time
MOST_LAYER_REPETITIONS = 30
LAYERS_SHARE = 0.2  # of the case's time
PHASES = ("forward", "backward", "pack", "exchange", "unpack", "update")
BETWEEN_RANKS = ("pack", "exchange", "unpack")


def measure_in_place(
    control: Control,
    case: InPlaceCase,
    seed: int,
    budget_s: float,
    target: float,
    make: Callable[[Any, Division, str], Teams] = make_teams,
) -> Repetitions:
    """Repetitions of every phase that runs on this number of ranks, in seconds; bytes beside them.

    On one rank a second pass, which the phases do not feel, times every layer in place: rows
    "layer_forward:<module>" and "layer_backward:<module>", with the loss as "loss". `first_s` is
    the first iteration, `memory` that of an untimed one, on the rank that needs most. Gradients
    travel by the teams that `make` gives, MPI's as in training.
    """
    division = Division("serial" if control.size == 1 else "data", control.size,
                        control.size * case.batch)  # fmt: skip
    teams = make(control, division, "mpi")
    try:
        options = Options(optimizer=case.optimizer)
        step = TrainingStep(entry(case.model), division, seed % 2**31, teams, options)
        share = 1.0 - LAYERS_SHARE if control.size == 1 else 1.0
        result = repeat(control, in_place_block(step), budget_s * share, target)
        result.first_s = sum(max(rows[0]) for rows in result.ranks.values())
        if control.size == 1:
            result.ranks |= layer_rows(step, result)
        memory = control.gather_objects(step_memory(step))
        result.memory = max(memory, key=lambda found: int(found["peak_live"]))
        return result
    finally:
        teams.close()


def in_place_block(step: TrainingStep) -> Block:
    """The timed loop: phases kept apart by barriers."""
    exchanged = step.worker.exchange is not None
    phases = [phase for phase in PHASES if exchanged or phase not in BETWEEN_RANKS]

    def block(n: int) -> Timings:
        seconds: dict[str, list[float]] = {phase: [] for phase in phases}
        starts: list[float] = []
        for _ in range(n):
            row, _ = step.iterate(apart=True)
            for phase in phases:
                seconds[phase].append(row[phase])
            starts.append(step.clock.started_s)
            beat()
        return Timings(seconds, starts)

    return block


def layer_rows(step: TrainingStep, phases: Repetitions) -> dict[str, list[list[float]]]:
    """Operation -> repetition -> [seconds] of every layer of the model, and of the loss, in place.

    The warm-up is as long as that of the phases; the repetitions are fewer.
    """
    done = min(map(len, phases.ranks.values())) - phases.warmup
    n = max(FEWEST_REPETITIONS, min(MOST_LAYER_REPETITIONS, int(done * LAYERS_SHARE)))
    rows: list[dict[str, float]] = []
    with LayerTimes({**dict(step.worker.module.named_modules()), "loss": step.loss}) as times:
        for _ in range(phases.warmup + n):
            times.begin()
            step.iterate(apart=True)
            rows.append(dict(times.seconds))
            beat()
    return {name: [[row[name]] for row in rows] for name in rows[0]}


def step_memory(step: TrainingStep) -> dict[str, int]:
    """Bytes of one iteration on this rank (microbench/memory.py); all ranks must call."""
    exchange = step.worker.exchange
    held: dict[str, list[torch.Tensor]] = {
        "weights": list(step.parameters),
        "buffers": list(step.worker.module.buffers()),
        "optimizer": optimizer_tensors(step.optimizer),
        "inputs": [step.inputs, step.targets],
    }
    if exchange is not None:
        kept = tree_leaves(list(vars(exchange).values()))
        held["exchange"] = [item for item in kept if isinstance(item, torch.Tensor)]

    def finish() -> None:
        step.exchange_gradients()
        update(step.optimizer)
        step.worker.finish()

    return account(held, step.forward, torch.autograd.backward, step.parameters, finish)
