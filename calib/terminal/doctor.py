"""The findings of `calib doctor` as a table, and what it saw while it watched."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import typer

from calib.foundation.statistics import median
from calib.foundation.text import plain
from calib.foundation.words import bytes_words, clock_words, counted, number, percent, seconds_words
from calib.microbench.disturbers import known
from calib.microbench.records.doctor import DoctorFinding
from calib.microbench.records.watched import Watched
from calib.reports.tables.table import Table
from calib.terminal.printing import print_table, table

MOST_ROWS = 8  # of cores and of processes: --json has all
LEAST_SHARE = 0.005


def show(findings: Sequence[DoctorFinding]) -> None:
    """A row for each finding, with its advice."""
    rows = [[f.verdict, f.name, f.found, f.advice] for f in findings]
    table("What this machine can do", ["", "what", "found", "advice"], rows, least=())


def show_watched(watched: Watched) -> None:
    """Who used cores and networks, how the machine was, and a verdict."""
    _cores(watched)
    _processes(watched)
    _interfaces(watched)
    _looks(watched)
    for line in verdict(watched):
        typer.echo(plain(line))


def verdict(watched: Watched) -> list[str]:
    """Quiet, or by what the host is disturbed, and what to do; a line for each disturbance."""
    looks = len(watched.looks)
    words = [
        f"{each.found}, in {each.looks} of {counted(looks, 'look')}; {each.advice}"
        for each in watched.disturbed
    ]
    if watched.quiet:
        seen = f"; for a moment {words[0]}" if words else ""
        return [f"quiet: nothing disturbed for {clock_words(watched.seconds)}{seen}", *words[1:]]
    return [f"disturbed: {line}" for line in words]


def _cores(watched: Watched) -> None:
    busiest = sorted(watched.cores, key=lambda core: (-core.used - core.stolen, core.core))
    rows = [
        [str(core.core), percent(core.used), percent(core.stolen)]
        for core in sorted(busiest[:MOST_ROWS], key=lambda core: core.core)
    ]
    of = "Cores" if len(busiest) <= MOST_ROWS else f"The busiest of {len(busiest)} cores"
    if rows:
        print_table(Table(of, ["core", "used", "stolen"], rows))


def _processes(watched: Watched) -> None:
    rows = [
        [process.name, str(process.pid), percent(process.share)]
        for process in watched.processes[:MOST_ROWS]
        if process.share >= LEAST_SHARE
    ]
    if watched.unseen is not None and watched.unseen >= LEAST_SHARE:
        rows.append(["ended meanwhile, or not visible from here", "", percent(watched.unseen)])
    if rows:
        print_table(Table("Other processes", ["process", "pid", "of a core"], rows))


def _interfaces(watched: Watched) -> None:
    rows = [
        [each.name, f"{bytes_words(each.received)}/s", f"{bytes_words(each.sent)}/s"]
        for each in watched.interfaces
    ]
    if rows:
        print_table(Table("Networks", ["interface", "received", "sent"], rows))


def _whole(value: float) -> str:
    return f"{value:.0f}"


def _rate(value: float) -> str:
    return f"{number(value)} /s"


def _bytes_rate(value: float) -> str:
    return f"{bytes_words(value)}/s"


# number of a look, what it is called, how it is written
LINES: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("others", "busiest core, used by others", percent),
    ("stolen", "cores, taken by the hypervisor", percent),
    ("arithmetic_s", "reference: arithmetic", seconds_words),
    ("memory_s", "reference: copy of memory", seconds_words),
    ("threads_s", "reference: in all threads", seconds_words),
    ("running", "threads that could run, with this one", _whole),
    ("switches", "involuntary context switches", _rate),
    ("faults", "pages read from a disk", _rate),
    ("mhz", "slowest clock in MHz", _whole),
    ("foreign", "network traffic", _bytes_rate),
    ("resent", "packets sent again", _rate),
    ("congested", "pauses and congestion marks", _rate),
    ("gpu_processes", "processes on a GPU", _whole),
)


def _looks(watched: Watched) -> None:
    """The least, the median and the most of each number: how the machine went."""
    rows = []
    for name, what, words in LINES:
        values = known(watched.looks, name)
        if values:
            rows.append([what, words(min(values)), words(median(values)), words(max(values))])
    title = f"{counted(len(watched.looks), 'look')} in {clock_words(watched.seconds)}"
    print_table(Table(title, ["", "least", "median", "most"], rows, least=()))
