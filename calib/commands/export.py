"""Write a parameter file in the format of other tools.

It says which error that makes. Exit code 2 where a target that --to names is not written, alone or
beside others, or where a file or an option is refused. all names none: it writes those that the
parameters are enough for, and says why not of the rest.

Examples: calib export runs/latest/parameters.json --to simgrid -o platform.xml; calib export --list;
calib export parameters.json --to calculon --ranks 2:64 --bytes 64KiB:1GiB -o system.json
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from textwrap import fill, wrap
from typing import Annotated, Any

import typer

from calib.export import TARGETS, target_named
from calib.export.about import notes, ranks_in_words, times_in_words
from calib.export.exporting import (
    Done,
    Refused,
    check_options,
    export_one,
    export_several,
    inputs_of,
    request_of,
    to_stream,
)
from calib.export.target import Collapse, Target
from calib.foundation.errors import InputError
from calib.foundation.words import bytes_words
from calib.options import MOST, Json
from calib.reports.tables.table import LEAST_TEXT, width_of
from calib.terminal.printing import print_json, say, table

ALL = "all"
NOT_WRITTEN = 2  # exit code
LIST_WIDTH = 84
TITLE = "What became fewer numbers, and the error this makes"
COLUMNS = [
    "of the parameters",
    "written",
    "off by",
    "at worst",
    "there",
    "basis",
    "oracle's 95% (times)",
    "in the file",
    "ranks",
    "sizes",
]
LEAST = (["there"], ["ranks"], ["sizes"], ["in the file"], ["oracle's 95% (times)"])


def command(
    parameters: Annotated[
        Path | None, typer.Argument(help="A parameter file, as `calib fit` makes it.")
    ] = None,
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            help="The tool, or several as a,b into a directory; --list names them; "
            "all: each that there is enough for.",
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The file, or directory, to write.")
    ] = None,
    ranks: Annotated[
        str | None,
        typer.Option(
            help="p that the numbers must hold for, as 2,4 or 4:64; default those measured."
        ),
    ] = None,
    nbytes: Annotated[
        str | None,
        typer.Option(
            "--bytes",
            help="Whole buffers that they must hold for, as 64KiB:64MiB; default those measured.",
        ),
    ] = None,
    nodes: Annotated[
        int | None, typer.Option(min=1, max=MOST, help="Nodes of the tool's machine.")
    ] = None,
    cluster: Annotated[
        Path | None,
        typer.Option(
            help="A cluster.json for the machine's shape; default the one beside the file."
        ),
    ] = None,
    library: Annotated[
        str | None, typer.Option(help="Whose times, where several libraries were measured.")
    ] = None,
    execution: Annotated[
        str | None,
        typer.Option(
            help="Whose layers and passes, where several executions were measured; default float32."
        ),
    ] = None,
    topology: Annotated[
        str | None, typer.Option(help="Of simgrid: flat, fat-tree or dragonfly.")
    ] = None,
    calls: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Of simgrid: raw MPI calls of platform-calibration, for its MPI factors.",
        ),
    ] = None,
    list_targets: Annotated[
        bool, typer.Option("--list", help="Print the tools, what each receives and what it loses.")
    ] = False,
    as_json: Json = False,
) -> None:
    if list_targets:
        print_targets([target_named(name) for name in TARGETS], as_json)
        return
    if parameters is None or to is None or output is None:
        raise InputError(
            "export needs a parameter file, --to TARGET and -o PATH; `calib export --list` names the "
            "targets"
        )
    given: dict[str, Any] = {
        "ranks": ranks,
        "nbytes": nbytes,
        "nodes": nodes,
        "cluster": cluster,
        "topology": topology,
        "calls": calls,
        "execution": execution,
    }
    named = [name.strip().lower() for name in to.split(",")]
    names = TARGETS if ALL in named else tuple(dict.fromkeys(named))
    chosen = [target_named(name) for name in names]
    check_options(chosen, given)
    request = request_of(parameters, library=library, **given)
    inputs = inputs_of(parameters, cluster, calls)
    if len(chosen) == 1:
        done = export_one(chosen[0], request, output, inputs)
        # a file that goes to stdout has it for itself
        with redirect_stdout(sys.stderr) if to_stream(output) else nullcontext():
            if as_json:
                print_json(done.as_dict())
            else:
                show(done)
        return
    options = any(value is not None for value in given.values())
    every, refused = export_several(chosen, request, output, inputs, options)
    if as_json:
        print_json(
            [
                *(done.as_dict() for done in every),
                *({"target": of.name, "files": [], "error": of.why} for of in refused),
            ]
        )
    else:
        show_several(every, refused)
    if any(of.name in named or not of.unfed for of in refused):
        raise typer.Exit(NOT_WRITTEN)


def show(done: Done) -> None:
    """What the numbers hold for, what became of them, and what is left out."""
    if done.exported.library:
        say(f"times of {done.exported.library}")
    for line in done.exported.holds_for:
        say(f"holds for: {line}")
    print_errors([("", collapse) for collapse in done.exported.collapses])
    for line in done.exported.lost:
        say(f"lost: {line}")
    for line in notes(done.request, done.exported):
        say(f"note: {line}")
    say(f"written: {', '.join(map(str, done.files))}")


def show_several(done: list[Done], refused: list[Refused]) -> None:
    """One table over all targets, then what to know of each; the side files have the rest."""
    print_errors([(of.target.NAME, found) for of in done for found in of.exported.collapses])
    said: dict[str, list[str]] = {}  # note -> targets
    for of in done:
        for note in notes(of.request, of.exported):
            said.setdefault(note, []).append(of.target.NAME)
    for of in done:
        more = f", and {len(of.files) - 1} more" * (len(of.files) > 1)
        say(f"{of.target.NAME}: {of.files[0]}{more}")
        _say_notes([note for note, names in said.items() if names == [of.target.NAME]])
    if shared := [note for note, names in said.items() if len(names) > 1]:
        say("of several:")
        _say_notes([f"{note} ({', '.join(said[note])})" for note in shared])
    for each in refused:
        say(f"{each.name}: not written: {each.why}")
    say("each side file (*.about.json) says what its file holds for, and what was lost")


def _say_notes(notes: Sequence[str]) -> None:
    for note in notes:
        say(
            fill(
                note,
                max(LEAST_TEXT, width_of(sys.stderr)),
                initial_indent="  - ",
                subsequent_indent="    ",
                break_on_hyphens=False,
                break_long_words=False,
            )
        )


def print_errors(found: Sequence[tuple[str, Collapse]]) -> None:
    """Each (target or "", collapse) in a row of a table."""
    if not found:
        return
    names = ["target"] * any(name for name, _ in found)
    rows = [[*[name] * len(names), *_row(collapse)] for name, collapse in found]
    table(TITLE, [*names, *COLUMNS], rows, LEAST)


def _row(collapse: Collapse) -> list[str]:
    return [
        collapse.what,
        collapse.written,
        f"{collapse.mean_error:.1%}",
        f"{collapse.worst_error:.1%}",
        f"{bytes_words(collapse.worst_nbytes)}, p={collapse.worst_ranks}",
        collapse.basis,
        times_in_words(collapse).removesuffix(" times"),
        collapse.into,
        ranks_in_words(collapse.ranks),
        " to ".join(map(bytes_words, dict.fromkeys(collapse.nbytes))),
    ]


def print_targets(targets: list[Target], as_json: bool) -> None:
    """The targets side by side."""
    if as_json:
        keys = ("name", "filename", "directory", "receives", "loses", "needs")
        print_json([{key: getattr(t, key.upper()) for key in keys} for t in targets])
        return
    for each in targets:
        typer.echo(f"{each.NAME} ({each.FILENAME}{'/' * each.DIRECTORY})")
        for key in ("receives", "loses", "needs"):
            lines = wrap(getattr(each, key.upper()), LIST_WIDTH)
            typer.echo(f"  {key:10}" + f"\n{'':12}".join(lines))
