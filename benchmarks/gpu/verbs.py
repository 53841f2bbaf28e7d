"""calib's verbs, as a person types them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from calib.foundation.errors import MeasurementError
from calib.foundation.files import read_text


def calib(log: Path, words: str, *paths: Path | str) -> Any:
    """What `calib WORDS PATHS --json` prints; what it says on the way goes to the log.

    Raises MeasurementError with its last line where it fails.
    """
    given = [*words.split(), *map(str, paths)]
    line = [sys.executable, "-m", "calib", *given, "--json"]
    with log.open("a") as errors:
        errors.write(f"$ calib {' '.join(given)}\n")
        errors.flush()
        done = subprocess.run(line, stdout=subprocess.PIPE, stderr=errors, text=True, check=False)
    if done.returncode:
        last = read_text(log, "log").strip().splitlines()[-1]
        raise MeasurementError(f"calib {given[0]}: {last.removeprefix('calib: error: ')}")
    return json.loads(done.stdout)
