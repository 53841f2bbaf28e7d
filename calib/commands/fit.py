"""Fit parameters.json from the samples of one or several runs of one cluster.

Example: calib fit runs/latest -o parameters.json
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from calib.options import Json, Output, print_json, say, table
from calib.rundir import PARAMETERS_FILE

if TYPE_CHECKING:
    from fitting.parameters import Parameters


def command(
    runs: Annotated[list[Path], typer.Argument(help="Run directories of `calib measure`.")],
    output: Output = None,
    as_json: Json = False,
) -> None:
    from fitting.fit import fit_runs

    parameters = fit_runs(runs)
    path = output or runs[0] / PARAMETERS_FILE
    parameters.write(path)
    if as_json:
        print_json(parameters.model_dump())
    else:
        show(parameters)
        say(f"written: {path}")


def show(parameters: Parameters) -> None:
    """alpha and beta of every collective, and how many of the rest there are."""
    rows = [
        [
            f"{fit.operation} ({fit.library}, {fit.level}, p={fit.ranks})",
            f"{fit.alpha_s.value * 1e6:.2f} [{fit.alpha_s.low * 1e6:.2f}, "
            f"{fit.alpha_s.high * 1e6:.2f}]",
            f"{fit.beta_s_per_byte.value * 1e9:.4f} [{fit.beta_s_per_byte.low * 1e9:.4f}, "
            f"{fit.beta_s_per_byte.high * 1e9:.4f}]",
            f"{fit.mean_relative_error:.1%}",
            f"{(fit.interpolation_error_factor - 1):.1%}",
        ]
        for fit in parameters.collectives
    ]
    columns = [
        "operation",
        "alpha us",
        "beta ns/B",
        "line off by (mean)",
        "interpolation off by (95%)",
    ]
    if rows:
        table("Collectives: one message, 95% interval", columns, rows)
    else:
        say("no collective was measured (it takes 2 ranks with a core each)")
    say(
        f"{len(parameters.layers)} layer times, {len(parameters.work)} work models, "
        f"{len(parameters.tensor_loops)} tensor loops, {len(parameters.composition)} composition "
        f"laws on {parameters.device}"
    )
    for note in parameters.provenance.notes:
        say(f"note: {note}")
