"""The line of the user's code behind a node or a failure of a trace.

Between that line and us lie frames of torch, and often of the standard library or an installed package,
which the user cannot change.
"""

from __future__ import annotations

import importlib
import linecache
import re
import site
import sysconfig
import traceback
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import fx, nn

SourcePlace = tuple[str, int]  # file, line

OURS = str(Path(__file__).parents[2]) + "/"  # the package calib
TORCH = str(Path(torch.__file__).parent) + "/"
INSTALLED = tuple(
    {sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"), *site.getsitepackages()}
)
IMPORTS = str(Path(importlib.__file__).parent) + "/"
FRAME = re.compile(r'File "(.+?)", line (\d+)')  # in what a node has of the stack


def users_place(frames: Iterable[SourcePlace]) -> SourcePlace | None:
    """The innermost of `frames` (innermost first) in the user's code, or None.

    That is a frame outside torch, calib and installed packages; failing that, one in an installed
    package, but never one of the import machinery.
    """
    outside = [place for place in frames if not place[0].startswith(("<", TORCH, OURS, IMPORTS))]
    own = (place for place in outside if not place[0].startswith(INSTALLED))
    return next(own, outside[0] if outside else None)


def failed_at(error: BaseException) -> SourcePlace | None:
    """Where the user's code raised an error, or where its syntax error is."""
    if isinstance(error, SyntaxError) and error.lineno and Path(error.filename or "").is_file():
        return str(error.filename), error.lineno
    raised = traceback.walk_tb(error.__traceback__)
    frames = [(frame.f_code.co_filename, line) for frame, line in raised]
    return users_place(reversed(frames))


def failed_in(error: BaseException, root: nn.Module) -> tuple[str, type[nn.Module]]:
    """Path and class of the innermost module whose forward raised an error in a copy of `root`.

    "" for the root itself, or where no module did.
    """
    selves = [frame.f_locals.get("self") for frame, _ in traceback.walk_tb(error.__traceback__)]
    within = [of for of in selves if isinstance(of, nn.Module)]
    copies = (of for of in within if type(of) is type(root))
    for copied in copies:
        for path, part in copied.named_modules():
            if part is within[-1]:
                return path, type(part)
    return "", type(root)


def made_at(node: fx.Node) -> SourcePlace | None:
    """The line of a user's forward that made a node of torch.export, or None."""
    frames = FRAME.findall(node.meta.get("stack_trace") or "")
    return users_place((file, int(line)) for file, line in reversed(frames))


def at(place: SourcePlace | None) -> str:
    """A place as ", at FILE, line N `SOURCE`"; "" if unknown."""
    if place is None:
        return ""
    file, line = place
    path = Path(file)
    if path.is_relative_to(Path.cwd()):
        file = str(path.relative_to(Path.cwd()))
    source = linecache.getline(place[0], line).strip()
    return f", at {file}, line {line}" + (f" `{source}`" if source else "")


def line_of(error: BaseException) -> str:
    """The first line of an error's text, without the place that a SyntaxError adds."""
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    return (text.strip().splitlines() or [type(error).__name__])[0]


def failure_of(error: BaseException) -> str:
    """The same, with what it is where the text alone is a key or an exit status."""
    named = f"{type(error).__name__}: " if isinstance(error, KeyError | SystemExit) else ""
    return f"{named}{line_of(error)}"
