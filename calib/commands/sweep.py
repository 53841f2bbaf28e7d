"""Predict many points, into a table of one row each.

The points are models x strategies x p x batches. Example: calib sweep --models resnet50,vgg16
--strategies all -p 1:4096 --batch-per-rank 32,64 -o sweep.csv
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from calib.foundation.garbage import rare_collections
from calib.options import (
    AccumulateList,
    Boundaries,
    Executions,
    FormName,
    Grid,
    OptimizerOption,
    OverlapOption,
    ParameterFile,
    RankCounts,
    SamplesOption,
    ScheduleName,
    SequenceParallel,
    SettingsOption,
    Sharded,
    SplitUntil,
    execution_list,
    model_list,
    numbers,
)
from calib.oracle.costs.machine import Machine
from calib.predicting.choices import batches, check_layers, templates
from calib.predicting.predictor import Predictor, parameters_of
from calib.predicting.rows import table_of
from calib.process.streams import STREAMS
from calib.rundir import LATEST_PARAMETERS
from calib.terminal.printing import file_of, say
from calib.terminal.progress import Bar
from calib.training.models.specs import spec

# points between updates of the bar
EVERY = 200


def command(
    models: Annotated[str, typer.Option(help="Comma-separated models or model.json files.")],
    strategies: Annotated[str, typer.Option(help="Comma-separated strategies, or all.")] = "all",
    p: RankCounts = "1:1024",
    batch_per_rank: Annotated[
        str | None, typer.Option(help="Samples per rank, a list as for -p; default by model.")
    ] = None,
    batch_per_node: Annotated[
        str | None, typer.Option(help="Samples per node instead, a list as for -p.")
    ] = None,
    batch: Annotated[
        str | None, typer.Option(help="Global batches instead, a list as for -p.")
    ] = None,
    inner: Annotated[
        str | None, typer.Option(help="p2 of hybrids, a list as for -p; default by the node.")
    ] = None,
    segments: Annotated[
        str | None, typer.Option(help="Micro-batches of a pipeline, a list as for -p; default 4.")
    ] = None,
    accumulate: AccumulateList = None,
    schedule: ScheduleName = None,
    boundaries: Boundaries = None,
    grid: Grid = None,
    split_until: SplitUntil = "",
    overlap: OverlapOption = False,
    sharded_optimizer: Sharded = False,
    sequence_parallel: SequenceParallel = False,
    optimizer: OptimizerOption = "momentum",
    execution: Executions = None,
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
    chosen = templates(
        strategies,
        inner=numbers(inner, "--inner"),
        segments=numbers(segments, "--segments"),
        accumulation=numbers(accumulate, "--accumulate"),
        schedule=schedule,
        boundaries=boundaries,
        grid=grid,
        split_until=split_until,
        overlap=overlap,
        sharded_optimizer=sharded_optimizer,
        sequence_parallel=sequence_parallel,
    )
    ranks = numbers(p, "-p")
    scales = (
        numbers(batch_per_rank, "--batch-per-rank"),
        numbers(batch_per_node, "--batch-per-node"),
        numbers(batch, "--batch"),
    )
    machine = Machine(parameters_of(parameters, settings))
    predictor = Predictor(machine, form, optimizer, samples)
    names = model_list(models)
    runs = execution_list(execution)
    layers = [spec(name) for name in names]
    sizes = [(of.run_as(x), batches(of, *scales)) for of in layers for x in runs]
    for model, _ in sizes:
        check_layers(chosen[0], model)
    target = file_of(output, "-o", parameters) if output is not None else None
    count = len(ranks) * len(chosen) * sum(len(each) for _, each in sizes)
    kinds: Counter[str] = Counter()
    with rare_collections(), table_of(target) as rows, Bar("sweep", count) as bar:
        for done, projection in enumerate(predictor.points(sizes, ranks, chosen), start=1):
            rows.add(projection)
            if output is None and STREAMS.lost:
                return  # nobody reads the rest
            timed = projection.total if projection.feasible else None
            kinds[timed.basis if timed else "cannot run"] += 1
            if done % EVERY == 0:
                bar.update(done, f"{projection.model} p={projection.p}")
        predictor.require_some(",".join(names))
    if output is not None:
        what = ", ".join(f"{number} {kind}" for kind, number in kinds.most_common())
        say(f"written: {output}, {count} rows: {what}")
