"""The verbs of the command line: one file each in calib/commands, one line here."""

from __future__ import annotations

import sys
import warnings
from importlib import import_module
from keyword import iskeyword
from typing import Annotated, TextIO

import typer
from typer.core import TyperGroup
from typer.exceptions import TyperException
from typer.main import get_command

from calib import __version__
from calib.foundation.errors import CalibWarning, InputError, MachineError
from calib.foundation.text import plain
from calib.process.streams import STREAMS

VERBS = (
    "doctor",
    "probe",
    "plan",
    "measure",
    "sparse",
    "import",
    "compare",
    "fit",
    "show",
    "check",
    "diff",
    "parameters",
    "schema",
    "export",
    "predict",
    "sweep",
    "search",
    "model",
    "replay",
    "train",
    "import-run",
    "report",
    "history",
    "calibrate",
    "nightly",
    "sbatch",
)
USER_ERROR = 2
INTERRUPTED = 130


class InOrder(TyperGroup):
    """Lists the verbs in their order: typer puts those that have verbs of their own last."""

    def list_commands(self, ctx: object) -> list[str]:
        """Names of the verbs."""
        return list(VERBS)


app = typer.Typer(
    name="calib",
    cls=InOrder,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
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


for _verb in VERBS:
    # a verb that is a keyword of Python has a module with an underscore after it (PEP 8)
    _name = _verb.replace("-", "_") + "_" * iskeyword(_verb)
    _module = import_module(f"calib.commands.{_name}")
    if hasattr(_module, "app"):  # verbs of its own
        app.add_typer(_module.app, name=_verb, help=_module.__doc__)
    else:
        app.command(_verb, help=_module.__doc__)(_module.command)


def _warn_in_one_line() -> None:
    """Print a warning of ours as one line, once; those of libraries as ever."""
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
            from calib.driver.ranks import speaks

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
    """The verbs with their options, built anew: half a second."""
    group = get_command(app)
    assert isinstance(group, TyperGroup)
    return group


def starts_ranks(group: TyperGroup, verb: str) -> bool:
    """Whether a verb starts ranks, and so measures: one with an option --launcher."""
    return any(option.name == "launcher" for option in group.commands[verb].params)
