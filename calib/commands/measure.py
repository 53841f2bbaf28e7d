"""Time collectives, layers, updates and packing.

It goes on where an earlier call stopped. Alone it starts the ranks itself; under a launcher it is one
of them. Examples: calib measure -o runs/mine --models vgg16-mini --budget 10m, or: calib measure -o
runs/mine --plan plan.toml
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from calib.driver.defaults import default_device, default_ranks
from calib.driver.measure import measure, measure_as_rank, planned
from calib.driver.ranks import as_rank, driven
from calib.foundation.errors import InputError
from calib.microbench.records.manifest import Manifest
from calib.microbench.timing.watchdog import HANG_SECONDS
from calib.options import (
    BatchPerRank,
    Budget,
    DeviceOption,
    Executions,
    HangSeconds,
    Json,
    Launcher,
    Models,
    Quick,
    RanksOption,
    Seed,
    VariablesOption,
    execution_list,
    model_list,
    numbers,
    variables_of,
)
from calib.planning.request import FULL, QUICK, Request, request_of, seconds_of
from calib.terminal.measured import show
from calib.terminal.printing import print_json


def command(
    output: Annotated[Path, typer.Option("--output", "-o", help="The run directory.")],
    plan: Annotated[
        Path | None, typer.Option(help="A plan.toml of `calib plan`, instead of --models etc.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the plan of the run directory.")
    ] = False,
    models: Models = None,
    batch_per_rank: BatchPerRank = None,
    p: Annotated[
        str | None, typer.Option("-p", help="ranks to measure for, as 1,2; default 1 and --ranks.")
    ] = None,
    ranks: RanksOption = None,
    device: DeviceOption = None,
    execution: Executions = None,
    launcher: Launcher = "local",
    env: VariablesOption = None,
    budget: Budget = None,
    seed: Seed = None,
    quick: Quick = False,
    hang_seconds: HangSeconds = HANG_SECONDS,
    launch: Annotated[int | None, typer.Option(hidden=True)] = None,
    again: Annotated[str, typer.Option(hidden=True)] = "",
    as_json: Json = False,
) -> None:
    flags = {
        "--models": models,
        "--batch-per-rank": batch_per_rank,
        "-p": p,
        "--device": device,
        "--execution": execution,
        "--env": env,
        "--seed": seed,
        "--quick": quick or None,
    }
    overrides = {"--budget": budget, "--ranks": ranks}
    if resume:
        refuse("--resume", {"--plan": plan, **flags, **overrides}, "the plan of the run directory")
    elif plan is not None:
        refuse("--plan", flags, f"{plan}")

    def request(started: int | None = None) -> Request:
        """What is asked for; `started` ranks by a person's own launcher are the default of p."""
        budget_s = None if budget is None else seconds_of(budget, "--budget")
        if plan is not None:
            changes = {"budget_s": budget_s, "ranks": ranks}
            given = {name: value for name, value in changes.items() if value is not None}
            return Request.read(plan).model_copy(update=given)
        kind = device or default_device()
        sizes = [started] if started else sorted({1, ranks or default_ranks(launcher, kind)})
        return request_of(
            QUICK if quick else FULL,
            models=tuple(model_list(models)),
            p=tuple(numbers(p, "-p") if p else sizes),
            ranks=ranks or started,
            device=kind,
            executions=execution_list(execution),
            variables=variables_of(env),
            batch_per_rank=batch_per_rank,
            budget_s=budget_s,
            seed=seed,
        )

    if as_rank():
        measure_as_rank(output, launch, None if resume or driven() else request, again)
        return
    rows = measure(
        output, planned(output, None if resume else request(), launcher), launcher, hang_seconds
    )
    if as_json:
        print_json({"run": str(output), "rows": rows, **Manifest.read(output).model_dump()})
    else:
        show(output, rows)


def refuse(option: str, others: dict[str, Any], source: str) -> None:
    """Raise InputError for options that cannot be beside `option`, which takes all from `source`."""
    given = [name for name, value in others.items() if value is not None]
    if given:
        raise InputError(f"{option} goes by {source}; leave out {', '.join(given)}")
