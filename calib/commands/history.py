"""Print how accuracy went from night to night.

A row per night, steps in words, newest last. `calib report` and `calib nightly` remember every run
directory in calib.db beside it. Example: calib history runs
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from calib.foundation.errors import InputError
from calib.foundation.files import destination, write_whole
from calib.foundation.run_files import HISTORY_FILE
from calib.foundation.text import plain
from calib.foundation.words import counted, percent
from calib.options import MOST, Json
from calib.reports.drift.judge import drift
from calib.reports.drift.records import Drift
from calib.reports.drift.trend import Trend, clock, marks, steps_at, strategies, trend
from calib.reports.history.address import address
from calib.reports.history.reading import MachineNights
from calib.reports.history.records import Past
from calib.reports.history.rows import moment
from calib.reports.history.store import History
from calib.reports.sentences import spread
from calib.reports.writers.history import csv_text, in_json
from calib.reports.writers.openmetrics import openmetrics as metrics
from calib.rundir import RUNS
from calib.terminal.printing import file_of, print_json, say, table

MOST_SENTENCES = 12


def command(
    runs: Annotated[
        Path | None,
        typer.Argument(
            metavar="[RUNS_DIR]", help="Where the run directories are, with calib.db; default runs."
        ),
    ] = None,
    history: Annotated[
        str | None,
        typer.Option(help="Instead: a file, or the URL of a database (postgresql://...)."),
    ] = None,
    nights: Annotated[
        int, typer.Option("--nights", "-n", min=1, max=MOST, help="Show the last so many.")
    ] = 30,
    since: Annotated[str, typer.Option(help="Show nights from this date on (UTC).")] = "",
    until: Annotated[str, typer.Option(help="Show nights to the end of this date (UTC).")] = "",
    machine: Annotated[
        str, typer.Option(help="Of several machines this one; default that of the newest night.")
    ] = "",
    csv: Annotated[
        str | None, typer.Option(metavar="PATH", help="One row a night; - is stdout.")
    ] = None,
    openmetrics: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="The newest night, for Prometheus; - is stdout."),
    ] = None,
    as_json: Json = False,
) -> None:
    if as_json + (csv == "-") + (openmetrics == "-") > 1:
        raise InputError("--json, --csv - and --openmetrics - all write to stdout; choose one")
    if runs is not None and history is not None:
        raise InputError("give a directory of runs or --history, not both")
    where = history or place_of(runs or RUNS)
    with History.open(where, read_only=True) as store:
        machines = store.machines()
        chosen = machine_of(machines, machine, where)
        past = store.past(chosen.machine)
    steps = drift(past)  # of all nights: the older ones are the normal of those that are shown
    shown = within(trend(past), since, until)[-nights:]
    if csv is not None:
        put(csv, "--csv", csv_text(shown, steps))
    if openmetrics is not None:
        put(openmetrics, "--openmetrics", metrics(past, steps))
    if as_json:
        print_json(in_json(past, shown, steps, machines))
    elif "-" not in (csv, openmetrics):
        show(past, shown, steps, chosen)
    others = [f"{each.machine} ({each.cluster_name})" for each in machines if each != chosen]
    if others and not machine:
        say(plain(f"other machines here, for --machine: {', '.join(others)}"))


def place_of(runs: Path) -> str:
    """The history in a directory of runs. Raises InputError that says where it was looked for."""
    try:
        if not runs.is_dir():
            return str(runs)
        if (runs / HISTORY_FILE).exists():
            return str(runs / HISTORY_FILE)
        beside = runs.resolve().parent / HISTORY_FILE
        hint = f"; the one beside it is {beside}" if beside.exists() else ""
    except OSError as error:
        raise InputError(f"cannot look into {runs}: {error.strerror}") from error
    raise InputError(f"{runs} holds no {HISTORY_FILE}, which `calib report` makes{hint}")


def machine_of(machines: list[MachineNights], wanted: str, where: str) -> MachineNights:
    """The machine whose hash begins so, or the first. Raises InputError where there is not one."""
    if not machines:
        raise InputError(f"the history {address(where).label} holds no night yet")
    found = [each for each in machines if each.machine.startswith(wanted)]
    if wanted and len(found) != 1:
        known = ", ".join(f"{each.machine} ({each.cluster_name})" for each in machines)
        which = "several machines" if found else "no machine"
        raise InputError(f"--machine {wanted} names {which} of this history, which has {known}")
    return found[0]


def within(nights: list[Trend], since: str, until: str) -> list[Trend]:
    """Those that began on these days. Raises InputError."""
    start = moment(since, "--since") if since else float("-inf")
    end = moment(until, "--until", end=True) if until else float("inf")
    return [each for each in nights if start <= moment(each.of.started, "started") < end]


def put(path: str, option: str, text: str) -> None:
    """Write to stdout (-) or a file, whole."""
    if path == "-":
        typer.echo(text, nl=False)
        return
    write_whole(destination(file_of(Path(path), option)), text)
    say(f"written: {path}")


def show(past: Past, shown: list[Trend], steps: Drift, machine: MachineNights) -> None:
    """The table of nights, the trend of each strategy, and the steps in words."""
    title = (
        f"{plain(machine.cluster_name)} (machine {plain(machine.machine)}): "
        f"{len(shown)} of {counted(len(past.nights), 'night')}, accuracy in %"
    )
    names = strategies(shown)
    head = [
        "started (UTC)",
        "run",
        "points",
        *map(plain, names),
        "mean of them",
        "worst point",
        "in 95% intervals",
        "disturbed",
        "missing",
        "steps",
    ]
    least = (list(map(plain, names)), ["in 95% intervals"], ["points"], ["missing"], ["disturbed"])
    table(title, head, [_row(night, names, steps) for night in shown], least)
    lines = [
        *((n, [night.strategy_means.get(n) for night in shown]) for n in names),
        ("mean of strategies", [night.mean_of_strategy_means for night in shown]),
    ]
    if names and len(shown) > 1:
        rows = [_line(name, values) for name, values in lines]
        table("Trend, from its lowest to its highest", ["of", "nights", "lowest", "highest"], rows)
    for sentence in steps.words[-MOST_SENTENCES:]:
        typer.echo(plain(sentence))
    older = len(steps.words) - MOST_SENTENCES
    if older > 0:
        say(f"{older} older steps; --json has them all")
    if not steps.steps:
        typer.echo("No step that the noise does not explain.")
    if past.accepted:
        say(f"accepted: {counted(len(past.accepted), 'step')}")
    unscored = [night.of.run for night in shown if night.mean_of_strategy_means is None]
    if unscored:
        words = f"without a point that counts: {', '.join(unscored)}; {percent(None)} in the table"
        say(plain(words))


def _row(night: Trend, names: list[str], steps: Drift) -> list[str]:
    worst = night.worst
    return [
        clock(night.of.started),
        plain(night.of.run),
        f"{night.scored}/{night.of.planned}",
        *(percent(night.strategy_means.get(name)) for name in names),
        percent(night.mean_of_strategy_means),
        plain(f"{percent(worst.accuracy)} {worst.model} {worst.strategy} p={worst.p}")
        if worst
        else "-",
        _intervals_words(night),
        f"{night.disturbed} points" if night.disturbed else "",
        str(len(night.of.missing) or ""),
        _steps_words(night.night, steps),
    ]


def _intervals_words(night: Trend) -> str:
    """`94.0% of +-10.1%`: coverage and mean half-width of the 95% intervals."""
    if night.coverage is None or night.half_width is None:
        return "-"
    return f"{percent(night.coverage)} of {spread(night.half_width)}"


def _steps_words(night: int, steps: Drift) -> str:
    """`1 begins, 2 open`: those that begin, and those before it that are open to this day."""
    begin, still = steps_at(night, steps)
    words = [f"{len(begin)} begins"] if len(begin) == 1 else [f"{len(begin)} begin"]
    return ", ".join((words if begin else []) + ([f"{len(still)} open"] if still else []))


def _line(name: str, values: list[float | None]) -> list[str]:
    known = [value for value in values if value is not None]
    return [plain(name), marks(values), percent(min(known)), percent(max(known))]
