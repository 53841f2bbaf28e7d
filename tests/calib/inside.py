"""A verb in the process of the test: for many small cases of verbs that start nothing themselves."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
from pathlib import Path
from subprocess import CompletedProcess

from calib.cli import main


def calib(cwd: Path, *arguments: str) -> CompletedProcess[str]:
    """As tests/calib/running.py, without a process of its own (and so without its start-up)."""
    out, err = io.StringIO(), io.StringIO()
    before, argv, at_term = Path.cwd(), sys.argv, signal.getsignal(signal.SIGTERM)
    try:
        os.chdir(cwd)
        sys.argv = ["calib", *arguments]
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
        return CompletedProcess(list(arguments), code, out.getvalue(), err.getvalue())
    finally:
        os.chdir(before)
        sys.argv = argv
        signal.signal(signal.SIGTERM, at_term)
    raise AssertionError("main() has returned")
