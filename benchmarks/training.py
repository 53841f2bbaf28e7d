"""Our training step beside the same model written the way anybody would, on the same two ranks.

1. Throughput: TrainingStep.iterate with its clock (flat allreduce, and DistributedDataParallel) against
   a plain loop with DistributedDataParallel over the same process group; MPI's and gloo's are in one
   launch, so that they can be told apart too. Loops take turns in blocks of a few iterations, and
   what is given is the median over rounds of the ratio within a round: what else the machine does
   falls on all of them.
2. Our own Python in an iteration, under strategies that cut layers: seconds in frames of our files
   (callees in C, torch's Python, and the waiting in MPI not counted) under cProfile, over the seconds
   of an iteration without it. That is what a call of ours adds however long the kernels beside it
   take, and more than that, never less: cProfile's own work at our calls is in it, and so is a
   kernel that an operator starts (`a + b`), which cProfile does not see. A difference of two
   iterations, with and without our wrappers, would be smaller than the noise of both.
   Beside it, the same layers at the smallest size: all that does not shrink with the kernels, so
   torch's own calls and the latency of MPI as well as ours.
3. The clock: iterations with it and with one that does nothing, in turn; and its switches times the
   seconds of one.

Prints; asserts nothing.
"""

from __future__ import annotations

import cProfile
import json
import os
import pstats
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from foundation.statistics import median, median_interval
from microbench.launchers import launch_line
from oracle.division import Division
from training.models import ModelEntry, built, entry

if TYPE_CHECKING:
    from microbench.communicators.mpi import MpiCommunicator
    from training.step import TrainingStep
    from training.teams import Teams

Seconds = dict[str, list[float]]

RANKS = 2
SEED = 0
MODELS = ("vgg16-mini", "resnet50-mini", "cosmoflow-mini")
BACKENDS = ("mpi", "gloo")
THROUGHPUT_TARGET, PYTHON_TARGET, CLOCK_TARGET = 0.97, 0.05, 0.01
ROUNDS, BLOCK_S, WARM_UP = 15, 0.5, 2
# strategy -> the models whose layers it is to cut
CUT = {
    "filter": ("vgg16-mini", "resnet50-mini"),
    "channel": ("vgg16-mini",),
    "spatial": ("vgg16-mini", "cosmoflow-mini"),
}
PROFILED = 20
OURS = ("training", "microbench", "oracle", "foundation")
# they call MPI, whose functions cProfile takes for part of their callers
IN_MPI = ("_run", "wait", "test")
ROOT = Path(__file__).resolve().parents[1]


def training() -> list[str]:
    """The lines of all four."""
    line = [*launch_line("local", RANKS), sys.executable, "-m", "benchmarks.training"]
    done = subprocess.run(
        line, capture_output=True, text=True, check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
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


def python_row(
    strategy: str, model: str, whole: list[float], own: float, tiny: list[float], plain: list[float]
) -> str:
    """The share of our own Python, and what does not shrink."""
    return (
        f"{model} {strategy} p={RANKS}: our own Python {own / median(whole):.1%} of an iteration of "
        f"{milliseconds(whole)} (target {PYTHON_TARGET:.0%}); the same layers at the smallest size: "
        f"{milliseconds(tiny)}, serially in plain torch {milliseconds(plain)}"
    )


def clock_row(
    strategy: str, model: str, timed: list[float], still: list[float], switches: int, each: float
) -> str:
    """What the clock takes, by difference and by count."""
    return (
        f"{model} {strategy} p={RANKS}: the clock takes {switches * each / median(still):.3%} of an "
        f"iteration ({switches} switches of {each * 1e9:.0f} ns; target {CLOCK_TARGET:.0%}); with it "
        f"an iteration takes {ratios(timed, still)} of one without"
    )


def ratios(above: list[float], below: list[float]) -> str:
    """The median over rounds of above / below, with its 95% interval."""
    each = [a / b for a, b in zip(above, below, strict=True)]
    low, high = median_interval(each)
    return f"{median(each):.3f} [{low:.3f}, {high:.3f}]"


def milliseconds(seconds: list[float]) -> str:
    """A median, as text."""
    return f"{median(seconds) * 1e3:.2f} ms"


def in_turn(control: MpiCommunicator, loops: Mapping[str, Callable[[], object]]) -> Seconds:
    """Seconds per iteration of every loop in each of ROUNDS, whose order turns from round to round."""
    names = list(loops)
    counts = {}
    for name, iterate in loops.items():
        for _ in range(WARM_UP):
            iterate()
        counts[name] = control.share(max(1, round(BLOCK_S / block(control, iterate, 2))))
    seconds: Seconds = {name: [] for name in names}
    for number in range(ROUNDS):
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
    """Our step: the batch of the model on every PE under data, of one PE otherwise."""
    from training.step import TrainingStep
    from training.worker import Options

    replicas = RANKS if strategy == "data" else 1
    division = Division(strategy, RANKS, about.batch_per_pe * replicas, overlap=ddp)
    return TrainingStep(about, division, SEED, teams, Options(ddp=ddp))


def plain_loop(about: ModelEntry, rank: int, group: Any = None) -> Callable[[], object]:
    """The way anybody would: DistributedDataParallel over `group`, or none, SGD with momentum."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    from training.step import loss_function, synthetic_batch

    model: torch.nn.Module = built(about, SEED).train()
    if group is not None:
        model = DistributedDataParallel(model, process_group=group)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    criterion = loss_function(about)
    inputs, targets = synthetic_batch(about, about.batch_per_pe, SEED + 1 + rank)

    def iterate() -> float:
        optimizer.zero_grad()
        loss = criterion(model(inputs), targets)
        loss.backward()
        optimizer.step()
        return float(loss.item())

    return iterate


def throughput(control: MpiCommunicator, model: str) -> Seconds:
    """Flat, DDP and plain DDP, over both backends."""
    from training.teams import make_teams

    about = entry(model)
    division = Division("data", RANKS, RANKS * about.batch_per_pe)
    opened = {backend: make_teams(control, division, backend) for backend in BACKENDS}
    loops: dict[str, Callable[[], object]] = {}
    steps = []
    for backend, teams in opened.items():
        for way in ("flat", "ddp"):
            step = make_step(about, "data", teams, ddp=way == "ddp")
            steps.append(step)
            loops[f"{way} {backend}"] = step.iterate
        loops[f"plain {backend}"] = plain_loop(about, control.rank, teams.world.process_group)
    seconds = in_turn(control, loops)
    for step in steps:
        step.close()
    loops.clear()  # DistributedDataParallel lets go of the groups before they are closed
    for teams in opened.values():
        teams.close()
    return seconds


def smallest(name: str) -> ModelEntry:
    """VGG16's layers, as narrow and on as small an image as two PEs can cut; one sample."""
    from training.models.vgg import VGG16

    def build() -> VGG16:
        return VGG16(size=32, classes=10, hidden=8, divisor=32)

    return ModelEntry(name, build, (3, 32, 32), "cross_entropy", 10, 1)


def own_python(control: MpiCommunicator, step: TrainingStep) -> float:
    """Seconds of an iteration in frames of our files: their median, on the rank that has more."""
    spent = []
    for module in step.worker.module.modules():
        kernel = getattr(module, "_compute", None)
        if callable(kernel):
            module._compute = _elsewhere(kernel)
    for _ in range(PROFILED):
        control.barrier()
        profile = cProfile.Profile()
        profile.enable()
        step.iterate()
        profile.disable()
        table: dict[tuple[str, int, str], Any] = vars(pstats.Stats(profile))["stats"]
        own = [row[2] for (file, _, name), row in table.items()
               if is_ours(file) and name not in IN_MPI]  # fmt: skip
        spent.append(sum(own))
    everyone: list[float] = control.gather_objects(median(spent))
    return max(everyone)


def _elsewhere(kernel: Any) -> Any:
    """The same call from a frame that is not ours: cProfile takes a partial for part of its caller."""

    def call(*arguments: Any) -> Any:
        return kernel(*arguments)

    return call


def is_ours(file: str) -> bool:
    """Also the code that fx generates for a program of layers."""
    if file.startswith("<eval_with_key>"):
        return True
    path = Path(file)
    return path.is_relative_to(ROOT) and path.relative_to(ROOT).parts[0] in OURS


def python_share(control: MpiCommunicator, strategy: str, model: str) -> dict[str, Any]:
    """What python_row takes."""
    from training.teams import make_teams

    about, tiny = entry(model), smallest("tiny")
    teams = make_teams(control, Division(strategy, RANKS, about.batch_per_pe), "mpi")
    step, small = make_step(about, strategy, teams), make_step(tiny, strategy, teams)
    seconds = in_turn(
        control, {"whole": step.iterate, "tiny": small.iterate, "plain": plain_loop(tiny, 0)}
    )
    found = {"strategy": strategy, "model": model, "own": own_python(control, step), **seconds}
    for each in (step, small):
        each.close()
    teams.close()
    return found


def clock_share(control: MpiCommunicator, strategy: str, model: str) -> dict[str, Any]:
    """What clock_row takes."""
    from training.clock import PhaseClock, seconds_of_a_switch
    from training.teams import make_teams

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
    division = Division(strategy, RANKS, about.batch_per_pe * replicas)
    teams = make_teams(control, division, "mpi")
    timed = make_step(about, strategy, teams)
    with patch("training.step.make_clock", lambda _: NoClock()):
        still = make_step(about, strategy, teams)
    before = timed.clock.switches
    timed.iterate()
    switches = timed.clock.switches - before
    seconds = in_turn(control, {"timed": timed.iterate, "still": still.iterate})
    for step in (timed, still):
        step.close()
    teams.close()
    each = seconds_of_a_switch(PhaseClock())
    return {"strategy": strategy, "model": model, "switches": switches, "each": each, **seconds}


def rank() -> None:
    """SPMD: everything in turn; rank 0 prints what was found."""
    import torch

    from microbench.communicators.mpi import MpiCommunicator
    from microbench.placement import place

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
