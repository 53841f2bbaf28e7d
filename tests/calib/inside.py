"""A verb in the process of the test: for many small cases of verbs that start nothing themselves."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from signal import getsignal, signal
from subprocess import CompletedProcess
from typing import Any, TextIO
from unittest.mock import patch

from tests.calib.running import split
from typer.main import get_command

from calib.app import built
from calib.cli import main
from calib.process.interrupts import SIGNALS

# of the verbs, which never change, half the time of a small one is to build them
commands = cache(get_command)


@cache
def options() -> dict[str, set[str]]:
    """What each verb takes, by its path: "parameters merge" -> {"--across", "-o", ...}."""

    def walk(path: str, of: Any) -> Iterator[tuple[str, set[str]]]:
        yield path, {option for x in of.params for option in x.opts}
        for name in getattr(of, "commands", ()):
            yield from walk(f"{path} {name}".lstrip(), of.commands[name])

    return dict(walk("", built()))


def calib(cwd: Path, *arguments: str, **more: str) -> CompletedProcess[str]:
    """As tests/calib/running.py, without a process of its own (and so without its start-up).

    `more` are environment variables. A single argument is a whole line.
    """
    words = split(arguments)
    out, err = io.StringIO(), io.StringIO()
    before = Path.cwd()
    try:
        os.chdir(cwd)
        with patch.dict(os.environ, more):
            code = ended(words, out, err)
    finally:
        os.chdir(before)
    return CompletedProcess(words, code, out.getvalue(), err.getvalue())


def ended(arguments: Sequence[str], out: TextIO, err: TextIO) -> int:
    """The exit code of a verb that prints to these, in the working directory."""
    try:
        with (
            as_it_was(),
            patch.object(sys, "argv", ["calib", *arguments]),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            patch("typer.main.get_command", commands),
        ):
            main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    raise AssertionError("main() has returned")


@contextlib.contextmanager
def as_it_was() -> Iterator[None]:
    """After the block the process hears signals as before it, and finds modules so."""
    handlers = {number: getsignal(number) for number in SIGNALS}
    with (
        patch.object(sys, "unraisablehook", sys.unraisablehook),
        patch.object(sys, "meta_path", [*sys.meta_path]),
    ):
        try:
            yield
        finally:
            for number, handler in handlers.items():
                signal(number, handler)
