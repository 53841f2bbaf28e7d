"""`python -m calib` as a user runs it, in a directory of the test's own."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path

from tests.training.launching import python


def calib(cwd: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run a verb to its end; `more` are environment variables. A single argument is a whole line."""
    return python(cwd, "-m", "calib", *split(arguments), **more)


VERBS = """
import gc, json, sys
gc.set_threshold(100_000, 50, 100)
from pathlib import Path
from tests.calib import inside
done = [inside.calib(Path.cwd(), line) for line in sys.argv[1:]]
print(json.dumps([(of.args, of.returncode, of.stdout, of.stderr) for of in done]))
"""


def one_after_the_other(cwd: Path, *lines: str) -> list[subprocess.CompletedProcess[str]]:
    """Run verbs in one process, not that of the test: it imports PyTorch and a user's code once."""
    done = python(cwd, "-c", VERBS, *lines)
    assert done.returncode == 0, done.stderr
    return [subprocess.CompletedProcess(*of) for of in json.loads(done.stdout)]


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
