"""A verb in the process of the test: for many small cases of verbs that start nothing themselves."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
from pathlib import Path
from subprocess import CompletedProcess
from unittest.mock import patch

from calib.cli import main


def calib(cwd: Path, *arguments: str, **more: str) -> CompletedProcess[str]:
    """As tests/calib/running.py, without a process of its own (and so without its start-up).

    `more` are environment variables.
    """
    out, err = io.StringIO(), io.StringIO()
    before, argv, at_term = Path.cwd(), sys.argv, signal.getsignal(signal.SIGTERM)
    try:
        os.chdir(cwd)
        sys.argv = ["calib", *arguments]
        with (
            contextlib.redirect_stdout(out), contextlib.redirect_stderr(err),
            patch.dict(os.environ, more),
        ):  # fmt: skip
            main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
        return CompletedProcess(list(arguments), code, out.getvalue(), err.getvalue())
    finally:
        os.chdir(before)
        sys.argv = argv
        signal.signal(signal.SIGTERM, at_term)
    raise AssertionError("main() has returned")
