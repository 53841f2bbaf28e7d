"""In-place calibration: whole iterations, to see what the sum of the parts misses.

Every rank runs its part as training does, all of them at once, with messages of one item
(torch_short.py): its own work in place, and what it takes that ranks meet. No run of training is timed.
Handed to microbench's session by the front door as the runner of `in_place` cases.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from calib.foundation.division import Division
from calib.microbench.cases import InPlaceCase
from calib.microbench.communicator import Control
from calib.microbench.memory import account, optimizer_tensors
from calib.microbench.tensors import update
from calib.microbench.timing.repeat import (
    FEWEST_REPETITIONS,
    RepeatedCalls,
    Repetitions,
    Timings,
    repeat,
)
from calib.microbench.timing.watchdog import beat
from calib.training.in_place.layers import LayerTimes
from calib.training.in_place.overlap import measure_overlap
from calib.training.layer_program import LayerProgram
from calib.training.models import entry
from calib.training.step import TrainingStep
from calib.training.teams import Teams, make_teams, teams_of
from calib.training.worker import WorkerOptions

# of the layers' pass: a median needs no more, and the phases need the time
MOST_LAYER_REPETITIONS = 30
LAYERS_SHARE = 0.3  # of the case's time
COMPUTED = ("forward", "backward")
MET = ("halo", "layerwise")  # while layers run
EXCHANGED = ("pack", "unpack")
COPIES = "copies"  # of what "pack" has before gradients are packed


def measure_in_place(
    control: Control,
    case: InPlaceCase,
    seed: int,
    budget_s: float,
    target: float,
    make: Callable[[Any, Division], Teams] | None = None,
) -> Repetitions:
    """Repetitions of every phase that a rank has, in seconds; bytes beside them.

    "copies" are those of shards and halos, "pack" that of gradients alone; "halo" and "layerwise" the
    calls of one item. A second pass, which the phases do not feel, times every layer in place: rows
    "layer_forward:<layer>" and "layer_backward:<layer>", with the loss as "loss", on the ranks that have
    it; of a pipeline they are of one micro-batch. `first_s` is the first iteration; `memory`, of serial
    and data parallelism, that of an untimed one, on the rank that needs most. Cases of overlap are
    measured by overlap.py.
    """
    if case.is_overlap:
        return measure_overlap(control, case, seed, budget_s, target)
    division = case.division
    teams = (make or short_teams)(control, division)
    try:
        options = WorkerOptions(optimizer=case.optimizer)
        step = TrainingStep(entry(case.model), division, seed % 2**31, teams, options)
        step.hold_weights()  # gradients of sums that were never made must lead nowhere
        block = in_place_block(step, phases_of(case))
        result = repeat(control, block, budget_s * (1.0 - LAYERS_SHARE), target)
        result.first_s = sum(max(rows[0]) for rows in result.ranks.values())
        modules = modules_of(step.worker.module, case.layer_names)
        result.ranks |= layer_rows(control, step, modules, result)
        if division.traits.whole:
            memory = control.allgather_object(step_memory(step))
            result.memory = max(memory, key=lambda found: int(found["peak_live"]))
        step.close()
        return result
    finally:
        teams.close()


def short_teams(control: Any, division: Division) -> Teams:
    """The communicators of a division, with messages of one item; on one rank those of training."""
    if division.p == 1:
        return make_teams(control, division, "mpi")
    from calib.microbench.communicators.torch import short  # starts MPI: ranks alone may import it

    return teams_of(short(control), division)


def phases_of(case: InPlaceCase) -> list[str]:
    """The phases that the ranks of a case have: no work, no row.

    Of a pipeline only what its stages compute, each on its rank: what they wait is the schedule's.
    """
    division = case.division
    if division.traits.stages:
        return list(COMPUTED)
    met = sorted({phase for phase, _, _ in case.meetings})
    copies = [COPIES] if case.copies else []
    exchanges = division.replicas > 1 or (division.p > 1 and division.traits.replicated)
    return [*COMPUTED, *copies, *met, *(EXCHANGED if exchanges else ()), "update"]


def in_place_block(step: TrainingStep, phases: list[str]) -> RepeatedCalls:
    """The timed loop: the ranks begin each iteration, and their exchange, together."""

    def block(n: int) -> Timings:
        seconds: dict[str, list[float]] = {phase: [] for phase in phases}
        starts: list[float] = []
        take_filled()
        for _ in range(n):
            row, _ = step.iterate(apart=True)
            filled = take_filled()
            row = {**row, COPIES: step.copied_s, "pack": row["pack"] - step.copied_s}
            met = [phase for phase in MET if phase in phases]
            whole = sum(row[phase] for phase in met)
            for phase in met:  # what was filled in is shared out: of two, one is some calls of many
                row[phase] *= max(0.0, 1.0 - filled / whole) if whole > 0 else 1.0
            for phase in phases:
                seconds[phase].append(row[phase])
            starts.append(step.clock.started_s)
            beat()
        return Timings(seconds, starts)

    return block


def take_filled() -> float:
    """Seconds in which what would have been received was filled in."""
    from calib.microbench.communicators.torch_short import FILLED  # starts MPI, too

    return FILLED.take()


def layer_rows(
    control: Control, step: TrainingStep, modules: Mapping[str, nn.Module], phases: Repetitions
) -> dict[str, list[list[float]]]:
    """Operation -> repetition -> seconds on each rank of each of the modules, and of the loss.

    The warm-up is as long as that of the phases; the repetitions are fewer.
    """
    done = min(map(len, phases.ranks.values())) - phases.warmup
    n = max(FEWEST_REPETITIONS, min(MOST_LAYER_REPETITIONS, int(done * LAYERS_SHARE)))
    n = control.broadcast_object(n)
    division = step.division
    uses = division.segments if division.traits.stages else 1
    rows: list[dict[str, float]] = []
    with LayerTimes({**modules, "loss": step.loss}, step.clock.spent) as t:
        for _ in range(phases.warmup + n):
            t.begin()
            step.iterate(apart=True)
            rows.append({name: seconds / uses for name, seconds in t.seconds.items()})
            beat()
    everyone = control.allgather_object(rows)
    names = dict.fromkeys(name for rank in everyone for name in rank[0])
    return {
        name: [[row[name] for row in each if name in row] for each in zip(*everyone, strict=True)]
        for name in names
        if all(name in row for rank in everyone if name in rank[0] for row in rank)
    }


def modules_of(module: nn.Module, layers: Sequence[str] = ()) -> Mapping[str, nn.Module]:
    """The modules of layers, by the layer; whole, as they are in the model, or parts of them.

    One that several `layers` share is left out, as its hooks would time all of its uses: so is of a
    whole model whatever stands there once more as NAME#2 (oracle/trace/tracing.py).
    """
    if not isinstance(module, LayerProgram):
        several = {name.partition("#")[0] for name in layers if "#" in name}
        return {name: part for name, part in module.named_modules() if name not in several}
    nodes = [node for node in module.graph.graph.nodes if node.op == "call_module"]
    uses = Counter(module.graph.get_submodule(str(node.target)) for node in nodes)
    found = {
        module.layer_of[node.name]: module.graph.get_submodule(str(node.target))
        for node in nodes
        if node.name in module.layer_of
    }
    return {layer: part for layer, part in found.items() if uses[part] == 1}


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
