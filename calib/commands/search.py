"""Search a plan per layer, stage or variable.

On calibrated parameters, or in the papers' own forms. Spaces: layerwise (OptCNN), sbp (AutoDDL),
pipeline (PipeDream, GPipe), exchange (P3), variables (Parallax); `calib search --list` has their
methods, options and models. Examples: calib search --model vgg16 --space layerwise --cluster 1x4
--batch-per-rank 32 --nominal p100; calib search --model vgg16-mini --space pipeline -o plan.json, which
`calib train --plan plan.json` runs
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from time import monotonic
from typing import Annotated, Any

import typer

from calib.foundation.errors import FileError, InputError
from calib.foundation.execution import USUAL, execution_of
from calib.foundation.files import destination, write_whole
from calib.options import (
    MOST,
    BatchPerRank,
    ExecutionOption,
    FormName,
    Json,
    OptimizerOption,
    Output,
    ParameterFile,
    SettingsOption,
    bytes_of,
)
from calib.oracle.costs.machine import Machine
from calib.oracle.model.spec import ModelSpec
from calib.oracle.what_if.changes import apply
from calib.predicting.predictor import parameters_of
from calib.reports.tables.plan import lines, tables
from calib.rundir import LATEST_PARAMETERS
from calib.search import SPACES, search, space_named
from calib.search.nominal import NOMINAL
from calib.search.nominal import nominal as nominal_parameters
from calib.search.plan import SearchedPlan
from calib.search.request import Budget, Devices, Space
from calib.terminal.printing import check_targets, print_json, print_table, say
from calib.terminal.progress import Bar
from calib.training.models import model_names
from calib.training.models.specs import entry_of, spec

DEFAULT_SECONDS = 60.0
PARTS = 1000  # of the progress bar
BAR_AFTER_S = 1.0


def command(
    model: Annotated[
        str, typer.Option(help="A registered model, a model.json, or one of the space's own.")
    ] = "",
    space: Annotated[
        str, typer.Option(help="layerwise, sbp, pipeline, exchange or variables.")
    ] = "layerwise",
    method: Annotated[str, typer.Option(help="Of the space; default its first.")] = "",
    cluster: Annotated[
        str | None,
        typer.Option(
            metavar="NxD", help="Nodes x devices per node; default those of the parameters."
        ),
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Of a device, as 16GiB; 0 is no limit; default that of the parameters.",
        ),
    ] = None,
    batch: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=MOST,
            help="Global mini-batch B; of a profile what it is of, where its layers do not tell.",
        ),
    ] = None,
    batch_per_rank: BatchPerRank = None,
    budget: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="The most that the search may take; default 60."),
    ] = None,
    evaluations: Annotated[
        int | None, typer.Option(help="The most plans that it may look at.")
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option("--option", "-O", metavar="NAME=VALUE", help="Of the space; repeatable."),
    ] = None,
    optimizer: OptimizerOption = "momentum",
    execution: ExecutionOption = USUAL,
    seed: Annotated[int, typer.Option(min=0, max=MOST, help="Of random starts.")] = 0,
    form: FormName = "measured",
    settings: SettingsOption = None,
    parameters: ParameterFile = LATEST_PARAMETERS,
    nominal: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="A paper's machine from data sheets instead of "
            "parameters: p100, v100, a100, piz-daint, titan-xp.",
        ),
    ] = None,
    output: Output = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="OUT.html", help="Write a page with pictures.")
    ] = None,
    what_there_is: Annotated[
        bool, typer.Option("--list", help="Print spaces, methods, options and models.")
    ] = False,
    as_json: Json = False,
) -> None:
    if what_there_is:
        show_spaces(as_json)
        return
    chosen = space_named(space)
    if not model:
        raise InputError("give a --model; `calib search --list` has those that there are")
    spent = Budget(DEFAULT_SECONDS if budget is None else budget, evaluations)
    machine = machine_of(parameters, nominal, settings)
    devices = devices_of(machine, cluster, memory)
    found = run_as(model_of(chosen, model), execution)
    samples = batch_of(found, devices.p, batch, batch_per_rank)
    check_targets({"-o": output, "--plot": plot}, parameters)
    with Watched(f"search {model}", as_json) as progress:
        plan = search(
            found,
            devices,
            machine,
            space,
            method,
            spent,
            batch=samples,
            options=options_of(option or []),
            form=form,
            optimizer=optimizer,
            seed=seed,
            progress=progress,
            given=cluster is not None,
        )
    if output is not None:
        plan.write(destination(output))
    if plot is not None:
        # late: what draws a page takes longer to import than the search itself
        from calib.reports.page.plan import render

        write_whole(destination(plot), render(plan))
        say(f"page: {plot}")
    if as_json:
        print_json([plan.model_dump()])
    else:
        show(plan)
    if output is not None:
        say(f"written: {output}")


class Watched(ExitStack):
    """The progress of a search: a bar once it takes longer than BAR_AFTER_S; none with --json."""

    def __init__(self, title: str, quiet: bool) -> None:
        super().__init__()
        self._title, self._quiet, self._start = title, quiet, monotonic()
        self._bar: Bar | None = None

    def __call__(self, what: str, share: float) -> None:
        """`what` is being done, and `share` of it all is done."""
        spent = monotonic() - self._start
        if self._quiet or spent < BAR_AFTER_S:
            return
        if self._bar is None:
            self._bar = self.enter_context(Bar(self._title, PARTS))
        left = spent * (1.0 / share - 1.0) if share > 0 else 0.0
        self._bar.update(round(PARTS * share), what, left)


def machine_of(path: Path, nominal: str | None, settings: list[str] | None) -> Machine:
    """The machine of a parameter file or of a data sheet. Raises InputError or FileError."""
    if nominal is not None:
        return Machine(apply(nominal_parameters(nominal), settings or ()))
    return Machine(parameters_of(path, settings, " or --nominal NAME"))


def devices_of(machine: Machine, cluster: str | None, memory: str | None) -> Devices:
    """Nodes, devices per node, and the memory of each device. Raises InputError."""
    of = machine.parameters
    nodes, each = of.nodes or 1, of.ranks_per_node
    if cluster is not None:
        words = cluster.lower().split("x")
        if len(words) != 2 or not all(w.isascii() and w.isdecimal() and len(w) < 8 for w in words):
            raise InputError(f"--cluster {cluster!r} is not nodes x devices per node, as 4x8")
        nodes, each = map(int, words)
    room = of.device_memory_bytes if memory is None else bytes_of(memory, "--memory")
    return Devices(nodes, each, room)


def options_of(words: list[str]) -> dict[str, str]:
    """The name=value of each -O. Raises InputError."""
    found: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not (name and equals and value):
            raise InputError(f"--option {word!r} is not NAME=VALUE")
        if name in found:
            raise InputError(f"--option {name} is given twice")
        found[name] = value
    return found


def model_of(space: Space, name: str) -> Any:
    """One of the space's own models, else a registered one or a file. Raises InputError."""
    own = space.model_of(name)
    if own is not None:
        return own
    try:
        return spec(name)
    except InputError as error:
        if space.models and not isinstance(error, FileError) and name not in model_names():
            raise InputError(f"{error}; of {space.name}: {', '.join(space.models)}") from error
        raise


def run_as(found: Any, execution: str) -> Any:
    """The model in an execution. Raises InputError for one whose layers are not known."""
    name = execution_of(execution).name
    if isinstance(found, ModelSpec):
        return found.run_as(name)
    if name != USUAL:
        raise InputError(f"--execution {name} is of models whose layers are known")
    return found


def batch_of(found: Any, p: int, batch: int | None, batch_per_rank: int | None) -> int | None:
    """The global batch B: --batch, or p times --batch-per-rank or the model's own.

    None where the search decides: for the space's own models, and those that nobody trains.
    """
    if batch is not None and batch_per_rank is not None:
        raise InputError("give --batch or --batch-per-rank, not both")
    if batch is not None:
        return batch
    trained = entry_of(found) if isinstance(found, ModelSpec) else None
    each = batch_per_rank or (trained.batch_per_rank if trained else None)
    return each and p * each


def show(plan: SearchedPlan) -> None:
    """Print tables, then lines on time, memory, the search and its certificate."""
    for table in tables(plan):
        print_table(table)
    for line in lines(plan):
        typer.echo(line)
    for note in plan.notes:
        say(f"note: {note}")


def show_spaces(as_json: bool) -> None:
    """Print every space with its methods, options and models."""
    spaces = [space_named(name) for name in SPACES]
    if as_json:
        listed = [
            {
                "name": of.name,
                "about": of.about,
                "methods": dict(of.methods),
                "options": dict(of.options),
                "models": list(of.models),
            }
            for of in spaces
        ]
        machines = {name: of.about for name, of in NOMINAL.items()}
        print_json({"spaces": listed, "nominal": machines})
        return
    for space in spaces:
        typer.echo(f"{space.name}: {space.about}")
        for what, names in (("method", space.methods), ("option", space.options)):
            for name, about in names.items():
                typer.echo(f"  {what} {name}: {about}")
        if space.models:
            typer.echo(f"  models beside those of calib: {', '.join(space.models)}")
    for name, of in NOMINAL.items():
        typer.echo(f"nominal {name}: {of.about}")
