"""The line of the user's code behind a node or a failure of a trace.

Between that line and us lie frames of torch, and often of the standard library or an installed package,
which the user cannot change.
"""

from __future__ import annotations

import importlib
import linecache
import site
import sys
import sysconfig
import traceback
from collections.abc import Iterable
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import torch
from torch import fx, nn

from calib.foundation.errors import InputError
from calib.oracle.trace.checkpoints import checkpoints_marked, mark

SourcePlace = tuple[str, int]  # file, line

OURS = str(Path(__file__).parents[2]) + "/"  # the package calib
TORCH = str(Path(torch.__file__).parent) + "/"
INSTALLED = tuple(
    {sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"), *site.getsitepackages()}
)
IMPORTS = str(Path(importlib.__file__).parent) + "/"
PLACE = "calib_place"  # key of a node's meta


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
    raised: TracebackType | None = error.__traceback__
    frames = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(raised)]
    return users_place(reversed(frames))


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
    if isinstance(error, KeyError | SystemExit):  # its text is a key or a number
        text = f"{type(error).__name__}({text})"
    return (text.strip().splitlines() or [type(error).__name__])[0]


class Tracer(fx.Tracer):
    """fx.Tracer that notes at each node the line of the user's code that made it, and its region."""

    def __init__(self) -> None:
        super().__init__()
        self._modes = _modes()

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        """The node with its place in meta[PLACE], marked. Raises InputError under what none shows."""
        if _modes() != self._modes:
            raise InputError("its forward turns gradients or autocast on or off")
        node = super().create_node(*args, **kwargs)
        node.meta[PLACE] = users_place(_frames(sys._getframe(1)))
        mark(node)
        return node


def _modes() -> tuple[bool, bool, bool]:
    """Whether gradients and autocast are on."""
    on = torch.is_autocast_enabled
    return torch.is_grad_enabled(), on("cpu"), on("cuda")


def _frames(frame: FrameType | None) -> Iterable[SourcePlace]:
    """`frame` and its callers, up to the one that traces."""
    while frame is not None and frame.f_code is not traced.__code__:
        yield frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back


def traced(module: nn.Module) -> fx.GraphModule:
    """fx.symbolic_trace, with the place of every node, and its checkpointed region."""
    with checkpoints_marked():
        return fx.GraphModule(module, Tracer().trace(module))
