"""Train for some iterations and write the time of each phase.

The times go to a run.jsonl. Alone it starts the ranks itself; under a launcher it is one of them.
Examples: calib train --model vgg16-mini --strategy data+filter -p 4 --groups 2 -o run.jsonl; calib
train --model vgg16-mini --strategy all -p 2 -o runs/mine
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from calib.driver.ranks import as_rank
from calib.foundation.division import STRATEGIES
from calib.foundation.errors import InputError, MeasurementError
from calib.foundation.execution import USUAL, execution_of
from calib.foundation.own import Loss, is_own
from calib.microbench.machine.launchers import launch_line
from calib.options import (
    MOST,
    Accumulate,
    BatchPerRank,
    Boundaries,
    ExecutionOption,
    GlobalBatch,
    GradientsOption,
    Grid,
    HangSeconds,
    Inner,
    Json,
    Launcher,
    OptimizerOption,
    OverlapOption,
    ScheduleName,
    Segments,
    SequenceParallel,
    Sharded,
    SplitUntil,
    VariablesOption,
    share_of,
    variables_of,
)
from calib.predicting.choices import templates
from calib.training.job import HANG_SECONDS, Settings
from calib.training.models import entry
from calib.training.models.specs import keep_models, named
from calib.training_runs.options import MAX_SEED, asked_model, batch_of_all, in_groups
from calib.training_runs.plan import PlanFile, print_found
from calib.training_runs.runs import TrainingRequest
from calib.training_runs.stages import parameters_around
from calib.training_runs.table import show
from calib.training_runs.train import train_as_rank, train_job, trained

MOST_TRACED = 1000  # iterations: a trace is held in memory


def command(
    model: Annotated[
        str,
        typer.Option(
            help="A registered model, a model.json, or a module of yours, MODULE:FUNCTION."
        ),
    ] = "",
    strategy: Annotated[
        str,
        typer.Option(
            help=f"One, a list, or all that the model can be divided by: {', '.join(STRATEGIES)}."
        ),
    ] = "serial",
    p: Annotated[int, typer.Option("-p", min=1, max=MOST, help="Ranks.")] = 1,
    batch_per_rank: BatchPerRank = None,
    batch: GlobalBatch = None,
    groups: Annotated[
        int | None, typer.Option(min=1, max=MOST, help="p1 of a hybrid: groups of p / p1 ranks.")
    ] = None,
    inner: Inner = None,
    segments: Segments = None,
    schedule: ScheduleName = None,
    boundaries: Boundaries = None,
    grid: Grid = None,
    split_until: SplitUntil = "",
    overlap: OverlapOption = False,
    sharded_optimizer: Sharded = False,
    sequence_parallel: SequenceParallel = False,
    gradients: GradientsOption = None,
    accumulate: Accumulate = None,
    plan: Annotated[
        Path | None,
        typer.Option(
            metavar="PLAN.json",
            help="Train as `calib search` planned, instead of a "
            "strategy: spaces layerwise and pipeline.",
        ),
    ] = None,
    backend: Annotated[str, typer.Option(help="Of torch.distributed: mpi, gloo or nccl.")] = "mpi",
    execution: ExecutionOption = USUAL,
    optimizer: OptimizerOption = "momentum",
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
    trace: Annotated[
        int,
        typer.Option(
            min=0,
            max=MOST_TRACED,
            help="More iterations under torch.profiler, into a folder of traces for `calib explain`.",
        ),
    ] = 0,
    seed: Annotated[int, typer.Option(min=0, max=MAX_SEED, help="Weights and data.")] = 0,
    input_: Annotated[
        str, typer.Option("--input", help="Of your own module: one sample's shape, 3x32x32.")
    ] = "",
    outputs: Annotated[
        int | None,
        typer.Option(
            "--outputs",
            "--classes",
            min=1,
            max=MOST,
            help="Its classes, or outputs; default as it returns.",
        ),
    ] = None,
    loss: Annotated[Loss | None, typer.Option(help="Its loss; default cross_entropy.")] = None,
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
    env: VariablesOption = None,
    hang_seconds: HangSeconds = HANG_SECONDS,
    as_json: Json = False,
    job: Annotated[Path | None, typer.Option(hidden=True)] = None,
) -> None:
    if job is not None and output is not None:  # a rank of a driver
        train_job(job, output)
        return
    found_plan = None if plan is None else PlanFile.read(plan)
    model = model or (found_plan.plan.model if found_plan else "")
    if not model:
        raise InputError("give a --model, or a --plan of one")
    word = model
    model, own = asked_model(word, input_, loss, outputs, train_function)
    if not is_own(word) and not as_rank() and (known := parameters_around(output)):
        keep_models(known.parent, named([word]).values())
    settings = Settings(
        backend,
        execution_of(execution).name,
        optimizer,
        sync_batch_norm,
        ddp,
        iterations,
        share_of(precision, "--precision"),
        seed,
        hang_seconds,
        own,
        variables_of(env),
        trace,
    )
    layout: dict[str, Any] = {
        "inner": [inner] if inner else [],
        "segments": [segments] if segments else [],
        "schedule": schedule,
        "boundaries": boundaries,
        "grid": grid,
        "split_until": split_until,
        "overlap": overlap,
        "sharded_optimizer": sharded_optimizer,
        "sequence_parallel": sequence_parallel,
        "gradients": gradients,
        "accumulation": [accumulate] if accumulate else [],
    }
    if found_plan is not None:
        given = {
            "--strategy": strategy != "serial",
            "-p": p != 1,
            "--ddp": ddp,
            "--batch": batch,
            "--batch-per-rank": batch_per_rank,
            "the options of a strategy": groups or any(layout.values()),
        }
        found_plan.require_alone(given)
        p, batch, settings = found_plan.plan.p, found_plan.plan.batch, found_plan.settings(settings)
    chosen = templates(strategy, **layout)
    if groups is not None:
        chosen = in_groups(chosen, p, groups)
    whole = batch_of_all(entry(model, own), p, batch_per_rank, batch)
    asked = TrainingRequest(
        model, strategy, chosen, p, whole, settings, output, launcher, found_plan
    )
    if as_rank():
        train_as_rank(asked, as_json)
        return
    runs, reasons = asked.runs()
    launch_line(launcher, p)  # what cannot start ranks is said before anything seems to begin
    found = list(trained(asked, runs, quiet=as_json))
    if as_json:
        print_found(asked.plan, found, reasons, asked.several)
    elif asked.several:
        show([run for run, _ in found])
    if len(found) < len(runs):
        raise MeasurementError(f"{len(runs) - len(found)} of {len(runs)} trainings failed")
