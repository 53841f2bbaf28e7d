"""Fit parameters.json from the samples of runs.

The runs are of one cluster. Example: calib fit runs/latest -o parameters.json
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from calib.fitting.fit import fit_runs
from calib.foundation.files import destination
from calib.foundation.run_files import PARAMETERS_FILE
from calib.options import Json, Output
from calib.terminal.fit import show
from calib.terminal.printing import print_json, say


def command(
    runs: Annotated[
        list[Path], typer.Argument(help="Run directories of `calib measure` or `calib import`.")
    ],
    output: Output = None,
    as_json: Json = False,
) -> None:
    parameters = fit_runs(runs)
    path = destination(output) if output else runs[0] / PARAMETERS_FILE
    parameters.write(path)
    if as_json:
        print_json(parameters.signed())
    else:
        show(parameters)
        say(f"written: {path}")
