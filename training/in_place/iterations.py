"""In-place calibration: whole iterations, to see what the sum of the parts misses.

All ranks run their parts at once as in training, but with messages of one item (torch_short.py): this
times a rank's own work in place, and what it costs that ranks meet. No training run is timed. The front
door hands this to microbench's session as the runner of `in_place` cases.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from calib.foundation.division import Division
from calib.foundation.execution import execution_of
from calib.microbench.cases import EXCHANGED, MET, InPlaceCase
from calib.microbench.control import Control
from calib.microbench.machine.waits import waits_here
from calib.microbench.memory import optimizer_tensors
from calib.microbench.tensors import update
from calib.microbench.timing.repeat import (
    FEWEST_REPETITIONS,
    RepeatedCalls,
    Repetitions,
    Timings,
    repeat,
)
from calib.microbench.timing.watchdog import beat
from calib.training.clock import GRADIENTS
from calib.training.footprint import account
from calib.training.in_place.layers import LayerTimes
from calib.training.in_place.overlap import measure_overlap
from calib.training.layer_program import LayerProgram
from calib.training.models import entry
from calib.training.step import TrainingStep
from calib.training.teams import Teams, make_teams, teams_of
from calib.training.worker import WorkerOptions

# in the layers' pass: a median needs no more, and the phases need the time
MOST_LAYER_REPETITIONS = 30
LAYERS_SHARE = 0.3  # of the case's time
# an iteration of 2 to 20 ms takes up to twice as long at first, and some 100 ms to settle
SETTLE_S = 0.15
COMPUTED = ("forward", "backward")
RankRows = dict[str, list[list[float]]]  # operation -> repetition -> rank
COPIES = "copies"  # what "pack" has before gradients are packed


def measure_in_place(
    control: Control,
    case: InPlaceCase,
    seed: int,
    budget_s: float,
    target: float,
    make: Callable[[Any, Division], Teams] | None = None,
) -> Repetitions:
    """Repetitions of every phase that a rank has, in seconds, and bytes.

    "copies" are those of shards and halos, "pack" that of gradients alone; "halo" and "layerwise" are
    calls with one item. A second pass, which does not affect the phases, times every layer in place:
    rows "layer_forward:<layer>" and "layer_backward:<layer>", with the loss as "loss", on the ranks that
    have it; for a pipeline they are of one micro-batch. `first_s` is the first iteration; `memory`, for
    serial and data parallelism, is of an untimed one, on the rank that needs most. Cases of overlap:
    overlap.py. A graph's modules run no hooks: of such a case there are phases alone.
    """
    if case.is_overlap:
        return measure_overlap(control, case, seed, budget_s, target)
    teams = short_teams(control, case) if make is None else make(control, case.division)
    try:
        return _measure(control, case, _step_of(case, seed, teams), budget_s, target)
    finally:
        teams.close()


def _step_of(case: InPlaceCase, seed: int, teams: Teams) -> TrainingStep:
    options = WorkerOptions(optimizer=case.optimizer, execution=case.execution)
    about = entry(case.model, case.own)
    step = TrainingStep(about, case.division, seed % 2**31, teams, options)
    step.hold_weights()  # gradients are wrong without the exchange
    return step


def _measure(
    control: Control, case: InPlaceCase, step: TrainingStep, budget_s: float, target: float
) -> Repetitions:
    division, execution = case.division, execution_of(case.execution)
    by_layers = not (execution.cuda_graph or division.shards)
    share = LAYERS_SHARE if by_layers else 0.0
    block = in_place_block(step, phases_of(case))
    result = repeat(control, block, budget_s * (1.0 - share), target, settle_s=SETTLE_S)
    if step.device.events is not None:
        result.resolution_s = step.device.events.resolution_s
    result.first_s = sum(max(rows[0]) for rows in result.ranks.values())
    if by_layers:
        modules = modules_of(step.worker.module, case.layer_names)
        times, waited = layer_rows(control, step, modules, result)
        result.ranks |= times
        result.waited |= waited
    if division.traits.whole and not division.shards:
        memory = control.allgather_object(step_memory(step))
        result.memory = max(memory, key=lambda found: int(found["peak_live"]))
    step.close()
    return result


def short_teams(control: Any, case: InPlaceCase) -> Teams:
    """The communicators of a division, with messages of one item.

    On one rank, and on GPUs, training's own: NCCL's messages travel in the phase "exchange", which is
    no rank's own work.
    """
    if case.device == "cuda":
        return make_teams(control, case.division, "nccl")
    if case.division.p == 1:
        return make_teams(control, case.division, "mpi")
    from calib.microbench.communicators.torch import short  # starts MPI: ranks alone may import it

    return teams_of(short(case.library, control), case.division)


def phases_of(case: InPlaceCase) -> list[str]:
    """The phases in which the ranks of a case have work.

    For a pipeline only what each stage computes: waiting belongs to the schedule. Fully sharded only how
    ranks meet, as all else is that of data parallelism. On GPUs messages
    travel whole, so a meeting is no phase, and the exchange of all gradients is one.
    """
    division = case.division
    if division.traits.stages:
        return list(COMPUTED)
    queued = case.device == "cuda"
    met = [] if queued else sorted({phase for phase, _, _ in case.meetings})
    if division.shards:
        return met
    copies = [COPIES] if case.copies else []
    replicated = division.traits.replicated or case.partial is not None
    exchanges = division.replicas > 1 or (division.p > 1 and replicated)
    sent = ["exchange"] if queued and exchanges and division.traits.whole else []
    return [*COMPUTED, *copies, *met, *(EXCHANGED if exchanges else ()), *sent, "update"]


def in_place_block(step: TrainingStep, phases: list[str]) -> RepeatedCalls:
    """The timed loop; the ranks begin each iteration, and their exchange, together.

    What a rank waited for a core is known of an iteration, and shared out to its phases by their time.
    """

    def block(n: int) -> Timings:
        seconds: dict[str, list[float]] = {phase: [] for phase in phases}
        waited: dict[str, list[float]] = {phase: [] for phase in phases}
        starts: list[float] = []
        take_filled()
        with waits_here() as waits:
            for _ in range(n):
                so_far = waits.so_far()
                row, _ = step.iterate(apart=True)
                filled = take_filled()
                share = step.waited_share(waits.since(so_far)[0], row)
                packed = step.clock.parts.get(GRADIENTS, 0.0)
                row = {**row, COPIES: row["pack"] - packed, "pack": packed}
                met = [phase for phase in MET if phase in phases]
                whole = sum(row[phase] for phase in met)
                for phase in met:  # the filling is subtracted in proportion
                    row[phase] *= max(0.0, 1.0 - filled / whole) if whole > 0 else 1.0
                for phase in phases:
                    seconds[phase].append(row[phase])
                    waited[phase].append(share * row[phase])
                starts.append(step.clock.started_s)
                beat()
        return Timings(seconds, starts, waited=waited)

    return block


def take_filled() -> float:
    """Seconds spent on filling in what would have been received."""
    from calib.microbench.communicators.torch_short import FILLED  # starts MPI, too

    return FILLED.take()


def layer_rows(
    control: Control, step: TrainingStep, modules: Mapping[str, nn.Module], phases: Repetitions
) -> tuple[RankRows, RankRows]:
    """Seconds of each of the modules and the loss, and what of them a rank waited for a core.

    As many warm-up iterations as for the phases; fewer repetitions.
    """
    done = min(map(len, phases.ranks.values())) - phases.warmup
    n = max(FEWEST_REPETITIONS, min(MOST_LAYER_REPETITIONS, int(done * LAYERS_SHARE)))
    n = control.broadcast_object(n)
    division = step.division
    uses = division.segments if division.traits.stages else 1
    rows: list[tuple[dict[str, float], float]] = []  # and the share that was waited
    with LayerTimes({**modules, "loss": step.loss}, step.clock) as t, waits_here() as waits:
        for _ in range(phases.warmup + n):
            so_far = waits.so_far()
            whole, _ = step.iterate(apart=True)
            share = step.waited_share(waits.since(so_far)[0], whole)
            rows.append(({name: seconds / uses for name, seconds in t.seconds.items()}, share))
            beat()
    everyone = control.allgather_object(rows)
    names = dict.fromkeys(name for rank in everyone for name in rank[0][0])
    timed = [
        name
        for name in names
        if all(name in row for rank in everyone if name in rank[0][0] for row, _ in rank)
    ]

    def of(value: Callable[[float, float], float]) -> RankRows:
        return {
            name: [
                [value(row[name], share) for row, share in each if name in row]
                for each in zip(*everyone, strict=True)
            ]
            for name in timed
        }

    return of(lambda seconds, _: seconds), of(lambda seconds, share: seconds * share)


def modules_of(module: nn.Module, layers: Sequence[str] = ()) -> Mapping[str, nn.Module]:
    """The modules of layers, by layer; whole, as in the model, or parts of them.

    A module that several `layers` share is left out, because its hooks would time all uses; in a whole
    model those are the layers that appear again as NAME#2 (oracle/trace/tracing.py).
    """
    if not isinstance(module, LayerProgram):
        several = {name.partition("#")[0] for name in layers if "#" in name}
        return {name: part for name, part in module.named_modules() if name not in several}
    called = [
        (program.layer_of.get(node.name, ""), program.module_called(node))
        for program in module.modules()  # it, and its checkpointed regions
        if isinstance(program, LayerProgram)
        for node in program.graph.graph.nodes
    ]
    uses = Counter(part for _, part in called)
    return {name: part for name, part in called if part is not None and uses[part] == 1 and name}


def step_memory(step: TrainingStep) -> dict[str, int]:
    """Bytes of one iteration on this rank (training/footprint.py); all ranks must call."""
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

    return account(
        held, step.forward, torch.autograd.backward, step.parameters, step.device, finish
    )
