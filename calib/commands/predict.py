"""Predict an iteration: time, memory, limits, bottlenecks.

Under one strategy, or under all. Examples: calib predict --model resnet50 --strategy all -p 4:1024
--batch-per-rank 64; calib predict --model vgg16 --strategy data -p 64 --explain --set
'communication.intra_node.beta_s_per_byte*=0.5'
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from calib.advice import plan_of
from calib.export.chakra import GROUPS_FILE, check_folder, write_traces
from calib.foundation.division import STRATEGIES, traits_of
from calib.foundation.errors import InputError
from calib.foundation.files import destination, write_whole
from calib.foundation.garbage import rare_collections
from calib.options import (
    MOST,
    AccumulateList,
    BatchPerRank,
    Boundaries,
    Executions,
    FormName,
    GlobalBatch,
    Grid,
    Inner,
    Json,
    OptimizerOption,
    Output,
    OverlapOption,
    ParameterFile,
    RankCounts,
    SamplesOption,
    ScheduleName,
    Segments,
    SequenceParallel,
    SettingsOption,
    Sharded,
    SplitUntil,
    execution_list,
    numbers,
)
from calib.oracle.costs.machine import Machine
from calib.oracle.model.spec import ModelSpec
from calib.oracle.projection import Projection
from calib.oracle.tasks.iteration import tasks_of
from calib.oracle.template import DivisionTemplate
from calib.predicting.choices import batches, check_layers, refuse_two_batches, templates
from calib.predicting.predictor import NOT_PREDICTED, Predictor, parameters_of
from calib.predicting.rows import csv_text
from calib.reports.tables.predictions import legend, like_notes, ranking, scaling, sources, words_of
from calib.reports.tables.table import Table
from calib.rundir import LATEST_PARAMETERS
from calib.terminal.explained import lines
from calib.terminal.printing import check_targets, print_json, print_table, save, say
from calib.training.models.specs import spec

MOST_NOTES = 8
# phases that need no other rank: a plan measures them for any p
COMPUTED = ("forward", "backward", "pack", "update")


def command(
    model: Annotated[str, typer.Option(help="A registered model or a model.json.")],
    strategy: Annotated[str, typer.Option(help=f"all, or a list of: {', '.join(STRATEGIES)}.")],
    p: RankCounts = "1",
    batch_per_rank: BatchPerRank = None,
    batch_per_node: Annotated[
        int | None, typer.Option(min=1, max=MOST, help="Samples per node instead.")
    ] = None,
    batch: GlobalBatch = None,
    inner: Inner = None,
    segments: Segments = None,
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
    library: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="What ranks send by, as torch_gloo. [default: as trained]"
        ),
    ] = "",
    form: FormName = "measured",
    settings: SettingsOption = None,
    parameters: ParameterFile = LATEST_PARAMETERS,
    output: Output = None,
    csv: Annotated[
        str | None, typer.Option(metavar="PATH", help="One row a projection; - is stdout.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="OUT.html", help="Write a page with the phases drawn.")
    ] = None,
    chakra: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Write the iteration as Chakra traces, one a rank, for ASTRA-sim.",
        ),
    ] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Every term: formula, numbers put in, result.")
    ] = False,
    as_json: Json = False,
) -> None:
    if as_json and csv == "-":
        raise InputError("--json and --csv - both write to stdout; choose one, or a file")
    chosen = templates(
        strategy,
        inner=given(inner),
        segments=given(segments),
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
    refuse_two_batches(batch_per_rank, batch_per_node, batch)
    table_file = None if csv in (None, "-") else Path(csv)
    check_targets({"-o": output, "--csv": table_file, "--plot": plot}, parameters)
    if chakra is not None:
        check_folder(chakra)
    known = parameters_of(parameters, settings)
    machine = Machine(known.sent_by(library) if library else known)
    predictor = Predictor(machine, form, optimizer, samples, explain)
    with rare_collections():
        layers = spec(model)
        check_layers(chosen[0], layers)
        scales = batches(layers, given(batch_per_rank), given(batch_per_node), given(batch))
        runs = [(layers.run_as(name), scales) for name in execution_list(execution)]
        found = list(predictor.points(runs, ranks, chosen))
    predictor.require_some(model, found)
    content = [projection.model_dump() for projection in found]
    save(output, content)
    if csv is not None:
        write_csv(found, csv)
    if plot is not None:
        draw(found, chosen, plot)
    if chakra is not None:
        trace(found, runs[0][0], predictor, chakra)
    if as_json:
        print_json(content)
    elif csv != "-":
        show(found, chosen, explain)
        if guessed := [x for x in found if unmeasured(x)]:
            say(f"{plan_of(model, guessed)} plans what was not measured")


def given(option: int | None) -> list[int]:
    """The one number of an option that `calib sweep` takes a list for."""
    return [] if option is None else [option]


def unmeasured(projection: Projection) -> bool:
    """Whether some of what a rank does alone was not measured, so that a plan of the point helps."""
    times = [projection.phases[name] for name in COMPUTED if name in projection.phases]
    return any(time.basis in ("interpolated", "extrapolated") for time in times) or any(
        reason.startswith(NOT_PREDICTED) for reason in projection.limits
    )


def show(found: list[Projection], chosen: Sequence[DivisionTemplate], explain: bool) -> None:
    """Tables, their legend, and what the numbers rest on."""
    for table in tables_of(found, chosen):
        print_table(table)
    if explain:
        for projection in found:
            if projection.total is None:
                continue  # the table has the reasons
            typer.echo(f"{projection.model}, {words_of(projection)}, p = {projection.p}:")
            for line in lines(projection):
                typer.echo(f"  {line}")
            if projection.sources:
                print_table(sources(projection))
            typer.echo()
    if legend(found):
        say(legend(found))
    for words in dict.fromkeys(x.environment.words for x in found if x.total):
        say(f"environment: {words}")
    notes = like_notes(found)
    for note in notes[:MOST_NOTES]:
        say(f"note: {note}")
    if len(notes) > MOST_NOTES:
        say(f"notes on fewer predictions, in --json: {len(notes) - MOST_NOTES} more")


def tables_of(found: list[Projection], chosen: Sequence[DivisionTemplate]) -> list[Table]:
    """One table for a single strategy, else one for each p."""
    if len(chosen) == 1:
        return [scaling(found)]
    return [ranking(group) for group in by_p(found, chosen)]


def by_p(found: list[Projection], chosen: Sequence[DivisionTemplate]) -> list[list[Projection]]:
    """The projections of each p. On one rank every strategy is serial: one is enough.

    On more, serial is left out where all strategies were asked for.
    """
    groups: dict[int, list[Projection]] = {}
    for projection in found:
        groups.setdefault(projection.p, []).append(projection)
    if 1 in groups:
        groups[1] = _one_rank(groups[1])
    if {template.strategy for template in chosen} < set(STRATEGIES):
        return list(groups.values())
    return [
        [x for x in group if p == 1 or traits_of(x.strategy).parallel]
        for p, group in groups.items()
    ]


def _one_rank(found: list[Projection]) -> list[Projection]:
    """Every strategy is serial training there: once for each execution and accumulation."""
    serial = [x for x in found if not traits_of(x.strategy).parallel]
    return serial or found


def write_csv(found: list[Projection], where: str) -> None:
    """Write the tidy table to a file or stdout."""
    if where == "-":
        typer.echo(csv_text(found), nl=False)
        return
    write_whole(destination(Path(where)), csv_text(found))


def draw(found: list[Projection], chosen: Sequence[DivisionTemplate], page: Path) -> None:
    """Write the page of --plot."""
    # late: what draws a page takes longer to import than the tables to print
    from calib.reports.page.predictions import render

    shown = [x for group in by_p(found, chosen) for x in group] if len(chosen) > 1 else found
    write_whole(destination(page), render(shown))
    say(f"page: {page}")


def trace(found: list[Projection], model: ModelSpec, predictor: Predictor, folder: Path) -> None:
    """Write the traces of --chakra. Raises InputError for several iterations, or one without time."""
    if len(found) > 1:
        raise InputError(
            f"--chakra writes one iteration, not {len(found)}: one strategy, p and batch"
        )
    if predictor.form != "measured":
        raise InputError("--chakra writes the measured form; leave out --form")
    (predicted,) = found
    if predicted.total is None:
        raise InputError(f"no iteration for --chakra to write: {predicted.limits[0]}")
    iteration = tasks_of(model, predicted.division, predictor.machine, predictor.optimizer)
    path = write_traces(folder, iteration, predicted, predictor.machine.parameters)
    say(
        f"traces: {path}.0.et and so on; ASTRA-sim takes --workload-configuration={path} "
        f"--comm-group-configuration={path.parent / GROUPS_FILE}"
    )
