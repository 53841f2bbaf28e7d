"""How well a calibration predicts ordinary programs, which import nothing of calib.

The programs of benchmarks/plain_programs/ are predicted from a calibration that was made before, then
run with what `calib env` exports for it, and scored. The calibration is runs/latest, or that of
`make bench ARGS=plain_programs PARAMETERS=runs/mine/parameters.json`; with `--libraries
torch_mpi,torch_gloo` it has what programs over gloo send by.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from calib.fitting.parameters.file import Parameters
from calib.foundation.division import STRATEGIES, Division
from calib.foundation.environment import THREADS_VARIABLE
from calib.foundation.errors import CalibError
from calib.foundation.statistics import median, median_interval
from calib.microbench.machine.launchers import launch_line
from calib.oracle.model.spec import ModelSpec
from calib.oracle.predict import project
from calib.oracle.projection import PhaseTime
from calib.oracle.trace.tracing import trace
from calib.reports.scoring.accuracy import score
from calib.rundir import LATEST_PARAMETERS

RANKS, BATCH, MICRO_BATCHES = 2, 32, 4
WARM_UP = 10
STEP = re.compile(r"^step \d+ loss \S+ ms (\S+)$", re.MULTILINE)
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(RANKS))
TARGET = 0.9
LIMIT_S = 600.0


@dataclass(frozen=True)
class Program:
    """A script: its strategy ("" where calib has none), what starts it, what it sends by."""

    name: str
    strategy: str
    launcher: str
    library: str = ""
    overlap: bool = False

    def line(self, model: str) -> list[str]:
        """The words that run it."""
        words = ["-m", f"benchmarks.plain_programs.{self.name}", model, "--batch", str(BATCH)]
        if self.launcher == "torchrun":
            return [sys.executable, *TORCHRUN, *words]
        start = launch_line("local", RANKS) if self.launcher == "mpiexec" else []
        return [*start, sys.executable, *words]

    def division(self, model: ModelSpec, cut: int) -> Division:
        """What it does; `cut` is the module that the second stage begins with."""
        if self.strategy == "serial":
            return Division("serial", 1, BATCH)
        if self.strategy == "pipeline":
            modules = [layer.name.split(".")[0] for layer in model.layers]
            first = modules.index(str(cut))
            return Division("pipeline", RANKS, BATCH, segments=MICRO_BATCHES, boundaries=(first,))
        return Division(self.strategy, RANKS, RANKS * BATCH, overlap=self.overlap)


SHARDED = next((name for name in STRATEGIES if "shard" in name), "")
PROGRAMS = (
    Program("serial", "serial", "python"),
    Program("ddp_gloo", "data", "torchrun", "torch_gloo", overlap=True),
    Program("data_mpi", "data", "mpiexec", "torch_mpi"),
    Program("fsdp2", SHARDED, "torchrun", "torch_gloo"),
    Program("pipeline", "pipeline", "torchrun", "torch_gloo"),
)


def plain_programs() -> list[str]:
    """A line for each program and model, then the mean accuracy."""
    # late: it imports PyTorch
    from benchmarks.plain_programs.models import CUTS, MODELS, SHAPE

    path = Path(os.environ.get("PARAMETERS", LATEST_PARAMETERS))
    if not path.exists():
        return [f"{path} is not here: calibrate first, or name PARAMETERS=FILE"]
    known = Parameters.read(path)
    specs = {name: trace(build(), SHAPE, name, "cross_entropy") for name, build in MODELS.items()}
    points = [(of, name) for of in PROGRAMS for name in specs]
    predictions = [predicted(of, specs[name], CUTS[name], known) for of, name in points]
    lines = [
        f"{RANKS} ranks (serial: 1), {BATCH} samples each, medians with 95% intervals; predicted from "
        f"{path}, measured until {known.provenance.measured_until}"
    ]
    scores, held = [], 0
    for (of, name), prediction in zip(points, predictions, strict=True):
        seconds = run(of, name, known)
        took = (
            f"{of.name} {name}: measured {milliseconds(median(seconds), *median_interval(seconds))}"
        )
        if isinstance(prediction, str):
            lines.append(f"{took}; not predicted: {prediction}")
            continue
        scores.append(score(prediction.value, median(seconds)) or 0.0)
        held += prediction.low <= median(seconds) <= prediction.high
        sent = f", sent by {library(of, known)}" if of.library else ""
        lines.append(
            f"{took}, predicted {milliseconds(*prediction.numbers)} (parameters "
            f"{prediction.basis}{sent}): accuracy {scores[-1]:.1%}"
        )
    if scores:
        lines.append(
            f"mean accuracy {fmean(scores):.1%} (target {TARGET:.0%}), worst {min(scores):.1%}; "
            f"{held} of {len(scores)} in the 95% interval"
        )
    return lines


def milliseconds(value: float, low: float, high: float) -> str:
    """Seconds with their interval, as text."""
    return f"{value * 1e3:.2f} ms [{low * 1e3:.2f}, {high * 1e3:.2f}]"


def library(of: Program, known: Parameters) -> str:
    """What the program sends by, if that was measured, else what predictions take."""
    measured = {fit.library for fit in known.collectives}
    return of.library if of.library in measured else "the library of training"


def predicted(of: Program, model: ModelSpec, cut: int, known: Parameters) -> PhaseTime | str:
    """What an iteration costs, or why it is not predicted."""
    if not of.strategy:
        return "calib has no such strategy yet"
    if library(of, known) == of.library:
        known = known.sent_by(of.library)
    try:
        found = project(model, of.division(model, cut), known)
    except CalibError as error:
        return str(error)
    return found.total or "; ".join(found.limits)


def run(of: Program, model: str, known: Parameters) -> list[float]:
    """Seconds of its steps after the warm-up, in the environment of the calibration."""
    ranks = 1 if of.launcher == "python" else RANKS
    threads = known.environment_on(ranks).threads
    variables = {**known.variables, **({THREADS_VARIABLE: str(threads)} if threads else {})}
    done = subprocess.run(
        of.line(model),
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
        env={**os.environ, **variables},
    )
    seconds = [float(word) / 1e3 for word in STEP.findall(done.stdout)][WARM_UP:]
    if done.returncode or not seconds:
        raise RuntimeError(f"{of.name} {model}: {done.stdout}{done.stderr}")
    return seconds
