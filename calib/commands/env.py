"""Print what a program must export to run as was calibrated.

A prediction holds for that environment. Example: calib env -n 2; in a shell: eval "$(calib env -n 2)"
"""

from __future__ import annotations

import shlex
from typing import Annotated

import typer

from calib.foundation.environment import THREADS_VARIABLE, Environment
from calib.foundation.errors import InputError
from calib.microbench.machine.environment import environment_here
from calib.microbench.machine.placement import distinct_cores, usable_cores
from calib.options import MOST, Json, ParameterFile
from calib.predicting.predictor import parameters_of
from calib.rundir import LATEST_PARAMETERS
from calib.terminal.printing import print_json, say


def command(
    parameters: ParameterFile = LATEST_PARAMETERS,
    ranks: Annotated[
        int | None,
        typer.Option(
            "--ranks",
            "-n",
            min=1,
            max=MOST,
            help="Ranks on a machine; default the most calibrated.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    known = parameters_of(parameters, None)
    found = known.environment_on(ranks or known.ranks_per_node)
    if not found.ranks:
        raise InputError(f"{parameters} does not say in which environment it was measured")
    if as_json:
        print_json(found.model_dump())
        return
    for line in lines_of(found, known.variables):
        typer.echo(line)
    cores = len(distinct_cores(usable_cores()))
    if cores != found.cores:
        say(f"a rank could run on {found.cores} cores; this shell may use {cores}")


def lines_of(found: Environment, variables: dict[str, str]) -> list[str]:
    """The lines of a shell: what is set, and what is set here but was not there."""
    wanted = {**variables, THREADS_VARIABLE: str(found.threads)}
    here = environment_here(found.ranks, found.threads, found.cores).variables
    return [
        f"# {found.words}",
        *(f"unset {name}" for name in here if name not in wanted),
        *(f"export {name}={shlex.quote(value)}" for name, value in sorted(wanted.items())),
    ]
