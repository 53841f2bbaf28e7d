"""Run real training iterations and write their times, phase by phase, to a run.jsonl.

Alone it starts the ranks itself; under a launcher it is one of them. Example: calib train --model
vgg16-mini --strategy data -p 2 -o run.jsonl
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from calib.listen import Event
from calib.options import MOST, BatchPerPe, Json, Launcher, default_ranks, print_json, say
from calib.progress import Bar
from calib.ranks import as_rank, emit, join_ranks, run_ranks
from foundation.errors import InputError

if TYPE_CHECKING:
    from training.run import TrainingRun


def command(
    model: Annotated[str, typer.Option(help="A registered model.")],
    strategy: Annotated[str, typer.Option(help="serial or data.")] = "serial",
    p: Annotated[int, typer.Option("-p", min=1, help="Ranks.")] = 1,
    batch_per_pe: BatchPerPe = None,
    batch: Annotated[
        int | None, typer.Option(min=1, max=MOST, help="Global batch instead; p must divide it.")
    ] = None,
    iterations: Annotated[int, typer.Option(min=6, help="After one warm-up iteration.")] = 100,
    seed: Annotated[int, typer.Option(min=0, help="Weights and data.")] = 0,
    output: Annotated[Path, typer.Option("--output", "-o", help="The run.jsonl.")] = Path(
        "run.jsonl"
    ),
    launcher: Launcher = "local",
    as_json: Json = False,
    cluster: Annotated[str, typer.Option(hidden=True)] = "",
) -> None:
    each = checked(model, strategy, p, batch_per_pe, batch)
    if as_rank():
        train_as_rank(model, strategy, p, each, iterations, seed, output, cluster)
        return
    run = train(output, model, strategy, p, each, iterations, seed, launcher, cluster)
    if as_json:
        print_json(run.model_dump())
    else:
        summarize(run, output)


def checked(model: str, strategy: str, p: int, batch_per_pe: int | None, batch: int | None) -> int:
    """Samples per PE, after everything that can be wrong was checked, before ranks are started."""
    from calib.plan import batch_of
    from oracle.predict import batch_of_each
    from training.models import entry
    from training.strategies import STRATEGIES

    entry(model)
    if strategy not in STRATEGIES:
        raise InputError(f"unknown strategy {strategy!r}; known: {', '.join(STRATEGIES)}")
    if strategy == "serial" and p != 1:
        raise InputError(f"serial training runs on 1 rank, not on {p}")
    if batch is not None and batch_per_pe is not None:
        raise InputError("give --batch or --batch-per-pe, not both")
    return batch_of_each(batch, p) if batch is not None else batch_of(model, batch_per_pe)


def train(
    path: Path,
    model: str,
    strategy: str,
    p: int,
    batch_per_pe: int,
    iterations: int,
    seed: int,
    launcher: str,
    fingerprint: str = "",
) -> TrainingRun:
    """Start the ranks, wait for them, and read what they wrote."""
    from foundation.files import ensure_directory
    from training.run import TrainingRun

    if launcher == "local" and p > default_ranks():
        say(f"{p} ranks on {default_ranks()} cores: oversubscribed, the run will be marked")
    ensure_directory(path.absolute().parent)
    arguments = [
        "train", "--model", model, "--strategy", strategy, "-p", str(p),
        "--batch-per-pe", str(batch_per_pe), "--iterations", str(iterations), "--seed", str(seed),
        "-o", str(path.absolute()), "--cluster", fingerprint,
    ]  # fmt: skip
    with Bar(f"train {model} {strategy} p={p}", iterations + 1) as bar:

        def on_event(event: Event) -> None:
            bar.update(event["done"], f"loss {event['loss']:.4g}", event["left_s"])

        kept = f"the iterations so far are kept in {path}"
        run_ranks(launcher, p, arguments, path.absolute().parent / "ranks.log", on_event, kept)
    return TrainingRun.read(path)


def summarize(run: TrainingRun, path: Path) -> None:
    """The median iteration and its phases, in one line each."""
    from foundation.statistics import median, median_interval
    from training.run import TIMED_PHASES

    totals = [iteration.total_seconds for iteration in run.timed]
    low, high = median_interval(totals)
    head = run.header
    say(
        f"{head.model} {head.strategy} p={head.p}, {head.batch_per_pe} samples per PE: "
        f"{median(totals) * 1e3:.4g} ms [{low * 1e3:.4g}, {high * 1e3:.4g}] per iteration "
        f"(median of {len(totals)}, 95% interval)"
    )
    phases = {p: median([i.phase_seconds(p) for i in run.timed]) for p in TIMED_PHASES}
    say("  " + ", ".join(f"{name} {value * 1e3:.4g} ms" for name, value in phases.items()))
    if head.gradient_difference is not None:
        say(f"  gradients equal the serial ones to {head.gradient_difference:.1e}")
    if head.oversubscribed:
        say("  oversubscribed: more ranks than cores")
    say(f"written: {path}")


def train_as_rank(
    model: str,
    strategy: str,
    p: int,
    batch_per_pe: int,
    iterations: int,
    seed: int,
    path: Path,
    fingerprint: str,
) -> None:
    """SPMD: one rank of the run."""
    from training.runner import train as train_here

    communicator = join_ranks()
    if communicator.size != p:
        raise InputError(f"-p {p}, but the launcher started {communicator.size} ranks")
    train_here(
        communicator, model, strategy, batch_per_pe, path, emit, iterations=iterations, seed=seed,
        fingerprint=fingerprint, command=os.environ.get("CALIB_COMMAND", "direct"),
    )  # fmt: skip
