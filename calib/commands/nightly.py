"""Check, train, score, record: is all as it was calibrated?

It checks the calibration, trains the points of a plan, and compares the report with earlier nights.
Exits with 0 where all is well, 1 where it is not (accuracy, intervals, drift, another speed of the
machine), 2 where it could not run, 3 where the machine was disturbed while it trained and all is well at
the speed that it had when it was calibrated. Example: calib nightly --calibration runs/latest, from
cron; docs/nightly.md has more.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from calib.driver.ranks import as_rank
from calib.foundation.errors import CalibError, FileError, InputError
from calib.foundation.text import plain
from calib.microbench.timing.watchdog import HANG_SECONDS
from calib.night.history import accept, look_ahead
from calib.night.hold import NOT_RUN, hold
from calib.night.options import Judging, NightOptions
from calib.options import MOST, Json, Launcher, share_of
from calib.planning.request import seconds_of
from calib.rundir import RUNS
from calib.terminal.printing import print_json, say
from calib.training_runs.options import MAX_SEED


def command(
    calibration: Annotated[
        Path, typer.Option(help="The run directory whose parameters are used.")
    ] = RUNS / "latest",
    plan: Annotated[
        Path | None,
        typer.Option(
            help="A plan.toml of `calib plan`, whose points are trained; default serial "
            "and data of the calibration."
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="The night's directory, or an unfinished one to go on "
            "with; default <date>-<cluster>-night beside the calibration.",
        ),
    ] = None,
    iterations: Annotated[
        int | None, typer.Option(min=6, max=MOST, help="Of each training; default 30.")
    ] = None,
    check_budget: Annotated[
        str | None, typer.Option(help="Time for the check of the calibration; default 60s.")
    ] = None,
    ranks: Annotated[
        int | None,
        typer.Option(
            "--ranks", "-n", min=1, help="Most ranks of a training; default as calibrated."
        ),
    ] = None,
    launcher: Launcher = "local",
    name: Annotated[
        str | None, typer.Option(help="Name of the cluster; default as calibrated.")
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(min=0, max=MAX_SEED, help="Shuffles cases and makes data; default 0."),
    ] = None,
    hang_seconds: Annotated[
        float | None,
        typer.Option(
            min=1.0,
            max=3600.0,
            help="Give ranks up that make no progress for so long, ten times as long before "
            f"their first step; default {HANG_SECONDS:g}.",
        ),
    ] = None,
    least_accuracy: Annotated[
        str, typer.Option(help="Exit with 1 where a strategy's mean is below.")
    ] = "80%",
    history: Annotated[
        str | None,
        typer.Option(
            help="A file or a database's URL; default calib.db beside the night, with "
            "--accept beside the calibration."
        ),
    ] = None,
    since: Annotated[str, typer.Option(help="Steps from this date on count, as 2026-11-01.")] = "",
    baseline: Annotated[
        str, typer.Option(help="Nights that are the normal, as 2026-10-01..2026-10-31.")
    ] = "",
    accept: Annotated[
        str | None,
        typer.Option(metavar="REASON", help="Run nothing: accept the open steps, with a reason."),
    ] = None,
    night: Annotated[
        str, typer.Option(help="With --accept: only the steps of this night, by id or date.")
    ] = "",
    as_json: Json = False,
) -> None:
    if as_rank():
        raise InputError(
            "nightly starts the ranks itself; run it without mpiexec, with --ranks and --launcher"
        )
    least = share_of(least_accuracy, "--least-accuracy")
    assert least is not None
    judging = Judging(history, since, baseline, least)
    if accept is not None:
        _accept(calibration, judging, accept, night, as_json)
        return
    if night:
        raise InputError("--night goes with --accept")
    budget_s = None if check_budget is None else seconds_of(check_budget, "--check-budget")
    options = NightOptions(
        calibration, plan, output, iterations, budget_s, ranks, launcher, seed, hang_seconds, name
    )

    def work() -> int:
        look_ahead(options, judging)
        return hold(options, judging, as_json)

    if code := coded(work):
        raise typer.Exit(code)


def coded(work: Callable[[], int]) -> int:
    """The exit code of a night, also where it fails.

    Raises FileError where the system cannot write. Python's own code for a bug would be 1, which means
    that something has drifted; typer's for a signal would be 130, without a word.
    """
    try:
        return work()
    except KeyboardInterrupt:
        say("interrupted")
        return NOT_RUN
    except (CalibError, BrokenPipeError):
        raise
    except OSError as error:
        where = error.filename or "what the night found"
        raise FileError(f"cannot write {where}: {error.strerror}") from error
    except Exception:
        traceback.print_exc()
        return NOT_RUN


def _accept(calibration: Path, judging: Judging, reason: str, night: str, as_json: bool) -> None:
    """Accept steps and say which."""
    accepted = accept(calibration, judging, reason, night)
    if as_json:
        print_json([acceptance.model_dump() for acceptance in accepted])
        return
    for each in accepted:
        typer.echo(plain(f"accepted: {each.series} from night {each.night} on: {each.reason}"))
