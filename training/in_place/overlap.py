"""Iterations of data parallelism with the exchange overlapped and without, side by side.

The exchange is real: all gradients, by the library that training uses, through the code that
`calib train` runs with and without --overlap. Every repetition is one iteration of each kind, and the
two take turns in going first, so that disturbances hit both.
"""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from calib.microbench.cases import BLOCKING, OVERLAPPED, InPlaceCase
from calib.microbench.communicator import TorchGroup
from calib.microbench.communicators import make_communicator
from calib.microbench.control import Control
from calib.microbench.devices import take_device
from calib.microbench.machine.waits import waits_here
from calib.microbench.timing.repeat import RepeatedCalls, Repetitions, Timings, repeat
from calib.microbench.timing.watchdog import beat
from calib.training.models import entry
from calib.training.step import TrainingStep
from calib.training.teams import teams_of
from calib.training.worker import WorkerOptions

PHASES = ("backward", "exchange")  # of an iteration without overlap: the law of eta needs them


def measure_overlap(
    control: Control, case: InPlaceCase, seed: int, budget_s: float, target: float
) -> Repetitions:
    """Seconds on every rank of whole iterations, "overlapped" and "blocking", and of PHASES.

    The ranks begin an iteration together and then wait for one another only in its exchange, as in
    training. `first_s` is the first overlapped iteration.
    """
    plain = case.division
    device = take_device(case.device, control)
    teams = teams_of(cast(TorchGroup, make_communicator(case.library, control, device)), plain)
    try:
        about, options = entry(case.model, case.own), WorkerOptions(case.optimizer, case.execution)
        steps = {
            name: TrainingStep(about, division, seed % 2**31, teams, options)
            for name, division in ((BLOCKING, plain), (OVERLAPPED, replace(plain, overlap=True)))
        }
        for step in steps.values():
            step.hold_weights()
        result = repeat(control, _block(steps, teams.world), budget_s, target)
        result.first_s = max(result.ranks[OVERLAPPED][0])
        for step in steps.values():
            step.close()
        return result
    finally:
        teams.close()


def _block(steps: dict[str, TrainingStep], world: TorchGroup) -> RepeatedCalls:
    turns = list(steps)

    def block(n: int) -> Timings:
        seconds: dict[str, list[float]] = {name: [] for name in (*steps, *PHASES)}
        waited: dict[str, list[float]] = {name: [] for name in seconds}
        with waits_here() as waits:
            for _ in range(n):
                for name in turns:
                    world.barrier()
                    so_far = waits.so_far()
                    row, _ = steps[name].iterate()
                    share = steps[name].waited_share(waits.since(so_far)[0], row)
                    row[name] = sum(row.values())
                    for each in (name, *(PHASES if name == BLOCKING else ())):
                        seconds[each].append(row[each])
                        waited[each].append(share * row[each])
                    beat()
                turns.reverse()
        return Timings(seconds, waited=waited)

    return block
