"""Say where the time of a training run went, from its traces.

Traces are those of torch.profiler, one file for each rank. What was trained, what its steps took, which
rank was waited for, which collectives and operators took how long. With --model and --parameters also
what the step should have taken, and where the difference is. Of execution traces (Chakra, PyTorch's
observer) it says what they send. Exit code 1 where something is wrong with
the run. Examples: calib explain rank*.json.gz; calib explain rank*.json.gz --model vgg16-mini
--parameters runs/latest/parameters.json
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from calib.foundation.division import Division
from calib.foundation.errors import FileError, InputError
from calib.foundation.execution import USUAL
from calib.foundation.files import destination, write_whole
from calib.importing.trainings import is_trace
from calib.options import (
    BatchPerRank,
    ExecutionOption,
    GlobalBatch,
    Inner,
    Json,
    OptimizerOption,
    ParameterFile,
)
from calib.oracle.costs.asked import Collectives
from calib.oracle.costs.machine import Machine
from calib.predicting.choices import refuse_two_batches, templates
from calib.predicting.predictor import parameters_of
from calib.reports.explained.execution_trace import sent_by
from calib.reports.explained.explanation import Explanation, explain, overlapped
from calib.reports.explained.timeline import chrome_trace, predicted_events, traced_events
from calib.reports.tables.explained import explained_tables, sent_table
from calib.reports.tables.traced_run import configuration_lines, traced_tables
from calib.rundir import LATEST_PARAMETERS
from calib.terminal.printing import check_targets, print_json, print_table, save, say
from calib.training.importers.execution_traces.reading import (
    groups_beside,
    is_execution_trace,
    read_execution_trace,
)
from calib.training.models.specs import spec
from calib.training.traces.rank import RankTrace
from calib.training.traces.run import TracedRun, read_ranks, traced_run

FAULTS = 1  # exit code


def command(
    traces: Annotated[
        list[Path],
        typer.Argument(help="The traces of a run's ranks: JSON of torch.profiler, or .gz."),
    ],
    model: Annotated[
        str | None,
        typer.Option(
            help="What was trained: a registered model or a model.json. Predicts its step."
        ),
    ] = None,
    parameters: ParameterFile = LATEST_PARAMETERS,
    strategy: Annotated[
        str | None, typer.Option(help="To be predicted; default what the traces show.")
    ] = None,
    overlap: Annotated[
        bool | None,
        typer.Option("--overlap/--no-overlap", help="Data: of the exchange; default as traced."),
    ] = None,
    batch_per_rank: BatchPerRank = None,
    batch: GlobalBatch = None,
    inner: Inner = None,
    optimizer: OptimizerOption = "momentum",
    execution: ExecutionOption = USUAL,
    plot: Annotated[Path | None, typer.Option(help="A page with pictures to write.")] = None,
    timeline: Annotated[
        Path | None, typer.Option(help="One step, traced and predicted, as a trace for Perfetto.")
    ] = None,
    as_json: Json = False,
) -> None:
    if all(is_execution_trace(path) for path in traces):
        show_sent(traces, parameters, as_json)
        return
    check_targets({"--plot": plot, "--timeline": timeline}, parameters, *traces)
    ranks = read_ranks(given(traces))
    run = traced_run(ranks)
    found: Explanation | None = None
    if model is not None:
        layers = spec(model).run_as(execution)
        refuse_two_batches(batch_per_rank, None, batch)
        machine = Machine(parameters_of(parameters, None))
        name = strategy or run.configuration.strategy
        if not name:
            raise InputError(f"give --strategy: {run.configuration.strategy_reason}")
        (template,) = templates(
            name,
            inner=[inner] if inner else [],
            overlap=name == "data" and (overlapped(run) if overlap is None else overlap),
        )
        p, node = run.configuration.ranks, machine.parameters.ranks_per_node
        asked = template.division(p, p, node, layers)
        whole = batch or (batch_per_rank * p if batch_per_rank else traced_batch(run, asked))
        division = template.division(p, whole, node, layers)
        found = explain(run, layers, division, machine, optimizer)
    if plot or timeline:
        write_pictures(run, found, ranks, plot, timeline)
    if as_json:
        print_json({"run": run.model_dump()} if found is None else found.model_dump())
    else:
        show(run, found)
    if run.faults:
        raise typer.Exit(FAULTS)


def show_sent(paths: list[Path], parameters: Path, as_json: bool) -> None:
    """What execution traces send, and what the calibrated machine, where there is one, takes."""
    known = parameters != LATEST_PARAMETERS or parameters.exists()
    asked = Collectives(parameters_of(parameters, None)) if known else None
    found = [
        sent_by(read_execution_trace(path, groups_beside(path)), asked, len(paths))
        for path in paths
    ]
    if as_json:
        print_json([one.model_dump() for one in found])
        return
    for path, one in zip(paths, found, strict=True):
        typer.echo(f"{path.name}:")
        print_table(sent_table(one))


def write_pictures(
    run: TracedRun,
    found: Explanation | None,
    ranks: Sequence[RankTrace],
    plot: Path | None,
    timeline: Path | None,
) -> None:
    """The page of --plot and the trace of --timeline."""
    # late: what draws a page takes longer to import than the tables to print
    from calib.reports.page.explained import render

    events = [*traced_events(ranks), *(predicted_events(found.predicted) if found else ())]
    if plot is not None:
        write_whole(destination(plot), render(run, found, events))
        say(f"page: {plot}")
    save(timeline, chrome_trace(events))


def given(paths: list[Path]) -> list[Path]:
    """The traces that were named. Raises InputError, FileError for what is none."""
    if len({path.resolve() for path in paths}) < len(paths):
        raise InputError("the same file is given twice")
    other = [path for path in paths if not is_trace(path)]
    if other:
        raise FileError(f"{other[0]} is no trace of torch.profiler")
    return paths


def traced_batch(run: TracedRun, division: Division) -> int:
    """The global batch of the traces, by the samples of a rank. Raises InputError where unknown."""
    of = run.configuration
    if of.batch_per_rank is None:
        raise InputError(
            "the traces do not say the batch (they have no shapes): give --batch or --batch-per-rank"
        )
    return of.batch_per_rank * of.micro_batches * division.replicas


def show(run: TracedRun, found: Explanation | None) -> None:
    """What it was, what is asked otherwise, what is wrong with it, then the tables."""
    for line in configuration_lines(run.configuration):
        typer.echo(line)
    for line in found.differs if found else ():
        typer.echo(f"differs: {line}")
    typer.echo()
    for fault in run.faults:
        typer.echo(f"{fault.kind}: {fault.says}")
    if run.faults:
        typer.echo()
    for table in [*(explained_tables(found) if found else ()), *traced_tables(run)]:
        print_table(table)
    for note in [*run.notes, *(found.predicted.notes if found else ())]:
        say(f"note: {note}")
