"""How long our own Python takes in an iteration, under strategies that cut layers.

Seconds in frames of our files (callees in C, torch's Python, and MPI's calls not counted) under
cProfile, less what cProfile itself takes there, by the seconds of an iteration without it. What cProfile
takes is found by profiling empty functions: of a call, what it leaves in the caller and in the callee.
Beside it what was counted before that was taken off: more than that it cannot be. The forward that
torch.fx writes for a program of layers is the model's own (its additions would count as Python).

Beside it, the same layers at the smallest size: all that does not shrink with the kernels, so torch's
own calls and the latency of MPI as well as ours.
"""

from __future__ import annotations

import cProfile
import pstats
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from benchmarks.training_loops import RANKS, in_turn, make_step, milliseconds, plain_loop
from calib.foundation.division import Division
from calib.foundation.statistics import median
from calib.training.models import ModelEntry, entry

if TYPE_CHECKING:
    from calib.microbench.communicators.mpi import MpiCommunicator
    from calib.training.step import TrainingStep
    from calib.training.teams import Teams

    Function = tuple[str, int, str]

PROFILED, CALLS = 20, 100_000
ROUNDS, BLOCK_S = 7, 0.2
PYTHON_TARGET = 0.05
OURS = ("training", "microbench", "oracle", "foundation")
# they call MPI, whose functions cProfile takes for part of their callers
IN_MPI = ("_run", "wait", "test")
ROOT = Path(__file__).resolve().parents[1]


def python_row(
    strategy: str,
    model: str,
    whole: list[float],
    own: float,
    counted: float,
    tiny: list[float],
    plain: list[float],
) -> str:
    """The share of our own Python, and what does not shrink."""
    return (
        f"{model} {strategy} p={RANKS}: our own Python {own / median(whole):.1%} of an iteration of "
        f"{milliseconds(whole)} ({counted / median(whole):.1%} with cProfile's own work in it; target "
        f"{PYTHON_TARGET:.0%}); the same layers at the smallest size: {milliseconds(tiny)}, serially in "
        f"plain torch {milliseconds(plain)}"
    )


@dataclass(frozen=True)
class Overhead:
    """Seconds that cProfile adds to a call: in the callee, in a caller of Python, in one of C."""

    callee: float
    caller: float
    of_c: float


def overhead(calls: int = CALLS) -> Overhead:
    """That of this machine and Python, by empty functions called so many times in a row."""

    def empty() -> None:
        pass

    def in_python() -> None:
        for _ in range(calls):
            empty()

    def in_c() -> None:
        for _ in range(calls):
            len(nothing)

    nothing = ()
    found = []
    for loop in (in_python, in_c):
        alone = min(_seconds(loop) for _ in range(5))
        tables = [profiled(loop) for _ in range(3)]
        own = min(_of(table, loop.__name__) for table in tables)
        callee = min(_of(table, "empty") for table in tables)
        found.append(((own - alone) / calls, callee / calls))
    (python, callee), (of_c, _) = found
    # the call itself is in `alone`, the callee's return in both
    return Overhead(callee, max(0.0, python), max(0.0, of_c))


def _seconds(loop: Callable[[], None]) -> float:
    start = perf_counter()
    loop()
    return perf_counter() - start


def profiled(call: Callable[[], object]) -> dict[Function, Any]:
    """cProfile's table of one call, by function."""
    profile = cProfile.Profile()
    profile.enable()
    call()
    profile.disable()
    table: dict[Function, Any] = vars(pstats.Stats(profile))["stats"]
    return table


def _of(table: dict[Function, Any], name: str) -> float:
    """Seconds in functions of this name, without those that they call."""
    return float(sum(row[2] for (_, _, called), row in table.items() if called == name))


def own_python(control: MpiCommunicator, step: TrainingStep) -> tuple[float, float]:
    """Seconds of an iteration in frames of our files, and those with cProfile's work in them.

    Medians over iterations, on the rank that has more.
    """
    for module in step.worker.module.modules():
        kernel = getattr(module, "_compute", None)
        if callable(kernel):
            module._compute = _elsewhere(kernel)
    takes, found = overhead(), []
    for _ in range(PROFILED):
        control.barrier()
        found.append(_own(profiled(step.iterate), takes))
    mine = tuple(median(values) for values in zip(*found, strict=True))
    own, counted = max(control.allgather_object(mine))
    return own, counted


def _own(table: dict[Function, Any], takes: Overhead) -> tuple[float, float]:
    """Seconds in frames of ours without and with what cProfile takes in them."""
    counted = work = 0.0
    for (file, _, name), row in table.items():
        if is_ours(file, name):
            counted += row[2]
            work += row[1] * takes.callee
        each = takes.of_c if file == "~" else takes.caller
        work += each * sum(of[1] for caller, of in row[4].items() if is_ours(caller[0], caller[2]))
    return counted - work, counted


def _elsewhere(call: Any) -> Any:
    """The same call from a frame that is not ours: cProfile takes a partial for part of its caller."""

    def elsewhere(*arguments: Any) -> Any:
        return call(*arguments)

    return elsewhere


class Away:
    """An MPI communicator whose calls are made in frames that are not ours."""

    def __init__(self, comm: Any) -> None:
        self._comm = comm

    def __getattr__(self, name: str) -> Any:
        return _elsewhere(getattr(self._comm, name))

    def __eq__(self, other: object) -> bool:
        return bool(self._comm == other)

    def __hash__(self) -> int:
        return hash(self._comm)


def teams_of(control: MpiCommunicator, division: Division) -> Teams:
    """make_teams over process groups whose communicators are Away."""
    from calib.microbench.communicators.torch_mpi import MpiProcessGroup
    from calib.training.teams import make_teams

    begin = MpiProcessGroup.__init__

    def begin_away(self: Any, comm: Any, name: str) -> None:
        begin(self, comm, name)
        self._comm = Away(comm)

    with patch.object(MpiProcessGroup, "__init__", begin_away):
        return make_teams(control, division, "mpi")


def is_ours(file: str, name: str) -> bool:
    """Whether a frame is of our files, and none that does but call MPI."""
    path = Path(file)
    inside = path.is_relative_to(ROOT) and path.relative_to(ROOT).parts[0] in OURS
    return inside and name not in IN_MPI


def smallest(name: str) -> ModelEntry:
    """VGG16's layers, as narrow and on as small an image as two ranks can cut; one sample."""
    from calib.training.models.vgg import VGG16

    def build() -> VGG16:
        return VGG16(size=32, classes=10, hidden=8, divisor=32)

    return ModelEntry(name, build, (3, 32, 32), "cross_entropy", 10, 1)


def python_share(control: MpiCommunicator, strategy: str, model: str) -> dict[str, Any]:
    """What python_row takes."""
    about, tiny = entry(model), smallest("tiny")
    teams = teams_of(control, Division(strategy, RANKS, about.batch_per_rank))
    step, small = make_step(about, strategy, teams), make_step(tiny, strategy, teams)
    loops = {"whole": step.iterate, "tiny": small.iterate, "plain": plain_loop(tiny, 0)}
    seconds = in_turn(control, loops, ROUNDS, BLOCK_S)
    own, counted = own_python(control, step)
    for each in (step, small):
        each.close()
    teams.close()
    return {"strategy": strategy, "model": model, "own": own, "counted": counted, **seconds}
