"""Write a parameter file in the format of another tool, with the error that this makes.

Examples: calib export runs/latest/parameters.json --to simgrid -o platform.xml; calib export --list;
calib export parameters.json --to calculon --ranks 2:64 --bytes 64KiB:1GiB -o system.json
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import nullcontext, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from shutil import get_terminal_size
from textwrap import wrap
from typing import TYPE_CHECKING, Annotated, Any

import typer

from calib.options import MOST, Json, print_json, say, table
from foundation.errors import InputError, MissingParameter

if TYPE_CHECKING:
    from calib.export.target import Collapse, Exported, Request, Target

ALL = "all"
LIST_WIDTH = 84
TABLE_WIDTH = 150  # of the table of errors: in fewer columns it breaks words
TITLE = "What became fewer numbers, and the error this makes"
COLUMNS = [
    "of the parameters",
    "in the file",
    "ranks",
    "sizes",
    "basis",
    "oracle's 95%",
    "off by",
    "at worst",
    "there",
]


@dataclass(frozen=True)
class Done:
    """A target that was written, the side file last."""

    target: Target
    request: Request
    exported: Exported
    files: list[Path]

    def as_dict(self) -> dict[str, Any]:
        """The side file's content with the paths, for --json."""
        from calib.export.about import about

        content = about(self.target.NAME, self.request, self.exported)
        return {"files": [str(path) for path in self.files], **content}


def command(
    parameters: Annotated[
        Path | None, typer.Argument(help="A parameter file, as `calib fit` makes it.")
    ] = None,
    to: Annotated[
        str | None, typer.Option("--to", help="The tool; --list names them; all: into a directory.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The file, or directory, to write.")
    ] = None,
    ranks: Annotated[
        str | None,
        typer.Option(help="p that the numbers must hold for, as 2,4 or 4:64; default those measured."),
    ] = None,
    nbytes: Annotated[
        str | None,
        typer.Option("--bytes", help="Whole buffers that they must hold for, as 64KiB:64MiB; "
                     "default those measured."),
    ] = None,
    nodes: Annotated[
        int | None, typer.Option(min=1, max=MOST, help="Nodes of the tool's machine.")
    ] = None,
    cluster: Annotated[
        Path | None,
        typer.Option(help="A cluster.json for the machine's shape; default the one beside the file."),
    ] = None,
    library: Annotated[
        str | None, typer.Option(help="Whose times, where several libraries were measured.")
    ] = None,
    topology: Annotated[
        str | None, typer.Option(help="Of simgrid: flat, fat-tree or dragonfly.")
    ] = None,
    calls: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Of simgrid: raw MPI calls of platform-calibration, for "
                     "its MPI factors."),
    ] = None,
    list_targets: Annotated[
        bool, typer.Option("--list", help="Print the tools, what each receives and what it loses.")
    ] = False,
    as_json: Json = False,
) -> None:  # fmt: skip
    from calib.export import TARGETS, target_named
    from calib.exporting import check_options, inputs_of, request_of, to_stream

    if list_targets:
        print_targets([target_named(name) for name in TARGETS], as_json)
        return
    if parameters is None or to is None or output is None:
        raise InputError(
            "export needs a parameter file, --to TARGET and -o PATH; `calib export --list` names the "
            "targets"
        )
    given = {"ranks": ranks, "nbytes": nbytes, "nodes": nodes, "cluster": cluster,
             "topology": topology, "calls": calls}  # fmt: skip
    chosen = [] if to == ALL else [target_named(to)]
    for target in chosen:
        check_options(target, given)
    request = request_of(parameters, ranks, nbytes, nodes, cluster, library, topology, calls)
    inputs = inputs_of(parameters, cluster, calls)
    if to != ALL:
        done = export_one(chosen[0], request, output, inputs)
        # a file that goes to stdout has it for itself
        with redirect_stdout(sys.stderr) if to_stream(output) else nullcontext():
            if as_json:
                print_json(done.as_dict())
            else:
                show(done)
        return
    every, refused = export_all(request, output, inputs)
    if as_json:
        print_json([
            *(done.as_dict() for done in every),
            *({"target": name, "files": [], "error": why} for name, why in refused.items()),
        ])  # fmt: skip
    else:
        show_all(every, refused)


def export_one(target: Target, asked: Request, output: Path, inputs: list[Path]) -> Done:
    """Write the files. Raises InputError, MissingParameter or FileError."""
    from calib.exporting import understood, write

    request = understood(target, asked)
    exported = target.export(request)
    return Done(target, request, exported, write(target, request, exported, output, inputs))


def export_all(
    request: Request, output: Path, inputs: list[Path]
) -> tuple[list[Done], dict[str, str]]:
    """Every target that the file has enough for, into a directory; why the others have not."""
    from calib.export import TARGETS, target_named

    done, refused = [], {}
    for name in TARGETS:
        target = target_named(name)
        try:
            done.append(export_one(target, request, output / target.FILENAME, inputs))
        except (MissingParameter, InputError) as error:
            before = os.path.exists(output / target.FILENAME)
            old = f" ({output / target.FILENAME} is of an earlier export)" * before
            refused[name] = f"{error}{old}"
    if not done:
        raise InputError("no target could be written from these parameters")
    return done, refused


def show(done: Done) -> None:
    """What the numbers hold for, what became of them, and what is left out."""
    from calib.export.about import notes

    if done.exported.library:
        say(f"times of {done.exported.library}")
    for line in done.exported.holds_for:
        say(f"holds for: {line}")
    print_errors([("", collapse) for collapse in done.exported.collapses], terminal_width())
    for line in done.exported.lost:
        say(f"lost: {line}")
    for line in notes(done.request, done.exported):
        say(f"note: {line}")
    say(f"written: {', '.join(map(str, done.files))}")


def show_all(done: list[Done], refused: dict[str, str]) -> None:
    """One table over all targets; what holds for each, is lost and noted is in the side files."""
    found = [(of.target.NAME, collapse) for of in done for collapse in of.exported.collapses]
    print_errors(found, terminal_width())
    for of in done:
        say(
            f"{of.target.NAME}: {of.files[0]}{f', and {len(of.files) - 1} more' * (len(of.files) > 1)}"
        )
    for name, why in refused.items():
        say(f"{name}: not written: {why}")
    say(
        "each side file (*.about.json) says what its file holds for, what was lost, and what to know"
    )


def terminal_width() -> int:
    """Columns of the terminal; where stdout is none, as many as a table needs."""
    return get_terminal_size().columns if sys.stdout.isatty() else TABLE_WIDTH


def print_errors(found: Sequence[tuple[str, Collapse]], width: int) -> None:
    """Each (target or "", collapse) in a row of a table, or in words where that is too wide."""
    from calib.export.about import in_words

    if width < TABLE_WIDTH and found:
        typer.echo(TITLE)
        for name, collapse in found:
            text = f"- {f'{name}: ' if name else ''}{in_words(collapse)}"
            typer.echo("\n".join(wrap(text, width, subsequent_indent="  ")))
    elif found:
        names = ["target"] * any(name for name, _ in found)
        rows = [[*[name] * len(names), *_row(collapse)] for name, collapse in found]
        table(TITLE, [*names, *COLUMNS], rows)


def _row(collapse: Collapse) -> list[str]:
    from calib.export.about import ranks_in_words, times_in_words
    from reports.words import bytes_words

    return [
        collapse.what, collapse.into, ranks_in_words(collapse.ranks),
        " to ".join(map(bytes_words, dict.fromkeys(collapse.nbytes))), collapse.basis,
        times_in_words(collapse),
        f"{collapse.mean_error:.1%}", f"{collapse.worst_error:.1%}",
        f"{bytes_words(collapse.worst_nbytes)}, p={collapse.worst_ranks}",
    ]  # fmt: skip


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
