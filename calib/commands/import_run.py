"""Import iteration times or profiler traces of other training.

The files are CSV or JSONL rows, or traces of torch.profiler. Example: calib import-run times.csv -o
runs/theirs/training, or calib import-run rank*.json.gz --model my-net --strategy ddp --batch 256 -o
run.jsonl
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from calib.foundation.execution import execution_of
from calib.foundation.statistics import median
from calib.importing.trainings import Said, read_runs
from calib.options import MOST, Json
from calib.terminal.printing import print_json, say, table
from calib.training.importers.records import Circumstances, paths_of, strategy_of, write_runs
from calib.training.run.record import TrainingRun


def command(
    files: Annotated[
        list[Path], typer.Argument(help="Tables, or the traces of the ranks of one run.")
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="A directory, or the run.jsonl of one run.")
    ],
    model: Annotated[str | None, typer.Option(help="Where a file does not say it.")] = None,
    strategy: Annotated[
        str | None, typer.Option(help="Where a file does not say it: serial, data (ddp), ...")
    ] = None,
    p: Annotated[
        int | None,
        typer.Option("-p", min=1, max=MOST, help="Ranks, where a file does not say them."),
    ] = None,
    batch: Annotated[
        int | None,
        typer.Option(min=1, max=MOST, help="Global batch, where a file does not say it."),
    ] = None,
    inner: Annotated[
        int, typer.Option(min=1, max=MOST, help="Of a hybrid: ranks that share samples (p2).")
    ] = 1,
    segments: Annotated[
        int, typer.Option(min=1, max=MOST, help="Of a pipeline: micro-batches.")
    ] = 1,
    warmup: Annotated[
        int, typer.Option(min=0, max=MOST, help="First iterations that are not timed.")
    ] = 0,
    optimizer: Annotated[str | None, typer.Option(help="What it trained with.")] = None,
    execution: Annotated[
        str | None, typer.Option(help="As calib train has it: float32, bfloat16-mixed, ...")
    ] = None,
    library: Annotated[str | None, typer.Option(help="What communicated.")] = None,
    name: Annotated[
        str, typer.Option(help="Begins the names of the files in the directory; default the model.")
    ] = "",
    as_json: Json = False,
) -> None:
    given = {"model": model, "strategy": strategy, "p": p, "batch": batch}
    if strategy is not None:
        given["strategy"] = strategy_of(strategy)
    about = Circumstances(inner=inner, segments=segments)
    known = execution and execution_of(execution).name
    words = {"optimizer": optimizer, "execution": known, "library": library}
    said = Said(given, about, {k: v for k, v in words.items() if v}, warmup)
    runs = read_runs(files, said)
    paths = paths_of(runs, output, name)
    write_runs(runs, paths)
    if as_json:
        print_json([{"path": str(x), **y.model_dump()} for x, y in zip(paths, runs, strict=True)])
    else:
        show(runs, paths)


def show(runs: list[TrainingRun], paths: list[Path]) -> None:
    """One line for every run, then what was assumed."""
    rows = []
    for run in runs:
        head, timed = run.header, run.timed
        known = [x for x in timed[0].known_phases if all(x in i.known_phases for i in timed)]
        known = [x for x in known if any(i.phase_seconds(x) for i in timed)]
        phases = [f"{x} {median([i.phase_seconds(x) for i in timed]) * 1e3:.4g}" for x in known]
        total = median([iteration.total_seconds for iteration in timed])
        rows.append(
            [
                head.model,
                head.strategy,
                str(head.p),
                str(head.division.batch),
                str(len(timed)),
                str(head.warmup),
                f"{total * 1e3:.4g}",
                ", ".join(phases),
            ]
        )
    columns = ["model", "strategy", "p", "batch", "timed", "warm-up", "ms", "phases, ms"]
    table("Imported", columns, rows)
    for note in dict.fromkeys(note for run in runs for note in run.header.notes):
        say(f"note: {note}")
    for path in paths:
        say(f"written: {path}")
