"""Our training step beside the same model written the way anybody would, on the same two ranks.

1. Throughput: TrainingStep.iterate with its clock (flat allreduce, and DistributedDataParallel) against
   a plain loop with DistributedDataParallel over the same process group; MPI's and gloo's are in one
   launch, so that they can be told apart too. Loops take turns in blocks of a few iterations, and
   what is given is the median over rounds of the ratio within a round: what else the machine does
   falls on all of them.
2. Our own Python in an iteration: own_python.py.
3. The clock: iterations with it and with one that does nothing, in turn; and its switches times the
   seconds of one.

Prints; asserts nothing.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from benchmarks.own_python import python_row, python_share
from benchmarks.training_loops import (
    RANKS,
    Seconds,
    in_turn,
    make_step,
    milliseconds,
    plain_loop,
    ratios,
)
from calib.foundation.division import Division
from calib.foundation.statistics import median
from calib.microbench.machine.launchers import launch_line
from calib.training.models import entry

if TYPE_CHECKING:
    from calib.microbench.communicators.mpi import MpiCommunicator

MODELS = ("vgg16-mini", "resnet50-mini", "cosmoflow-mini")
BACKENDS = ("mpi", "gloo")
THROUGHPUT_TARGET, CLOCK_TARGET = 0.97, 0.01
ROUNDS, BLOCK_S = 15, 0.25
# strategy -> the models whose layers it is to cut
CUT = {
    "filter": ("vgg16-mini", "resnet50-mini"),
    "channel": ("vgg16-mini",),
    "spatial": ("vgg16-mini", "cosmoflow-mini"),
}


def training() -> list[str]:
    """The lines of all four."""
    line = [*launch_line("local", RANKS), sys.executable, "-m", "benchmarks.training"]
    done = subprocess.run(
        line,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    if done.returncode:
        raise RuntimeError(done.stdout + done.stderr)
    found = json.loads(done.stdout.rpartition("result ")[2])
    rows: list[str] = []
    for model, seconds in found["throughput"].items():
        rows += throughput_rows(model, seconds)
    rows += [python_row(**about) for about in found["python"]]
    rows += [clock_row(**about) for about in found["clock"]]
    return rows


def throughput_rows(model: str, seconds: Seconds) -> list[str]:
    """Ours against plain DDP by backend, then MPI against gloo."""
    rows = []
    for backend in BACKENDS:
        plain = seconds[f"plain {backend}"]
        for way in ("flat", "ddp"):
            ratio = ratios(plain, seconds[f"{way} {backend}"])
            rows.append(
                f"{model} data p={RANKS} {backend}: our step ({way}) {ratio} of the throughput of "
                f"plain DDP at {milliseconds(plain)} (target {THROUGHPUT_TARGET})"
            )
    for way in ("flat", "ddp"):
        mpi, gloo = (seconds[f"{way} {backend}"] for backend in BACKENDS)
        rows.append(
            f"{model} data p={RANKS} ({way}): mpi {ratios(gloo, mpi)} of the throughput of gloo "
            f"({milliseconds(mpi)} against {milliseconds(gloo)})"
        )
    return rows


def clock_row(
    strategy: str, model: str, timed: list[float], still: list[float], switches: int, each: float
) -> str:
    """What the clock takes, by difference and by count."""
    return (
        f"{model} {strategy} p={RANKS}: the clock takes {switches * each / median(still):.3%} of an "
        f"iteration ({switches} switches of {each * 1e9:.0f} ns; target {CLOCK_TARGET:.0%}); with it "
        f"an iteration takes {ratios(timed, still)} of one without"
    )


def throughput(control: MpiCommunicator, model: str) -> Seconds:
    """Flat, DDP and plain DDP, over both backends."""
    from calib.training.teams import make_teams

    about = entry(model)
    division = Division("data", RANKS, RANKS * about.batch_per_rank)
    opened = {backend: make_teams(control, division, backend) for backend in BACKENDS}
    loops: dict[str, Callable[[], object]] = {}
    steps = []
    for backend, teams in opened.items():
        for way in ("flat", "ddp"):
            step = make_step(about, "data", teams, ddp=way == "ddp")
            steps.append(step)
            loops[f"{way} {backend}"] = step.iterate
        loops[f"plain {backend}"] = plain_loop(about, control.rank, teams.world.process_group)
    seconds = in_turn(control, loops, ROUNDS, BLOCK_S)
    for step in steps:
        step.close()
    loops.clear()  # DistributedDataParallel lets go of the groups before they are closed
    for teams in opened.values():
        teams.close()
    return seconds


def clock_share(control: MpiCommunicator, strategy: str, model: str) -> dict[str, Any]:
    """What clock_row takes."""
    from calib.training.clock import PhaseClock, seconds_of_a_switch
    from calib.training.teams import make_teams

    class NoClock(PhaseClock):
        """What a clock's callers call, doing nothing."""

        nothing = nullcontext()

        def begin(self, phase: str = "forward") -> None:
            pass

        def switch(self, phase: str) -> str:
            return phase

        def of(self, phase: str) -> Any:
            return self.nothing

        def restart(self) -> None:
            pass

    about = entry(model)
    replicas = RANKS if strategy == "data" else 1
    division = Division(strategy, RANKS, about.batch_per_rank * replicas)
    teams = make_teams(control, division, "mpi")
    timed = make_step(about, strategy, teams)
    with patch("calib.training.step.make_clock", lambda _: NoClock()):
        still = make_step(about, strategy, teams)
    before = timed.clock.switches
    timed.iterate()
    switches = timed.clock.switches - before
    seconds = in_turn(control, {"timed": timed.iterate, "still": still.iterate}, ROUNDS, BLOCK_S)
    for step in (timed, still):
        step.close()
    teams.close()
    each = seconds_of_a_switch(PhaseClock())
    return {"strategy": strategy, "model": model, "switches": switches, "each": each, **seconds}


def rank() -> None:
    """SPMD: everything in turn; rank 0 prints what was found."""
    import torch

    from calib.microbench.communicators.mpi import MpiCommunicator
    from calib.microbench.machine.placement import place

    control = MpiCommunicator()
    place(control)
    torch.set_num_threads(1)
    cut = [(strategy, model) for strategy, models in CUT.items() for model in models]
    found = {
        "throughput": {model: throughput(control, model) for model in MODELS},
        "python": [python_share(control, *point) for point in cut],
        "clock": [clock_share(control, *point) for point in [("data", MODELS[0]), *cut]],
    }
    if control.rank == 0:
        print("result " + json.dumps(found))


if __name__ == "__main__":
    rank()
