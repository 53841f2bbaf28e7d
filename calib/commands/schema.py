"""Print the JSON Schema of a record, with the units of fields.

Examples: calib schema parameters; calib schema --list; calib schema --all -o docs/schemas
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from calib.foundation.errors import FileError, InputError
from calib.foundation.files import destination, ensure_directory, read_bytes, write_whole
from calib.schema import ENTRIES, README, TITLE, all_texts, schema_text
from calib.terminal.printing import file_of, say, table


def command(
    name: Annotated[
        str | None, typer.Argument(help="The record, as --list names it.", show_default=False)
    ] = None,
    list_records: Annotated[
        bool, typer.Option("--list", help="Print all records, with file and meaning.")
    ] = False,
    everything: Annotated[
        bool, typer.Option("--all", help="Write all schemas into the directory of -o.")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="A file to write; with --all, a directory."),
    ] = None,
) -> None:
    if (name is not None) + list_records + everything != 1:
        raise InputError("give the NAME of a record, --list, or --all -o DIR; one of them")
    if list_records and output is not None:
        raise InputError("--list prints a table; -o is for the NAME of a record, or --all")
    if list_records:
        print_records()
    elif everything:
        if output is None:
            raise InputError("--all writes a file for each record; name a directory with -o")
        write_all(all_texts(), output)
        say(f"written: {output}")
    elif name is not None:
        text = schema_text(name)
        if output is None:
            typer.echo(text, nl=False)
            return
        write_whole(destination(file_of(output, "-o")), text)
        say(f"written: {output}")


def print_records() -> None:
    """The table of --list."""
    rows = [[entry.name, entry.file, entry.what] for entry in ENTRIES]
    table("Records that calib schema prints", ["record", "file", "what it is"], rows)


def write_all(texts: dict[str, str], directory: Path) -> None:
    """Write the files, all of them or none. Raises FileError.

    They are staged first, so that a full disk shows before any file changes.
    """
    if os.path.lexists(directory) and not os.path.isdir(directory):
        raise InputError(f"-o {directory} is a file; --all writes several: name a directory")
    ensure_directory(directory)
    readme = directory / README
    if readme.is_file() and not read_bytes(readme, "file").startswith(TITLE.encode()):
        raise InputError(f"-o {directory} has another {README}; choose a directory of its own")
    try:
        with tempfile.TemporaryDirectory(dir=directory, prefix=".schemas.") as staged:
            for file, text in texts.items():
                if os.path.isdir(directory / file):
                    raise FileError(f"cannot write {directory / file}: it is a directory")
                write_whole(Path(staged) / file, text)
            for file in texts:
                write_over(Path(staged) / file, directory / file)
    except OSError as error:
        raise FileError(f"cannot write into {directory}: {error.strerror}") from error


def write_over(staged: Path, place: Path) -> None:
    """Move a staged file to its place; where that is a link, write the file it leads to."""
    if place.is_symlink():  # it may lead to another file system, which rename cannot reach
        write_whole(destination(place), read_bytes(staged, "file"))
    else:
        os.replace(staged, place)
