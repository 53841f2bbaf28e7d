"""Predict many points, into a table of one row each.

The points are models x strategies x p x batches. Example: calib sweep --models resnet50,vgg16
--strategies all -p 1:4096 --batch-per-rank 32,64 -o sweep.csv
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Annotated

import typer

from calib.options import (
    Boundaries,
    FormName,
    Grid,
    OptimizerOption,
    OverlapOption,
    ParameterFile,
    Pes,
    SamplesOption,
    ScheduleName,
    SettingsOption,
    Sharded,
    SplitUntil,
    model_list,
)
from calib.predicting.choices import (
    batches,
    check_batches,
    check_layers,
    check_options,
    choices_of,
    numbers,
    variants,
)
from calib.predicting.predictor import crossed, points, predictor_of, something
from calib.predicting.rows import table_of
from calib.process.streams import STREAMS
from calib.rundir import LATEST_PARAMETERS
from calib.terminal.printing import say
from calib.terminal.progress import Bar
from calib.training.models.specs import spec

# points between two updates of the bar
EVERY = 200


def command(
    models: Annotated[str, typer.Option(help="Comma-separated models or model.json files.")],
    strategies: Annotated[str, typer.Option(help="Comma-separated strategies, or all.")] = "all",
    p: Pes = "1:1024",
    batch_per_rank: Annotated[
        str | None, typer.Option(help="Samples per rank, a list as of -p; default by model.")
    ] = None,
    batch_per_node: Annotated[
        str | None, typer.Option(help="Samples per node instead, a list as of -p.")
    ] = None,
    batch: Annotated[
        str | None, typer.Option(help="Global batches instead, a list as of -p.")
    ] = None,
    inner: Annotated[
        str | None, typer.Option(help="p2 of hybrids, a list as of -p; default by the node.")
    ] = None,
    segments: Annotated[
        str | None, typer.Option(help="Micro-batches of a pipeline, a list as of -p; default 4.")
    ] = None,
    schedule: ScheduleName = None,
    boundaries: Boundaries = None,
    grid: Grid = None,
    split_until: SplitUntil = "",
    overlap: OverlapOption = False,
    sharded_optimizer: Sharded = False,
    optimizer: OptimizerOption = "momentum",
    samples: SamplesOption = None,
    form: FormName = "measured",
    settings: SettingsOption = None,
    parameters: ParameterFile = LATEST_PARAMETERS,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="A .csv, .json or .parquet file; default CSV on stdout."
        ),
    ] = None,
) -> None:
    ranks, chosen = numbers(p, "-p"), variants(strategies, overlap, sharded_optimizer)
    lists = [
        numbers(text, option) if text is not None else []
        for option, text in (
            ("--batch-per-rank", batch_per_rank),
            ("--batch-per-node", batch_per_node),
            ("--batch", batch),
        )
    ]
    check_batches(*lists)
    check_options(
        {
            "--inner": inner,
            "--segments": segments,
            "--schedule": schedule,
            "--boundaries": boundaries,
            "--grid": grid,
            "--split-until": split_until,
        },
        chosen,
    )
    choices = choices_of(None, None, schedule, boundaries, grid, split_until)
    inners = numbers(inner, "--inner") if inner is not None else [0]
    laid_out = crossed(chosen, choices, inners, numbers(segments or "4", "--segments"))
    predictor = predictor_of(parameters, settings, choices, form, optimizer, samples)
    sizes = []
    for name in model_list(models):
        model = spec(name)
        check_layers(choices, model)
        sizes.append((model, batches(name, *lists)))
    count = len(ranks) * len(laid_out) * sum(len(scales) for _, scales in sizes)
    with table_of(output) as rows, progress(count) as advance:
        kinds: Counter[str] = Counter()
        for projection in points(predictor, sizes, ranks, laid_out):
            rows.add(projection)
            if output is None and STREAMS.lost:
                return  # nobody reads the rest
            timed = projection.total if projection.feasible else None
            kinds[timed.basis if timed else "cannot run"] += 1
            advance(f"{projection.model} p={projection.p}")
        something(predictor, ",".join(model_list(models)))
    if output is not None:
        what = ", ".join(f"{number} {kind}" for kind, number in kinds.most_common())
        say(f"written: {output}, {count} rows: {what}")


@contextmanager
def progress(count: int) -> Iterator[Advance]:
    """A bar where the table is a file or goes into a pipe; called once a point."""
    with Bar("sweep", count) as bar:
        yield Advance(bar, count)


class Advance:
    """Counts points and moves the bar now and then."""

    def __init__(self, bar: Bar, count: int) -> None:
        self._bar, self._count, self._done, self._start = bar, count, 0, monotonic()

    def __call__(self, label: str) -> None:
        self._done += 1
        if self._done % EVERY == 0:
            left = (monotonic() - self._start) / self._done * (self._count - self._done)
            self._bar.update(self._done, label, left)
