"""Check the calibration, train the points of a plan, report, remember, and say whether all is well.

Exits with 0 where it is, 1 where the accuracy is too low or something has drifted, 2 where it could not
run. Example: calib nightly --calibration runs/latest, from cron; docs/nightly.md has more.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from calib.commands.train import MAX_SEED
from calib.foundation.errors import CalibError, FileError, InputError
from calib.microbench.timing.watchdog import HANG_SECONDS
from calib.options import MOST, Json, Launcher
from calib.rundir import REPORT_HTML, RUNS
from calib.terminal.printing import print_json, say, table

if TYPE_CHECKING:
    from calib.night.options import Begun, Options
    from calib.reports.findings import Findings
    from calib.scoring.findings import Report

NOT_RUN = 2


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
    from calib.driver.ranks import as_rank

    if as_rank():
        raise InputError(
            "nightly starts the ranks itself; run it without mpiexec, with --ranks and --launcher"
        )
    if accept is not None:
        _accept(calibration, history, accept, night, since, baseline, as_json)
        return
    if night:
        raise InputError("--night goes with --accept")
    from calib.night.options import Options
    from calib.planning.request import seconds_of
    from calib.training_runs.options import share_of

    least = share_of(least_accuracy, "--least-accuracy")
    assert least is not None
    budget_s = None if check_budget is None else seconds_of(check_budget, "--check-budget")
    options = Options(
        calibration, plan, output, iterations, budget_s, ranks, launcher, seed, hang_seconds, name
    )

    def work() -> int:
        from calib.night.ahead import look_ahead

        look_ahead(options, history, since, baseline, say)
        return hold(options, history, since, baseline, least, as_json)

    if code := coded(work):
        raise typer.Exit(code)


def coded(work: Callable[[], int]) -> int:
    """The exit code of a night, also where it ends otherwise than it should.

    Raises FileError for what the system does not write. Of a bug of ours, Python's own code would be 1,
    which says that something has drifted; typer's of a signal would be 130, without a word.
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


def hold(
    options: Options,
    history: str | None,
    since: str,
    baseline: str,
    least_accuracy: float,
    as_json: bool = False,
) -> int:
    """A whole night, from the doctor to the verdict; returns the exit code."""
    from calib.night.directory import night_of

    with night_of(options) as begun:
        try:
            return _held(begun, options, history, since, baseline, least_accuracy, as_json)
        except KeyboardInterrupt:
            say(f"interrupted; `calib report {begun.run}` reports what is there")
            return NOT_RUN


def _held(
    begun: Begun,
    options: Options,
    history: str | None,
    since: str,
    baseline: str,
    least_accuracy: float,
    as_json: bool,
) -> int:
    """What follows on its beginning."""
    from calib.microbench.records.manifest import utc_now
    from calib.night.steps import measured, report_first

    announce(begun)
    whole = measured(begun, options, say)
    with report_first():
        if whole:
            begun.night = begun.night.model_copy(update={"finished": utc_now()})
            begun.night.write(begun.run)
        made, kept = report_on(begun, history, since, baseline, least_accuracy)
        try:
            made.write(begun.run / REPORT_HTML)
        except FileError as error:  # a full disk: what was found is shown all the same
            say(f"no page: {error}")
            kept = False
        findings = made.findings
        code = code_of(findings, whole and kept)
        if as_json:
            print_json(as_content(begun, findings, whole, code))
        else:
            show(begun, findings, whole)
    return code


def code_of(findings: Findings, done: bool) -> int:
    """The exit code, that of the page: what is wrong stays so where not all was `done`."""
    of = findings.verdict.code if findings.verdict else NOT_RUN
    return of if done else of or NOT_RUN


def report_on(
    begun: Begun, history: str | None, since: str, baseline: str, least_accuracy: float
) -> tuple[Report, bool]:
    """The report of the night, and whether it is remembered.

    A night took minutes: where its history cannot be reached, it is reported without one.
    """
    from calib.scoring.findings import report_of

    try:
        made = report_of(
            [begun.run], history, since=since, baseline=baseline, least_accuracy=least_accuracy
        )
    except CalibError as error:
        made = report_of([begun.run], record=False, least_accuracy=least_accuracy)
        other = " --history ..." if history is not None else ""
        say(f"not remembered: {error}; `calib report {begun.run}{other}` does it later")
        return made, False
    return made, made.findings.past is not None  # why there is none, a note says


def announce(begun: Begun) -> None:
    """What the night is, and what is to be known before it begins."""
    from calib.night.machine import version_changes
    from calib.reports.words import plain

    say(
        f"night {begun.run}: {len(begun.missing())} points of {begun.settled.iterations} iterations, "
        f"with the parameters of {begun.night.calibration}"
    )
    for line in begun.said:
        say(f"note: {plain(line)}")
    if changes := version_changes(begun.calibrated_on, begun.cluster):
        say(f"versions since the calibration: {plain(', '.join(changes))}")


def show(begun: Begun, findings: Findings, whole: bool) -> None:
    """The short report, as a mail has it: check, accuracy, verdict with what is missing."""
    from calib.night.table import CHECK_COLUMNS, check_rows
    from calib.reports.sentences import VERDICTS, summary_lines
    from calib.reports.words import plain

    if begun.night.checks:
        table("Check of the calibration", CHECK_COLUMNS, check_rows(begun.night.checks))
    for line in summary_lines(findings.summary):
        typer.echo(line)
    for line in findings.notes:
        typer.echo(f"note: {plain(line)}")
    if (begun.run / REPORT_HTML).exists():
        typer.echo(f"page: {begun.run / REPORT_HTML}")
    if not whole:
        typer.echo(
            f"stopped before its end; `calib nightly -o {begun.run}` goes on with what is missing"
        )
    if findings.verdict:
        typer.echo(f"Verdict: {VERDICTS[findings.verdict.code]}:")
        for line in findings.verdict.lines:
            typer.echo(f"- {plain(line)}")


def as_content(begun: Begun, findings: Findings, whole: bool, code: int) -> dict[str, Any]:
    """What --json prints."""
    from calib.reports.writers.plain import as_dict

    return {
        "run": str(begun.run),
        "code": code,
        "whole": whole,
        "night": begun.night.model_dump(),
        **as_dict(findings),
    }


def _accept(
    calibration: Path,
    history: str | None,
    reason: str,
    night: str,
    since: str,
    baseline: str,
    as_json: bool,
) -> None:
    """Accept steps and say which."""
    from calib.night.accept import accept
    from calib.reports.words import plain

    accepted = accept(calibration, history, reason, night, since, baseline)
    if as_json:
        print_json([acceptance.model_dump() for acceptance in accepted])
        return
    for each in accepted:
        typer.echo(plain(f"accepted: {each.series} from night {each.night} on: {each.reason}"))
