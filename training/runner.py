"""A training run: SPMD, every rank calls `train`; rank 0 writes run.jsonl as it goes."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import IO

import torch

from calib.foundation.division import Division
from calib.foundation.errors import InputError, MeasurementError
from calib.foundation.execution import execution_of
from calib.foundation.files import ensure_directory, open_own, read_bytes, write_whole
from calib.foundation.statistics import median
from calib.microbench.control import Control
from calib.microbench.devices import take_device
from calib.microbench.groups import machine_order
from calib.microbench.machine.placement import Placement, place
from calib.microbench.machine.waits import waits_here
from calib.microbench.memory import peak_rss_bytes
from calib.microbench.probe import versions
from calib.microbench.records.manifest import utc_now
from calib.microbench.timing.watchdog import (
    START_FACTOR,
    ProgressReport,
    beat,
    hang_seconds,
    watching,
)
from calib.microbench.watch import Watch
from calib.oracle.layout.shards import last_split
from calib.oracle.layout.stages import stage_names
from calib.oracle.model.spec import ModelSpec
from calib.training.checks.gradients import gradient_difference
from calib.training.clock import clock_share
from calib.training.footprint import peak_live_bytes
from calib.training.job import traces_beside
from calib.training.models import ModelEntry
from calib.training.plans.division import LayerwiseDivision, any_shared
from calib.training.run.lines import GRADIENT_RANKS, RUN_PHASES, Iteration, RunEnd, RunHeader
from calib.training.step import TrainingStep
from calib.training.stopping import Reason, Stopping
from calib.training.teams import BACKENDS, Teams, make_teams
from calib.training.traced import traced, write_traces
from calib.training.worker import WorkerOptions

# a rank may be silent for this many times the longest iteration so far, where that is slow
PATIENCE = 4.0
GRAPH_NOTE = "what a CUDA graph keeps is in a pool of its own, which peaks in tensors leave out"

# seconds of each phase, the loss where the rank has it, seconds that it waited for a core
IterationTimes = tuple[dict[str, float], float | None, float]


@dataclass(frozen=True)
class Job:
    """What to run on all ranks of a launch.

    `warmup` counts the iterations before the timed ones, including the first. `spec` has the model's
    layers, where known: they name stages and splits. `fingerprint` is the cluster's, `command` the
    launch line, `plan` the sha256 of the plan that is followed, `series` the training that this is one
    launch of. `traced` more iterations run under torch.profiler.
    """

    about: ModelEntry
    division: Division
    backend: str = "mpi"
    options: WorkerOptions = field(default_factory=WorkerOptions)
    stopping: Stopping = field(default_factory=Stopping)
    warmup: int = 2
    seed: int = 0
    spec: ModelSpec | None = None
    fingerprint: str = ""
    command: str = ""
    plan: str = ""
    series: str = ""
    traced: int = 0

    def __post_init__(self) -> None:
        if self.warmup < 1:
            raise InputError("the first iteration is never timed: the warm-up is at least 1")

    @property
    def label(self) -> str:
        """For people: vgg16-mini under data, p = 2."""
        return f"{self.about.name} {self.division.strategy} p={self.division.p}"


def train(
    control: Control,
    job: Job,
    path: Path,
    report: ProgressReport,
    hang_s: float | None = None,
    teams_of: Callable[..., Teams] = make_teams,
) -> None:
    """Train: the first iteration, the warm-up and the timed ones, written to `path` as they come.

    Collective over all ranks of `control`. Then gradients are compared with serial ones (up to
    GRADIENT_RANKS ranks): of wrong ones no time is kept.

    Parameters
    ----------
    control
        Connects the p ranks.
    job
        What is trained, and how.
    path
        The run.jsonl; iterations before an error are kept in it.
    report
        Called with the progress.
    hang_s
        Ranks that make no progress for this long end themselves.
    teams_of
        Makes the process groups.

    Raises
    ------
    InputError
        The strategy cannot divide the model so.
    MachineError
        A library is missing.
    FileError
        `path` cannot be written.
    MeasurementError
        Gradients are wrong, or a loss is not finite.
    """
    limit = hang_seconds() if hang_s is None else hang_s
    # loading libraries and computing serial gradients in float64 take longer
    dtype = execution_of(job.options.execution).dtype
    device = take_device(BACKENDS[job.backend].device, control)
    with device.arithmetic(dtype), watching(control.rank, report, START_FACTOR * limit):
        beat()
        placement = place(control, gpu=device.identity)
        torch.set_num_threads(placement.environment.threads)
        order = machine_order(placement)
        teams = teams_of(control, job.division, job.backend, order)
        step = TrainingStep(job.about, job.division, job.seed, teams, job.options)
        beat()
        header = header_of(job, teams, placement, order)
        writer = Writer(path, header) if control.rank == 0 else None
        run = TimedRun(control, job, step, report, writer)
        control.barrier()
        run.block(1)
    patience_s = max(limit, PATIENCE * run.longest_s)
    with device.arithmetic(dtype), watching(control.rank, report, patience_s):
        beat()
        run.go_on()
    with device.arithmetic(dtype), watching(control.rank, report, START_FACTOR * limit):
        beat()
        run.count()
        beat()
        run.trace(path)
        beat()
        run.check(teams)
        beat()
        run.end()
        step.close()
        teams.close()


def checked_gradients(job: Job, teams: Teams) -> tuple[float | None, list[str]]:
    """How far gradients are from the serial ones, or a note why they are not compared."""
    whole = job.division.accumulation == 1 and not execution_of(job.options.execution).cuda_graph
    if job.division.p == 1 and whole:
        return None, ["gradients are the serial ones: one rank"]
    if job.division.p > GRADIENT_RANKS:
        return None, [f"gradients not compared with serial ones: more than {GRADIENT_RANKS} ranks"]
    return gradient_difference(job.about, job.division, job.seed, teams, job.options), []


class Writer:
    """Writes run.jsonl on rank 0: one line per record, flushed at once. Raises FileError."""

    def __init__(self, path: Path, header: RunHeader) -> None:
        ensure_directory(path.absolute().parent)
        self._path, self._header = path, header
        self._stream: IO[str] = os.fdopen(open_own(path, fresh=True), "w")
        self.write(header)

    def write(self, record: RunHeader | Iteration | RunEnd) -> None:
        """One more record."""
        self._stream.write(json.dumps(record.model_dump()) + "\n")
        self._stream.flush()

    def checked(self, difference: float | None, notes: list[str]) -> None:
        """Put the header, which now says how gradients compare, in place of the first one."""
        of = {"gradient_difference": difference, "notes": [*notes, *self._header.notes]}
        first = json.dumps(self._header.model_copy(update=of).model_dump())
        self._stream.close()
        rest = read_bytes(self._path, "training run").partition(b"\n")[2]
        write_whole(self._path, first.encode() + b"\n" + rest)
        self._stream = os.fdopen(open_own(self._path, append=True), "a")

    def discard(self) -> None:
        """Remove the file."""
        self._stream.close()
        self._path.unlink(missing_ok=True)


class TimedRun:
    """The iterations of one run, in blocks, after each of which the ranks exchange their times."""

    def __init__(
        self,
        control: Control,
        job: Job,
        step: TrainingStep,
        report: ProgressReport,
        writer: Writer | None,
    ) -> None:
        self._control, self._job, self._step = control, job, step
        self._report, self._writer = report, writer
        self._index = 0
        self._wall_s = 0.0
        self._switches = 0
        self._peaks = 0, 0
        self._reason: Reason = ""
        self._profiled: float | None = None
        self._watch = Watch(control, device=step.device)
        self._counts = step.device.kind == "cpu"  # a GPU does not wait for its host's core
        self.longest_s = 0.0  # iteration so far, on any rank
        self.timed_s: list[float] = []  # on the critical rank

    def go_on(self) -> None:
        """The rest of the warm-up, then timed iterations until there are enough."""
        if self._job.warmup > 1:
            self.block(self._job.warmup - 1)
        stopping = self._job.stopping
        while not self._reason:
            mine = stopping.reason(self.timed_s), stopping.block(self.timed_s or [self.longest_s])
            self._reason, n = self._control.broadcast_object(mine)  # rank 0 decides
            if not self._reason:
                self.block(n)

    def block(self, n: int) -> None:
        """Run n iterations, then gather their times, untimed; rank 0 writes them."""
        warm = self._index < self._job.warmup
        before = self._step.clock.switches
        start = perf_counter()
        rows = self._iterated(n)
        self._watch.sent = self._control.size > 1
        took = perf_counter() - start
        self._wall_s += 0.0 if warm else took
        self._switches = -(-(self._step.clock.switches - before) // n)
        everyone: list[list[IterationTimes]] = self._control.allgather_object(rows)
        loss = math.nan
        for each in zip(*everyone, strict=True):
            seconds = {phase: [times[phase] for times, _, _ in each] for phase in RUN_PHASES}
            loss = self._mean_loss([value for _, value, _ in each if value is not None])
            waited = [seconds for _, _, seconds in each]
            record = Iteration(
                index=self._index,
                warmup=warm,
                first=self._index == 0,
                seconds=seconds,
                waited=waited if self._counts and all(map(math.isfinite, waited)) else None,
                loss=loss,
            )
            if self._writer is not None:
                self._writer.write(record)
            totals = [sum(times.values()) for times, _, _ in each]
            self.longest_s = max(self.longest_s, *totals)
            self.timed_s += [] if warm else [record.total_seconds]
            self._index += 1
        self._say(loss)
        if self._control.broadcast_object(self._watch.due()):
            self._watch.look()

    def _iterated(self, n: int) -> list[IterationTimes]:
        """So many iterations on this rank."""
        rows: list[IterationTimes] = []
        with waits_here() as waits:
            for _ in range(n):
                so_far = waits.so_far()
                times, loss = self._step.iterate()
                rows.append((times, loss, waits.since(so_far)[0]))
                self._watch.tick()
        return rows

    def _mean_loss(self, losses: list[float]) -> float:
        """The mean over the ranks with a loss. Raises MeasurementError where it is not finite."""
        loss = sum(losses) / len(losses)
        if not math.isfinite(loss):
            about, division = self._job.about, self._job.division
            raise MeasurementError(
                f"{about.name} under {division.strategy}: the loss is {loss} at iteration "
                f"{self._index}; training has diverged, the iterations before are kept"
            )
        return loss

    def _say(self, loss: float) -> None:
        if self._control.rank != 0:
            return
        total = self._job.warmup + self._job.stopping.iterations
        each = median(self.timed_s or [self.longest_s])
        self._report(
            {
                "event": "case",
                "label": f"{self._job.label}, loss {loss:.4g}",
                "done": self._index,
                "of": total,
                "loss": loss,
                "left_s": each * (total - self._index),
            }
        )

    def count(self) -> None:
        """One more iteration to count bytes; before the check, of which some would be left."""
        self._peaks = peak_rss_bytes(), peak_live_bytes(self._step)

    def trace(self, path: Path) -> None:
        """More iterations under torch.profiler, and their traces beside the run's file."""
        if not self._job.traced:
            return

        def iterate() -> dict[str, float]:
            beat()
            return self._step.iterate()[0]

        content, clock = traced(iterate, self._job.traced, self._step.device)
        write_traces(self._control, content, traces_beside(path))
        totals = self._control.allgather_object([sum(times.values()) for times in clock])
        critical = [max(each) for each in zip(*totals, strict=True)]
        self._profiled = median(critical) / median(self.timed_s)

    def check(self, teams: Teams) -> None:
        """Compare gradients with serial ones. Raises MeasurementError, and then keeps no time.

        After the timed iterations: its float64 buffers would change how glibc's malloc gives back
        memory in them (docs/measuring.md), and a plain program makes no such check.
        """
        try:
            difference, notes = checked_gradients(self._job, teams)
        except MeasurementError:
            if self._writer is not None:
                self._writer.discard()
            raise
        if self._writer is not None:
            self._writer.checked(difference, notes)

    def end(self) -> None:
        """The last line."""
        mine = [
            *self._peaks,
            clock_share(self._step.clock, self._switches, median(self.timed_s)),
            self._switches,
        ]
        everyone = self._control.allgather_object(mine)
        if self._writer is None:
            return
        rss, live, shares, switches = zip(*everyone, strict=True)
        self._writer.write(
            RunEnd(
                peak_rss_bytes=rss,
                peak_live_bytes=live,
                wall_seconds=self._wall_s,
                stopped=self._reason,
                clock_share=max(shares),
                switches=max(switches),
                looks=self._watch.looks,
                profiled=self._profiled,
            )
        )


def header_of(job: Job, teams: Teams, placement: Placement, order: Sequence[int]) -> RunHeader:
    """The header of `job` on these ranks; `order` is the rank that is rank 0, 1, ..."""
    division, options, stopping = job.division, job.options, job.stopping
    on_gpu = teams.world.device.kind == "cuda"
    return RunHeader(
        model=job.about.name,
        division=division,
        **names_of(division, job.spec),
        plan=job.plan,
        exchange=exchange_word(division, options),
        synchronized_batch_norm=options.synchronized_batch_norm,
        optimizer=options.optimizer,
        execution=options.execution,
        seed=job.seed,
        iterations=stopping.iterations,
        precision=stopping.precision,
        warmup=job.warmup,
        library=teams.world.library,
        backend=job.backend,
        device=teams.world.device.kind,
        hosts=placement.hosts,
        cores=placement.cores,
        gpus=[gpu and gpu.name for gpu in placement.gpus] if on_gpu else [],
        order=list(order),
        # ranks that share a GPU count as more ranks than cores
        oversubscribed=placement.oversubscribed or (on_gpu and placement.ranks_share_gpus),
        cluster_fingerprint=job.fingerprint,
        started=utc_now(),
        versions=versions(),
        launch=job.command,
        series=job.series,
        environment=placement.environment,
        notes=[GRAPH_NOTE] if execution_of(options.execution).cuda_graph else [],
    )


def names_of(division: Division, spec: ModelSpec | None) -> dict[str, str]:
    """What the header says of a division by the model's layers, where they are known."""
    if isinstance(division, LayerwiseDivision):
        return {"plan_layout": division.layout}
    if spec is None:
        return {}
    if division.traits.stages and division.p > 1:
        return {"stages": stage_names(spec, division.boundaries)}
    return {"split_ends_after": last_split(spec, division)}


def exchange_word(division: Division, options: WorkerOptions) -> str:
    """How weight gradients are exchanged: see RunHeader.exchange."""
    traits = division.traits
    if isinstance(division, LayerwiseDivision):
        return "flat" if any_shared(division.configurations) else "none"
    if traits.replicas and traits.whole and division.p > 1:
        if division.sharded_optimizer or division.shards:
            return "sharded"
        return "ddp" if division.overlap or options.ddp else "flat"
    if division.replicas > 1:
        return "segmented" if traits.cuts == "filters" else division.gradients
    flat = traits.replicated or division.cuts_tokens
    return "flat" if flat and division.parts > 1 else "none"
