"""Import logs of nccl-tests, OSU, IMB and NCCL's profilers.

Also of rccl-tests, and tables of sizes and times. It makes a run directory for `calib fit`. Example:
calib import logs/ -o runs/theirs, then calib fit runs/theirs
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from calib import __version__
from calib.foundation.errors import InputError
from calib.importing.logs import Found, read_all
from calib.microbench.importers.machine import cluster_of, refuse_existing, write_run
from calib.microbench.importers.nccl.forced import ALGORITHMS, PROTOCOLS, named
from calib.microbench.importers.nccl.operations import KINDS, PROGRAMS
from calib.microbench.importers.plain.header import SIZE_UNITS, TIME_UNITS
from calib.microbench.importers.said import Flags
from calib.microbench.importers.table import Block
from calib.microbench.records.cluster import Cluster
from calib.microbench.records.manifest import ImportedFile
from calib.options import MOST, Json
from calib.terminal.printing import print_json, say, table


def command(
    files: Annotated[list[Path], typer.Argument(help="Logs, or directories of them.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Run directory to make.")],
    operation: Annotated[
        str | None, typer.Option(help="Where a file does not say it: allreduce, all_to_all, ...")
    ] = None,
    ranks: Annotated[
        int | None, typer.Option(min=1, max=MOST, help="Where a file does not say them.")
    ] = None,
    nodes: Annotated[
        int | None, typer.Option(min=1, max=MOST, help="Where a file does not say them.")
    ] = None,
    device_name: Annotated[
        str | None, typer.Option(help="The GPU, where a file does not say it.")
    ] = None,
    library: Annotated[
        str | None, typer.Option(help="What to call the library; default mpi or nccl.")
    ] = None,
    algorithm: Annotated[
        str | None, typer.Option(help="What NCCL_ALGO was set to: ring, tree, ...")
    ] = None,
    protocol: Annotated[
        str | None, typer.Option(help="What NCCL_PROTO was set to: ll, ll128 or simple.")
    ] = None,
    size_unit: Annotated[
        str | None, typer.Option(help="Of a table that does not say it: B, KiB, MiB, kB, MB, ...")
    ] = None,
    time_unit: Annotated[
        str | None, typer.Option(help="Of a table that does not say it: ns, us, ms or s.")
    ] = None,
    cluster: Annotated[
        Path | None, typer.Option(help="A cluster.json to use as it is, of `calib probe`.")
    ] = None,
    name: Annotated[str, typer.Option(help="Name of the cluster.")] = "imported",
    keep_going: Annotated[
        bool, typer.Option("--keep-going", help="Leave out files that give no row.")
    ] = False,
    as_json: Json = False,
) -> None:
    refuse_existing(output)
    known = Cluster.read(cluster) if cluster else None
    flags = Flags(
        _operation(operation),
        ranks or 0,
        nodes or 0,
        device_name or "",
        _word(library, "--library"),
        _forced(algorithm, "--algorithm", ALGORITHMS),
        _forced(protocol, "--protocol", PROTOCOLS),
        _unit(size_unit, "--size-unit", SIZE_UNITS),
        _unit(time_unit, "--time-unit", TIME_UNITS),
    )
    found = read_all(files, flags, keep_going)
    of = [imported for _, imported in found]
    machine = known or cluster_of(of, name, flags.device_name)
    records = [record for record, _ in found]
    unnamed = sum(not imported.gpus for imported in of)
    if unnamed and len(of) > 1 and known is None:
        say(
            f"note: {unnamed} of {len(of)} files do not name their machine: all are taken as of one; "
            "import each machine by itself"
        )
    write_run(output, records, of, machine, __version__)
    if as_json:
        print_json(as_dict(found, output))
    else:
        show(found)
        say(f"written: {output}")


def _operation(text: str | None) -> str:
    """The operation of a flag in this program's words. Raises InputError."""
    if text is None:
        return ""
    word = text.lower().removesuffix("_perf").replace("-", "_")
    if word not in PROGRAMS and word not in KINDS:
        raise InputError(f"--operation {text} is not one of {', '.join(KINDS)}")
    return PROGRAMS.get(word, word)


def _forced(text: str | None, option: str, names: Mapping[str, str]) -> str:
    """A flag in the words of NCCL's tuner. Raises InputError with those that are known."""
    found = "" if text is None else named(text, names)
    if text is not None and not found:
        raise InputError(f"{option} {text!r} is not one of {', '.join(names.values())}")
    return found


def _unit(text: str | None, option: str, known: Iterable[str]) -> str:
    if text is not None and text not in known:
        raise InputError(f"{option} {text!r} is not one of {', '.join(known)}")
    return text or ""


def _word(text: str | None, option: str) -> str:
    if text is not None and not text.replace("_", "").isalnum():
        raise InputError(f"{option} {text!r} is not a word")
    return text or ""


def _tables(found: Found) -> list[tuple[ImportedFile, Block]]:
    return [(record, block) for record, imported in found for block in imported.blocks]


def as_dict(found: Found, output: Path) -> dict[str, Any]:
    """For --json: the files as in the manifest, and every table."""
    tables = [
        {
            "file": record.name,
            "line": block.line,
            "operation": block.operation,
            "key": block.key,
            "library": block.library,
            "device": block.device,
            "level": block.level,
            "ranks": block.ranks,
            "nodes": block.nodes,
            "groups": block.groups,
            "runs": block.runs,
            "rows": len(block),
            "of_run": block.of_run,
            "smallest_nbytes": int(block.nbytes.min()),
            "largest_nbytes": int(block.nbytes.max()),
        }
        for record, block in _tables(found)
    ]
    files = [record.model_dump() for record, _ in found]
    return {"run": str(output), "files": files, "tables": tables}


def show(found: Found) -> None:
    """One line for every table."""
    columns = ["file", "tool", "operation", "ranks", "nodes", "groups", "runs", "rows", "bytes"]
    rows = [
        [
            record.name + (f" and {block.files - 1} more" if block.files > 1 else ""),
            f"{record.tool} {record.tool_version}".strip(),
            f"{block.operation} {block.key}".strip(),
            str(block.ranks),
            str(block.nodes),
            str(block.groups),
            str(block.runs),
            str(len(block)),
            f"{int(block.nbytes.min())} to {int(block.nbytes.max())}",
        ]
        for record, block in _tables(found)
    ]
    table("Imported", columns, rows)
