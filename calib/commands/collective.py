"""Say what a collective takes, and whether a log is normal.

Time, algbw and busbw by size, with a 95% interval, on any number of ranks and nodes. With --against the
times of nccl-tests, OSU or Intel MPI Benchmarks stand beside; exit code 1 where one is above its
interval.

Examples: calib collective allreduce -p 128 --nodes 16 --bytes 1M:1G; calib collective all -p 8:64;
calib collective --against tonight.log --parameters parameters.json
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from calib.collective_times import SIZES, Choice, expected_times, times_beside
from calib.fitting.parameters.file import Parameters
from calib.foundation.errors import InputError
from calib.foundation.files import destination, write_whole
from calib.options import MOST, Json, ParameterFile, numbers, size_list, size_ranges, word_list
from calib.oracle.costs.asked import Collectives
from calib.predicting.predictor import parameters_of
from calib.reports.scoring.collectives import CollectiveRow, summary_of
from calib.reports.tables.collective_times import collective_times, notes_on
from calib.rundir import LATEST_PARAMETERS
from calib.terminal.printing import check_targets, print_json, print_table, say

SLOWER = 1  # exit code
MOST_NOTES = 8


def command(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="OPERATION",
            help="allreduce, allgather, ..., comma-separated or each by itself, or all; with --against "
            "default those of the logs. More logs, as a shell's * gives after --against.",
        ),
    ] = None,
    p: Annotated[
        str | None,
        typer.Option("-p", help="ranks: 128, or a list as 2,4 or 8:64; default those of the logs."),
    ] = None,
    nodes: Annotated[
        int | None,
        typer.Option(
            min=1, max=MOST, help="That they are on; default as the machine's nodes fill."
        ),
    ] = None,
    ranks_per_node: Annotated[
        int | None, typer.Option(min=1, max=MOST, help="Of a full node, instead of --nodes.")
    ] = None,
    nbytes: Annotated[
        str | None,
        typer.Option(
            "--bytes",
            help=f"Whole buffers, as 1M:1G (doubles) or 4K,1M; default {SIZES}, or those of the logs. "
            "K, M, G are 1024, as in nccl-tests.",
        ),
    ] = None,
    library: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="Whose times: nccl, mpi, ... [default: as trained, or the log's]"
        ),
    ] = "",
    device: Annotated[
        str,
        typer.Option(
            metavar="KIND",
            help="Where the buffers are, cpu or cuda. [default: the library's usual]",
        ),
    ] = "",
    against: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="LOG",
            help="A log of nccl-tests, OSU, IMB, ...: are its times normal? Repeatable.",
        ),
    ] = None,
    parameters: ParameterFile = LATEST_PARAMETERS,
    csv: Annotated[
        str | None, typer.Option(metavar="PATH", help="One row a size; - is stdout.")
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="OUT.html", help="Write a page with time and busbw drawn."),
    ] = None,
    as_json: Json = False,
) -> None:
    if as_json and csv == "-":
        raise InputError("--json and --csv - both write to stdout; choose one, or a file")
    logs = list(against or [])
    operations: list[str] = []
    for word in words or []:
        if against and is_file_name(word):
            logs.append(Path(word))
        else:
            operations += word_list(word) or ()
    table_file = None if csv in (None, "-") else Path(csv)
    check_targets({"--csv": table_file, "--plot": plot}, parameters, *logs)
    if not logs and not (operations and p):
        raise InputError("name an operation and its ranks, as allreduce -p 8, or a log --against")
    known = parameters_of(parameters, ())
    ranks = numbers(p, "-p")
    if logs:
        choice = Choice(
            operations,
            ranks,
            nodes or 0,
            ranks_per_node or 0,
            size_ranges(nbytes, "--bytes") if nbytes else (),
            library,
            device,
        )
        rows, notes = times_beside(known, logs, choice)
    else:
        asked = Collectives(known, library, device)
        shapes = [asked.shape(each, nodes or 0, ranks_per_node or 0) for each in ranks]
        rows = expected_times(asked, operations, shapes, size_list(nbytes or SIZES, "--bytes"))
        notes = []
    put(rows, notes, known, csv, plot, as_json)
    if logs:
        say(summary_of(rows))
        if any(row.verdict == "slower" for row in rows):
            raise typer.Exit(SLOWER)


def is_file_name(word: str) -> bool:
    """Whether a word after --against is a log's name, there or not: operations have no . or /."""
    return "." in word or "/" in word or Path(word).exists()


def put(
    rows: Sequence[CollectiveRow],
    notes: Sequence[str],
    parameters: Parameters,
    csv: str | None,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Write and print what was asked for."""
    # late: what writes a table or draws a page takes longer to import than the tables to print
    if csv is not None or as_json:
        from calib.reports.writers.collectives import csv_text, in_json
    if csv == "-":
        typer.echo(csv_text(rows), nl=False)
    elif csv is not None:
        write_whole(destination(Path(csv)), csv_text(rows))
        say(f"written: {csv}")
    if plot is not None:
        from calib.reports.page.collective_times import render

        write_whole(destination(plot), render(rows, parameters.provenance))
        say(f"page: {plot}")
    if as_json:
        print_json(in_json(rows, notes))
    elif csv != "-":
        for table in collective_times(rows):
            print_table(table)
        found = [*notes, *notes_on(rows)]
        for note in found[:MOST_NOTES]:
            say(f"note: {note}")
        if len(found) > MOST_NOTES:
            say(f"more notes, in --json: {len(found) - MOST_NOTES}")
