"""Validate, show, check, compare and merge parameter files.

Examples: calib parameters validate *.json; calib parameters merge network.json layers.json -o
whole.json
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import typer

from calib.app import VERBS
from calib.fitting.merging.merge import Merged, merge
from calib.fitting.parameters.file import Signed, read_signed
from calib.fitting.parameters.validation import Validity, validity
from calib.foundation.files import destination
from calib.foundation.text import plain
from calib.lazy import LazyGroup, new_app
from calib.options import Json
from calib.terminal.printing import file_of, print_json, say, table

INVALID = 2


class OfParameters(LazyGroup):
    """Also has the verbs that read parameter files and stand alone."""

    verbs: ClassVar[Mapping[str, str]] = {name: VERBS[name] for name in ("show", "check", "diff")}


app = new_app(cls=OfParameters, no_args_is_help=False)


@app.command("validate")
def validate_files(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Parameter files.")],
    as_json: Json = False,
) -> None:
    """Say of every file whether it can be read, each mistake with its place, and what it holds.

    Exit code 0: all can be read (one that was edited by hand, with a warning); 2: one cannot. Example:
    calib parameters validate *.json
    """
    found = [validity(path) for path in files]
    if as_json:
        print_json([{**asdict(each), "valid": each.valid} for each in found])
    else:
        for each in found:
            for line in in_lines(each):
                typer.echo(plain(line))
    if not all(each.valid for each in found):
        raise typer.Exit(INVALID)


@app.command("merge")
def merge_files(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE FILE...", help="Parameter files of one cluster.")
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="OUT", help="Where to write the merged file.")
    ],
    across: Annotated[
        bool,
        typer.Option(
            "--across",
            help="Also of different clusters; the file then says so, and its "
            "cluster is the first's.",
        ),
    ] = False,
    prefer: Annotated[
        Literal["first", "last", "newest"] | None,
        typer.Option(
            help="Whose law is taken where files disagree; newest: measured last. Default: refuse."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Put the laws of several files into one; what differs between them is refused, or chosen.

    Example: calib parameters merge network.json layers.json -o whole.json --prefer newest
    """
    file_of(output, "-o", *files)
    sources = [read_signed(path) for path in files]
    merged = merge(sources, across, prefer)
    merged.parameters.write(destination(output))
    if as_json:
        print_json(as_dict(output, sources, merged))
    else:
        show_counts(sources, merged)
    for note in merged.notes:
        say(f"note: {plain(note)}")
    say(f"written: {output}")


def in_lines(of: Validity) -> list[str]:
    """A line for the file, and one for each of its mistakes."""
    if of.valid:
        seal = "EDITED by hand" if of.signature == "edited" else "signed"
        holds = ", ".join(f"{count} {section}" for section, count in of.holds.items())
        return [
            f"{of.path}: valid, format {of.format_version}, {seal}, "
            f"cluster {of.cluster_name} ({of.cluster_fingerprint}), holds {holds or 'no laws'}"
        ]
    count = len(of.mistakes)
    lines = [f"  {each.place or 'the file'}: {each.message}" for each in of.mistakes]
    return [f"{of.path}: not valid, {count} mistake{'s' if count > 1 else ''}", *lines]


def as_dict(output: Path, sources: Sequence[Signed], merged: Merged) -> dict[str, Any]:
    """For --json: what was taken from which file."""
    return {
        "output": str(output),
        "sha256": merged.parameters.signed()["signature"],
        "files": [
            {
                "path": str(source.path),
                "sha256": source.sha256,
                "edited": source.edited,
                "sections": {section: asdict(each) for section, each in counts.items()},
            }
            for source, counts in zip(sources, merged.counts, strict=True)
        ],
        "notes": merged.notes,
    }


def show_counts(sources: Sequence[Signed], merged: Merged) -> None:
    """One line for each section of each file."""
    rows = [
        [section, plain(str(source.path)), str(each.taken), str(each.same), str(each.passed_over)]
        for source, counts in zip(sources, merged.counts, strict=True)
        for section, each in counts.items()
    ]
    order = list(dict.fromkeys(row[0] for row in rows))
    rows.sort(key=lambda row: order.index(row[0]))
    table("Merged laws", ["section", "file", "taken", "the same", "passed over"], rows)
