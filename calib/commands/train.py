"""Run real training iterations and write their times, phase by phase, to a run.jsonl.

Alone it starts the ranks itself; under a launcher it is one of them. Examples: calib train --model
vgg16-mini --strategy data+filter -p 4 --groups 2 -o run.jsonl; calib train --model vgg16-mini
--strategy all -p 2 -o runs/mine
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from calib.driver.listen import Event
from calib.driver.ranks import (
    RanksEnded,
    as_rank,
    default_ranks,
    driven,
    emit,
    join_ranks,
    run_ranks,
)
from calib.foundation.errors import FileError, InputError, MeasurementError
from calib.microbench.machine.launchers import launch_line
from calib.options import MOST, BatchPerPe, Json, Launcher
from calib.predicting.options import (
    Boundaries,
    Grid,
    Optimizer,
    Overlap,
    ScheduleName,
    Sharded,
    SplitUntil,
    whole_numbers,
)
from calib.rundir import prepare_training
from calib.terminal.printing import say
from calib.terminal.progress import Bar

if TYPE_CHECKING:
    from calib.microbench.communicators.mpi import MpiCommunicator
    from calib.oracle.division import Division
    from calib.training.run.record import TrainingRun
    from calib.training_runs.options import Settings
    from calib.training_runs.runs import Asked

# with what it takes to end them, ranks that wait for a dead one are gone within 30 s
HANG_SECONDS = 20.0
# torch takes seeds below 2**63, and those of replicas and stages are added to it
MAX_SEED = 2**63 - 2**32


def command(
    model: Annotated[
        str, typer.Option(help="A registered model, or a module of your own, MODULE:FUNCTION.")
    ] = "",
    strategy: Annotated[
        str,
        typer.Option(
            help="One, a list, or all that the model can be divided by: serial, data, spatial, "
            "pipeline, filter, channel, data+filter, data+spatial."
        ),
    ] = "serial",
    p: Annotated[int, typer.Option("-p", min=1, max=MOST, help="Ranks.")] = 1,
    batch_per_pe: BatchPerPe = None,
    batch: Annotated[
        int | None, typer.Option(min=1, max=MOST, help="Global batch instead.")
    ] = None,
    groups: Annotated[
        int | None, typer.Option(min=1, max=MOST, help="p1 of a hybrid: groups of p / p1 ranks.")
    ] = None,
    inner: Annotated[
        int | None, typer.Option(min=1, max=MOST, help="p2 of a hybrid instead: ranks of a group.")
    ] = None,
    segments: Annotated[
        int | None, typer.Option(min=1, max=MOST, help="Micro-batches of a pipeline; default 4.")
    ] = None,
    schedule: ScheduleName = None,
    boundaries: Boundaries = None,
    grid: Grid = None,
    split_until: SplitUntil = "",
    overlap: Overlap = False,
    sharded_optimizer: Sharded = False,
    gradients: Annotated[
        str | None,
        typer.Option(help="Of data+spatial, who exchanges between groups: leaders or all."),
    ] = None,
    plan: Annotated[
        Path | None,
        typer.Option(
            metavar="PLAN.json",
            help="Train as `calib search` planned, instead of a "
            "strategy: spaces layerwise and pipeline.",
        ),
    ] = None,
    backend: Annotated[str, typer.Option(help="Of torch.distributed: mpi, gloo or nccl.")] = "mpi",
    dtype: Annotated[
        str, typer.Option(help="float32, bfloat16 (autocast) or float64.")
    ] = "float32",
    optimizer: Optimizer = "momentum",
    sync_batch_norm: Annotated[
        bool, typer.Option("--sync-batch-norm", help="Statistics over all samples and parts.")
    ] = False,
    ddp: Annotated[
        bool, typer.Option("--ddp", help="Data: DistributedDataParallel, also without --overlap.")
    ] = False,
    iterations: Annotated[
        int, typer.Option(min=6, max=MOST, help="Timed ones, at most, after two of warm-up.")
    ] = 100,
    precision: Annotated[
        str | None, typer.Option(help="Stop when the median's 95% interval is so near, as 1%.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, max=MAX_SEED, help="Weights and data.")] = 0,
    input_: Annotated[
        str, typer.Option("--input", help="Of your own module: one sample's shape, 3x32x32.")
    ] = "",
    outputs: Annotated[
        int | None,
        typer.Option("--outputs", "--classes", min=1, max=MOST, help="Its classes, or outputs."),
    ] = None,
    loss: Annotated[
        str | None, typer.Option(help="Its loss: cross_entropy (the default) or mse.")
    ] = None,
    train_function: Annotated[
        str, typer.Option(help="MODULE:FUNCTION, step(module, inputs, targets, loss) -> loss.")
    ] = "",
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="The run.jsonl; for several runs, or if it is there, a "
            "directory (in a run directory its training/).",
        ),
    ] = None,
    launcher: Launcher = "local",
    hang_seconds: Annotated[
        float,
        typer.Option(min=1.0, max=3600.0, help="Give ranks up that make no progress for so long."),
    ] = HANG_SECONDS,
    as_json: Json = False,
    cluster: Annotated[str, typer.Option(hidden=True)] = "",
) -> None:
    from calib.training_runs.options import (
        Layout,
        Settings,
        batch_of_all,
        gradients_of,
        model_entry,
        own_of,
        schedule_of,
        share_of,
    )
    from calib.training_runs.plan import PlanFile
    from calib.training_runs.runs import Asked

    own = own_of(input_, loss, outputs, train_function)
    found_plan = None if plan is None else PlanFile.read(plan)
    model = model or (found_plan.plan.model if found_plan else "")
    if not model:
        raise InputError("give a --model, or a --plan of one")
    about = model_entry(model, own)
    layout = Layout(
        groups,
        inner,
        segments,
        schedule_of(schedule),
        whole_numbers(boundaries, ",", "--boundaries", "3,7,12"),
        whole_numbers(grid, "x", "--grid", "4x2"),
        split_until,
        overlap,
        sharded_optimizer,
        gradients_of(gradients),
    )
    settings = Settings(
        backend,
        dtype,
        optimizer,
        sync_batch_norm,
        ddp,
        iterations,
        share_of(precision, "--precision"),
        seed,
        hang_seconds,
        own,
    )
    if found_plan is not None:
        found_plan.require_alone(
            {
                "--strategy": strategy != "serial",
                "-p": p != 1,
                "--ddp": ddp,
                "--batch": batch is not None,
                "--batch-per-pe": batch_per_pe is not None,
            },
            layout,
        )
        p, batch, settings = found_plan.plan.p, found_plan.plan.batch, found_plan.settings(settings)
    whole = batch_of_all(about, p, batch_per_pe, batch)
    asked = Asked(
        model, strategy, p, whole, layout, settings, output, launcher, cluster, found_plan
    )
    if as_rank():
        train_as_rank(asked, as_json)
        return
    several = asked.several
    runs, reasons = asked.runs()
    launch_line(launcher, p)  # what cannot start ranks is said before anything seems to begin
    found = list(trained(asked, runs, quiet=as_json))
    if as_json:
        from calib.training_runs.plan import print_found

        print_found(asked.plan, found, reasons, several)
    elif several:
        from calib.training_runs.table import show

        show([run for run, _ in found])
    if len(found) < len(runs):
        raise MeasurementError(f"{len(runs) - len(found)} of {len(runs)} trainings failed")


def trained(
    asked: Asked, runs: Sequence[tuple[Division, Path]], quiet: bool = False
) -> Iterator[tuple[TrainingRun, Path]]:
    """Every run, one after the other. Of several, one that fails is said and left out."""
    from calib.training_runs.plan import show_planned
    from calib.training_runs.runs import slug
    from calib.training_runs.table import summarize

    for division, path in runs:
        try:
            run = train(
                path,
                asked.model,
                division,
                asked.settings,
                asked.launcher,
                asked.cluster,
                asked.plan.path if asked.plan else None,
            )
        except (MeasurementError, RanksEnded) as error:
            if len(runs) == 1:
                raise
            say(f"failed: {asked.model} {slug(division)}: {error}")
        else:
            if not quiet:
                summarize(run, path)
                show_planned(asked.plan, run)
            yield run, path


def train(
    path: Path,
    model: str,
    division: Division,
    settings: Settings,
    launcher: str,
    fingerprint: str = "",
    plan: Path | None = None,
) -> TrainingRun:
    """Start the ranks, wait for them, and read what they wrote, over what `path` held before.

    Raises what `run_ranks` does, and MeasurementError where they ended too early and did not say why.
    """
    from calib.training.run.record import TrainingRun
    from calib.training_runs.options import division_arguments
    from calib.training_runs.runs import slug, stamp, whole_run

    p = division.p
    if launcher == "local" and p > default_ranks():
        say(f"{p} ranks on {default_ranks()} cores: oversubscribed, the run will be marked")
    prepare_training(path)
    arguments = [
        "train",
        "--model",
        model,
        *settings.arguments(),
        *(["--plan", str(plan.absolute())] if plan else division_arguments(division)),
        "-o",
        str(path.absolute()),
        *(["--cluster", fingerprint] if fingerprint else []),
    ]
    with Bar(f"train {model} {slug(division)} p={p}", settings.iterations + 2) as bar:

        def on_event(event: Event) -> None:
            bar.update(event["done"], f"loss {event['loss']:.4g}", event["left_s"])

        before, log = stamp(path), path.absolute().parent / "ranks.log"

        def written() -> bool:
            """Whether the ranks have measured anything; an older file is not theirs."""
            if stamp(path) not in (None, before):
                with suppress(FileError):
                    return bool(TrainingRun.read(path).iterations)
            return False

        def kept() -> str:
            there = written()
            return (
                f"the iterations so far are kept in {path}" if there else "nothing was measured yet"
            )

        run_ranks(launcher, p, arguments, log, on_event, kept, hang_s=settings.hang_s)
    if not written():
        raise MeasurementError(f"the ranks ended before they had measured anything; see {log}")
    return whole_run(path, f"; see {log}")


def train_as_rank(asked: Asked, as_json: bool = False) -> None:
    """SPMD: one rank of the runs, which rank 0 lays out and, launched by a person, prints."""
    from calib.training_runs.options import as_plain, from_plain

    communicator = join_ranks()
    if communicator.size != asked.p:
        raise InputError(f"-p {asked.p}, but the launcher started {communicator.size} ranks")
    emit(
        {
            "event": "here",
            "rank": communicator.rank,
            "pid": os.getpid(),
            "host": socket.gethostname(),
        }
    )
    plain: list[list[Any]] = []
    reasons: list[str] = []
    found = []
    if communicator.rank == 0:
        runs, reasons = asked.runs()
        plain = [[as_plain(division), str(path)] for division, path in runs]
    for content, name in communicator.share(plain):
        path = Path(name)
        run = run_as_rank(communicator, asked, from_plain(content), path, as_json)
        if run is not None:
            found.append((run, path))
    if found and as_json:
        from calib.training_runs.plan import print_found

        print_found(asked.plan, found, reasons, asked.several)


def run_as_rank(
    communicator: MpiCommunicator, asked: Asked, division: Division, path: Path, quiet: bool = False
) -> TrainingRun | None:
    """SPMD: one run. Rank 0 of a person's own launch says how it went, and returns it."""
    from calib.training.runner import Job, train
    from calib.training.stopping import Stopping
    from calib.training.worker import Options
    from calib.training_runs.options import model_entry, model_layers
    from calib.training_runs.runs import machine_of, needs_layers, whole_run

    settings = asked.settings
    if communicator.rank == 0:
        prepare_training(path)
    job = Job(
        model_entry(asked.model, settings.own),
        division,
        settings.backend,
        Options(settings.optimizer, settings.dtype, settings.synchronized_batch_norm, settings.ddp),
        Stopping(settings.iterations, settings.precision),
        seed=settings.seed,
        spec=model_layers(asked.model, settings.own, division.strategy)
        if needs_layers(division.strategy, division.p)
        else None,
        fingerprint=machine_of(communicator, asked.cluster, path),
        command=os.environ.get("CALIB_COMMAND", "direct"),
        plan=asked.plan.digest if asked.plan else "",
    )
    train(communicator, job, path, partial(emit, to=sys.stderr) if quiet else emit, settings.hang_s)
    if communicator.rank != 0 or driven():
        return None
    run = whole_run(path)
    if not quiet:
        from calib.training_runs.plan import show_planned
        from calib.training_runs.table import summarize

        summarize(run, path)
        show_planned(asked.plan, run)
    return run
