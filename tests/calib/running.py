"""`python -m calib` as a user runs it, in a directory of the test's own."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

from tests.training.launching import python


def calib(cwd: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run a verb to its end; `more` are environment variables. A single argument is a whole line."""
    return python(cwd, "-m", "calib", *split(arguments), **more)


def split(arguments: tuple[str, ...]) -> list[str]:
    """The words of a call: as given, or of the one line that was given."""
    return shlex.split(arguments[0]) if len(arguments) == 1 else list(arguments)


def refused(done: subprocess.CompletedProcess[str]) -> str:
    """The one line of a call that must fail as a user's mistake: exit code 2 and nothing else."""
    assert done.returncode == 2, (done.returncode, done.stdout, done.stderr)
    assert "Traceback" not in done.stderr + done.stdout
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("calib: error: ")
    return lines[0].removeprefix("calib: error: ")
