"""The verbs of the command line: one module each in calib/commands, one line here."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping
from typing import Annotated, ClassVar, TextIO

import typer
from typer.core import TyperGroup
from typer.exceptions import TyperException
from typer.main import get_command

from calib import __version__
from calib.driver.ranks import speaks
from calib.foundation.errors import CalibWarning, InputError, MachineError
from calib.foundation.text import plain
from calib.lazy import LazyGroup, new_app
from calib.process.streams import STREAMS

# verb -> the first line of its module's docstring
VERBS = {
    "doctor": "Say what this machine can do and what will spoil its numbers.",
    "probe": "Write cluster.json: hosts, devices, levels, links, versions.",
    "plan": "List what measuring would time, for how long and what for.",
    "measure": "Time collectives, layers, updates and packing.",
    "cluster": "Find which device, node or link of a cluster is slow.",
    "import": "Import logs of nccl-tests, OSU, IMB and NCCL's profilers.",
    "compare": "Compare two runs of one plan, median by median.",
    "fit": "Fit parameters.json from the samples of runs.",
    "show": "Show a parameter file as tables, and how sure each number is.",
    "check": "Check a parameter file: what is thin, noisy, stale, and why.",
    "diff": "Say what changed between two parameter files, largest first.",
    "parameters": "Validate, show, check, compare and merge parameter files.",
    "schema": "Print the JSON Schema of a record, with the units of fields.",
    "export": "Write a parameter file in the format of other tools.",
    "env": "Print what a program must export to run as was calibrated.",
    "explain": "Say where the time of a training run went, from its traces.",
    "collective": "Say what a collective takes, and whether a log is normal.",
    "predict": "Predict an iteration: time, memory, limits, bottlenecks.",
    "sweep": "Predict many points, into a table of one row each.",
    "search": "Search a plan per layer, stage or variable.",
    "model": "List models, show one's layers, or trace your own module.",
    "replay": "Predict published runs from others of the same machine.",
    "train": "Train for some iterations and write the time of each phase.",
    "import-run": "Import iteration times or profiler traces of other training.",
    "report": "Hold training runs against their predictions: tables, a page.",
    "history": "Print how accuracy went from night to night.",
    "calibrate": "Run the whole way, from doctor and probe to train and report.",
    "nightly": "Check, train, score, record: is all as it was calibrated?",
    "sbatch": "Write a Slurm script that runs another verb on whole nodes.",
    "kube": "Write a Kubernetes MPIJob that runs another verb.",
}
USER_ERROR = 2
INTERRUPTED = 130


class Verbs(LazyGroup):
    """The verbs of calib."""

    verbs: ClassVar[Mapping[str, str]] = VERBS


app = new_app(
    name="calib",
    cls=Verbs,
    help="Measure a machine, fit its parameters, predict training, and check the prediction. "
    "Start with `calib calibrate`, which runs all the verbs in order.",
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"calib {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _options(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    context.with_resource(warnings.catch_warnings())
    _warn_in_one_line()
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(USER_ERROR)
    assert isinstance(context.command, TyperGroup)
    STREAMS.may_close = not starts_ranks(context.command, context.invoked_subcommand)


def _warn_in_one_line() -> None:
    """Print a warning of ours once, as one line; those of libraries as usual."""
    told: set[str] = set()
    of_libraries = warnings.showwarning

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if not issubclass(category, CalibWarning):
            of_libraries(message, category, filename, lineno, file, line)
            return
        text = plain(" ".join(str(message).split()))
        if text not in told:
            told.add(text)
            if speaks():
                print(f"calib: warning: {text}", file=sys.stderr, flush=True)

    warnings.simplefilter("always", CalibWarning)
    warnings.showwarning = show


def run() -> int:
    """Run the verb in sys.argv; returns its exit code. Raises CalibError and KeyboardInterrupt."""
    try:
        status = app(standalone_mode=False, prog_name="calib")
    except TyperException as error:
        raise InputError(error.format_message()) from error
    except typer.Abort:
        raise KeyboardInterrupt from None
    except (
        SystemExit
    ) as end:  # which typer makes of a broken pipe: not of stdout, which raises nothing
        if isinstance(end.__context__, BrokenPipeError):
            raise MachineError("a process that calib was writing to has ended") from end
        raise
    if status == INTERRUPTED:
        raise KeyboardInterrupt  # which typer made an exit code of
    return status if isinstance(status, int) else 0


def built() -> TyperGroup:
    """The verbs; looking one up imports its module."""
    group = get_command(app)
    assert isinstance(group, TyperGroup)
    return group


def starts_ranks(group: TyperGroup, verb: str) -> bool:
    """Whether a verb starts ranks, and so measures: one with an option --launcher."""
    return any(option.name == "launcher" for option in group.commands[verb].params)
