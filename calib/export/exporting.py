"""Write the files of other tools from a parameter file."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from calib.export.about import SIDE_SUFFIX, about
from calib.export.target import Exported, ExportRequest, Source, Target
from calib.fitting.parameters.file import read_signed
from calib.foundation.errors import FileError, InputError, MissingParameter
from calib.foundation.execution import execution_of
from calib.foundation.files import destination, is_special, write_json, write_whole
from calib.foundation.run_files import CLUSTER_FILE
from calib.microbench.records.cluster import Cluster
from calib.options import numbers, size_range
from calib.terminal.printing import say

MOST_RANKS_NAMED = 64  # of one export: each has a row for every size in a linear program
OPTION_NAMES = {
    "ranks": "--ranks",
    "nbytes": "--bytes",
    "nodes": "--nodes",
    "cluster": "--cluster",
    "topology": "--topology",
    "calls": "--calls",
    "execution": "--execution",
}


@dataclass(frozen=True)
class Done:
    """A target that was written, the side file last."""

    target: Target
    request: ExportRequest
    exported: Exported
    files: list[Path]

    def as_dict(self) -> dict[str, Any]:
        """The side file's content with the paths, for --json."""
        content = about(self.target.NAME, self.request, self.exported)
        return {"files": [str(path) for path in self.files], **content}


@dataclass(frozen=True)
class Refused:
    """A target that was not written; `unfed`: because of what the parameters are or lack."""

    name: str
    why: str
    unfed: bool


def request_of(
    path: Path,
    ranks: str | None = None,
    nbytes: str | None = None,
    nodes: int | None = None,
    cluster: Path | None = None,
    library: str | None = None,
    topology: str | None = None,
    calls: Path | None = None,
    execution: str | None = None,
) -> ExportRequest:
    """What the options of `calib export` ask for. Raises FileError or InputError."""
    signed = read_signed(path)
    parameters = signed.parameters if library is None else signed.parameters.sent_by(library)
    chosen = tuple(numbers(ranks, "--ranks")) if ranks is not None else ()
    if len(chosen) > MOST_RANKS_NAMED:
        raise InputError(f"--ranks {ranks!r}: over {MOST_RANKS_NAMED} numbers of ranks")
    if chosen and chosen[0] < 2:
        raise InputError(f"--ranks {ranks!r}: one rank sends nothing; give 2 or more")
    return ExportRequest(
        parameters=parameters,
        source=Source(path.name, signed.sha256, signed.edited),
        ranks=chosen,
        nbytes=size_range(nbytes, "--bytes") if nbytes is not None else None,
        nodes=nodes or 0,
        cluster=Cluster.read(cluster) if cluster is not None else cluster_beside(path),
        topology=topology or "",
        calls=calls,
        execution=execution_of(execution).name if execution is not None else "",
    )


def cluster_beside(path: Path) -> Cluster | None:
    """The cluster.json in the same directory; None where there is none that can be read."""
    known = path.parent / CLUSTER_FILE
    if not os.path.isfile(known):
        return None
    try:
        return Cluster.read(known)
    except FileError as error:
        say(f"note: {known} is not used: {error}")
        return None


def inputs_of(path: Path, cluster: Path | None, calls: Path | None) -> list[Path]:
    """The files that an export reads, and so must not write."""
    found = [path, cluster or path.parent / CLUSTER_FILE]
    if calls is not None and os.path.isdir(calls):
        found += sorted(calls.iterdir())
    return found


def check_options(targets: Sequence[Target], given: Mapping[str, Any]) -> None:
    """Raise InputError for an option that none of the targets takes."""
    known = frozenset().union(*(target.OPTIONS for target in targets))
    wrong = [
        OPTION_NAMES[name]
        for name, value in given.items()
        if value is not None and name in OPTION_NAMES and name not in known
    ]
    if wrong:
        names = ", ".join(target.NAME for target in targets)
        takes = ", ".join(OPTION_NAMES[name] for name in OPTION_NAMES if name in known)
        raise InputError(
            f"{wrong[0]} does not apply to {names}; taken: {takes or 'no such option'}"
        )


def understood(target: Target, request: ExportRequest) -> ExportRequest:
    """The request without the options that the target does not take, with the laws of one execution
    where it takes that.

    Raises InputError for an execution that was not measured.
    """
    unused = OPTION_NAMES.keys() - target.OPTIONS
    none: dict[str, Any] = {of.name: of.default for of in fields(request) if of.name in unused}
    known = request.parameters.executions
    if "execution" in unused or not known:
        return replace(request, **none)
    chosen = request.execution or known[0]
    if chosen not in known:
        raise InputError(
            f"--execution {chosen}: the parameters hold no layers of it; they hold: {', '.join(known)}"
        )
    of_one = request.parameters.of_execution(chosen)
    several = chosen if len(known) > 1 else ""
    return replace(request, **none, parameters=of_one, execution=several)


def write(
    target: Target, request: ExportRequest, exported: Exported, path: Path, inputs: Sequence[Path]
) -> list[Path]:
    """Write the files, and the side file last; their paths. Raises FileError or InputError.

    In a directory the files have their own names; else "" is `path` itself, and other names are
    appended to it. A pipe or a device gets no side file. Nothing is written where one of the files
    cannot be, or is one of the `inputs`.
    """
    if target.DIRECTORY:
        if os.path.exists(path) and not os.path.isdir(path):
            raise InputError(
                f"-o {path} is a file; {target.NAME} writes several files: name a directory"
            )
        files = {path / name: text for name, text in exported.files.items()}
        side = path / f"{target.NAME}{SIDE_SUFFIX}"
    else:
        path = path / target.FILENAME if os.path.isdir(path) else destination(path)
        files = {beside(path, name): text for name, text in exported.files.items()}
        side = beside(path, SIDE_SUFFIX)
    written = [path] if to_stream(path) else [*files, side]
    for each in written:
        check_writable(each, inputs)
    for each in written:
        if each in files:
            write_whole(each, files[each])
        else:
            write_json(each, about(target.NAME, request, exported))
    return written


def to_stream(path: Path) -> bool:
    """Whether it is a pipe or a device, which takes the first file alone."""
    try:
        return is_special(path)
    except OSError as error:  # a name that is too long
        raise FileError(f"cannot write {path}: {error.strerror}") from error


def check_writable(path: Path, inputs: Sequence[Path]) -> None:
    """Raise FileError or InputError where a file cannot be, or is one that was read."""
    try:
        path.lstat()
    except FileNotFoundError:
        pass
    except OSError as error:  # a name that is too long, a file for a directory
        raise FileError(f"cannot write {path}: {error.strerror}") from error
    if os.path.isdir(path):
        raise FileError(f"cannot write {path}: it is a directory")
    for source in inputs:
        if os.path.exists(path) and os.path.exists(source) and os.path.samefile(path, source):
            raise InputError(f"{path} is an input of this export: choose another -o")


def beside(path: Path, name: str) -> Path:
    """The path itself for "", else the path with the name after it."""
    return path.with_name(path.name + name) if name else path


def export_one(target: Target, asked: ExportRequest, output: Path, inputs: list[Path]) -> Done:
    """Write the files. Raises InputError, MissingParameter or FileError."""
    request = understood(target, asked)
    exported = target.export(request)
    return Done(target, request, exported, write(target, request, exported, output, inputs))


def export_several(
    targets: Sequence[Target], asked: ExportRequest, output: Path, inputs: list[Path], options: bool
) -> tuple[list[Done], list[Refused]]:
    """Write the targets that can be written into a directory; return also why the others cannot.

    `options`: whether the user gave options that a target may refuse.
    """
    done, refused = [], []
    for target in targets:
        path, exported = output / target.FILENAME, None
        try:
            request = understood(target, asked)
            exported = target.export(request)
            files = write(target, request, exported, path, inputs)
            done.append(Done(target, request, exported, files))
        except (MissingParameter, InputError, FileError) as error:
            old = f" ({path} is of an earlier export)" * os.path.exists(path)
            lacks = isinstance(error, MissingParameter) or not options
            refused.append(Refused(target.NAME, f"{error}{old}", exported is None and lacks))
    return done, refused
