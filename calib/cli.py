"""The command line: one file per verb in calib/commands, one line here; errors become one line."""

from __future__ import annotations

import os
import select
import signal
import sys
import traceback
import warnings
from importlib import import_module
from keyword import iskeyword
from types import FrameType
from typing import Annotated, TextIO

import typer
from typer.core import TyperGroup
from typer.exceptions import TyperException

from calib import __version__
from foundation.errors import CalibError, CalibWarning
from foundation.text import plain

VERBS = (
    "doctor", "probe", "plan", "measure", "sparse", "import", "compare", "fit", "show", "check", "diff",
    "parameters", "schema", "export", "predict", "sweep", "search", "model", "replay", "train",
    "import-run", "report", "history", "calibrate", "nightly", "sbatch",
)  # fmt: skip
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
        message: Warning | str, category: type[Warning], filename: str, lineno: int,
        file: TextIO | None = None, line: str | None = None,
    ) -> None:  # fmt: skip
        if not issubclass(category, CalibWarning):
            of_libraries(message, category, filename, lineno, file, line)
            return
        text = plain(" ".join(str(message).split()))
        if text not in told:
            told.add(text)
            from calib.ranks import speaks

            if speaks():
                print(f"calib: warning: {text}", file=sys.stderr, flush=True)

    warnings.simplefilter("always", CalibWarning)
    warnings.showwarning = show


def _terminate(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main() -> None:
    """Run the command line; exits with 0, or with 2 and one line on stderr."""
    signal.signal(signal.SIGTERM, _terminate)
    try:
        status = app(standalone_mode=False, prog_name="calib")
        if status == INTERRUPTED:
            raise KeyboardInterrupt  # which typer made an exit code of
        sys.stdout.flush()
    except TyperException as error:
        _fail(error.format_message())
    except CalibError as error:
        _fail(str(error))
    except (KeyboardInterrupt, typer.Abort):
        from calib.ranks import as_rank

        if as_rank():
            os._exit(INTERRUPTED)  # whoever ended the ranks knows why; one of them does not
        _fail("interrupted")
    except (BrokenPipeError, SystemExit) as end:
        # typer makes an exit of a broken pipe
        if not isinstance(end if isinstance(end, OSError) else end.__context__, BrokenPipeError):
            raise
        if not _drop_unread_output():
            _fail("a process that calib was writing to has ended")
        sys.exit(0)
    except Exception as error:
        # a bug; but where one rank dies alone, the others would wait for it forever
        from calib.ranks import as_rank, fail_rank, words_of

        if not as_rank():
            raise
        traceback.print_exc()
        fail_rank(" ".join(words_of(error).split()))
    sys.exit(status if isinstance(status, int) else 0)


def _drop_unread_output() -> bool:
    """Whether the reader of our output (head, less) has gone; then Python is kept from complaining."""
    dropped = False
    for stream in (sys.stdout, sys.stderr):
        poll = select.poll()
        poll.register(stream.fileno(), select.POLLOUT)
        if any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0)):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
            dropped = True
    return dropped


def _fail(message: str) -> None:
    from calib.ranks import as_rank, fail_rank

    line = " ".join(message.split())
    if as_rank():
        fail_rank(line)
    print(f"calib: error: {plain(line)}", file=sys.stderr)
    sys.exit(USER_ERROR)
