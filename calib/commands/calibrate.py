"""Run the whole way, from doctor and probe to train and report.

Everything goes to one run directory. Examples: calib calibrate --quick, or inside a Slurm allocation:
calib calibrate --launcher slurm -n 8
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from calib.calibrate import calibrate
from calib.driver.ranks import as_rank
from calib.foundation.errors import InputError, MeasurementError
from calib.options import (
    BatchPerRank,
    Budget,
    DeviceOption,
    Executions,
    Json,
    Launcher,
    Libraries,
    Models,
    RanksOption,
    VariablesOption,
    execution_list,
    model_list,
    share_of,
    variables_of,
    word_list,
)
from calib.planning.request import FULL, QUICK, seconds_of
from calib.terminal.printing import print_json


def command(
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Run directory; default runs/<date>-<cluster>."),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="About 2 minutes, wider errors.")] = False,
    models: Models = None,
    strategies: Annotated[
        str | None, typer.Option(help="Comma-separated; default serial,data.")
    ] = None,
    batch_per_rank: BatchPerRank = None,
    ranks: RanksOption = None,
    device: DeviceOption = None,
    launcher: Launcher = "local",
    env: VariablesOption = None,
    budget: Budget = None,
    precision: Annotated[
        str | None,
        typer.Option(
            help="Stop measuring once every predicted iteration is known to so much, as 3%."
        ),
    ] = None,
    execution: Executions = None,
    libraries: Libraries = None,
    iterations: Annotated[
        int | None, typer.Option(min=6, help="Of each training launch; default 30, quick 20.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the cluster; default the host.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Shuffles cases and makes data.")] = 0,
    as_json: Json = False,
) -> None:
    if as_rank():
        raise InputError(
            "calibrate starts the ranks itself; run it without mpiexec, with --ranks and --launcher"
        )
    effort = QUICK if quick else FULL
    within = share_of(precision, "--precision")
    seconds = seconds_of(budget, "--budget") if budget else effort.budget_s
    effort = replace(
        effort,
        budget_s=seconds,
        launches=effort.launches if within is None else effort.rounds_of(seconds),
        iterations=iterations or effort.iterations,
    )
    result = calibrate(
        output,
        effort,
        model_list(models),
        batch_per_rank,
        ranks,
        launcher,
        name,
        seed,
        device,
        libraries=word_list(libraries),
        executions=execution_list(execution),
        variables=variables_of(env),
        quiet=as_json,
        strategies=word_list(strategies),
        precision=within,
    )
    if as_json:
        print_json(result)
    if result["failed"]:
        names = ", ".join(result["failed"])
        raise MeasurementError(f"the rest is done, but these trainings failed: {names}")
