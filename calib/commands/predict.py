"""Predict one training iteration: seconds per phase, total, bytes per PE.

Example: calib predict --model resnet50 --strategy data -p 64 --batch-per-pe 64 --parameters
parameters.json --json
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from calib.options import MOST, BatchPerPe, Json, Output, number_list, print_json, save, say, table
from calib.rundir import LATEST_PARAMETERS
from foundation.errors import InputError

if TYPE_CHECKING:
    from fitting.parameters import Parameters
    from oracle.model import ModelSpec
    from oracle.projection import PhaseTime, Projection


def command(
    model: Annotated[str, typer.Option(help="A registered model or a model.json.")],
    strategy: Annotated[str, typer.Option(help="serial or data.")],
    p: Annotated[str, typer.Option("-p", help="PEs, one number or several as 1,2,4.")] = "1",
    batch_per_pe: BatchPerPe = None,
    batch: Annotated[
        int | None, typer.Option(min=1, max=MOST, help="Global batch instead; p must divide it.")
    ] = None,
    parameters: Annotated[Path, typer.Option(help="parameters.json.")] = LATEST_PARAMETERS,
    output: Output = None,
    as_json: Json = False,
) -> None:
    from fitting.parameters import Parameters
    from training.models.specs import spec

    if batch is not None and batch_per_pe is not None:
        raise InputError("give --batch or --batch-per-pe, not both")
    machine = Parameters.read(parameters)
    model_spec = spec(model)
    projections = [
        predict_one(machine, model_spec, model, strategy, pes, batch_per_pe, batch)
        for pes in number_list(p, "-p")
    ]
    dumps = [projection.model_dump() for projection in projections]
    content = dumps[0] if len(dumps) == 1 else dumps
    save(output, content)
    if as_json:
        print_json(content)
    else:
        show(projections)


def predict_one(
    machine: Parameters,
    model_spec: ModelSpec,
    name: str,
    strategy: str,
    p: int,
    per_pe: int | None,
    batch: int | None,
) -> Projection:
    """One projection; the batch is per PE, or global, or the model's own."""
    from calib.plan import batch_of
    from oracle.project import batch_of_each, project

    each = batch_of_each(batch, p) if batch is not None else batch_of(name, per_pe)
    return project(model_spec, strategy, p, each, machine)


MARKS = {"exact": "", "measured": "", "interpolated": "~", "extrapolated": "!"}


def milliseconds(time: PhaseTime) -> str:
    """ms with its interval and a mark for what was not measured."""
    if time.basis == "exact" and time.seconds == 0:
        return "0"
    return (
        f"{MARKS[time.basis]}{time.seconds * 1e3:.4g} [{time.low * 1e3:.4g}, {time.high * 1e3:.4g}]"
    )


def show(projections: list[Projection]) -> None:
    """Phases down, one column for each p."""
    first = projections[0]
    phases = [*first.phases, "total"]
    rows = [
        [name, *(milliseconds(x.phases.get(name, x.total)) for x in projections)] for name in phases
    ]
    rows.append(["MB per PE", *(f"{x.bytes_per_pe / 1e6:.4g}" for x in projections)])
    columns = ["ms per iteration", *(f"p = {x.p}, {x.batch_per_pe} per PE" for x in projections)]
    table(f"{first.model}, {first.strategy}: predicted, with 95% interval", columns, rows)
    say("~ interpolated, ! extrapolated, no mark: its parts were measured")
    for text in dict.fromkeys(note for x in projections for note in [*x.limits, *x.notes]):
        say(f"note: {text}")
