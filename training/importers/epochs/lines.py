"""Lines of a log, bounded; what terminals draw over one another are lines of their own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from calib.foundation.errors import FileError

LONGEST = 1 << 16  # characters; the rest of a longer line is left out
MOST_LINES = 50_000_000
# [1,0]<stdout>: of Open MPI, "0: " of srun --label, colours
TAG = re.compile(r"^(?:\[\d+,\d+\]<std(?:out|err)>:|\d+: )|\x1b\[[0-9;]*[A-Za-z]")


def lines_of(path: Path) -> Iterator[str]:
    """The lines of a file without a launcher's tags. Raises FileError."""
    try:
        # a carriage return ends a line, too
        with path.open(encoding="utf-8-sig", errors="replace") as stream:
            for _ in range(MOST_LINES):
                line = stream.readline(LONGEST)
                if not line:
                    return
                yield TAG.sub("", line).strip()
    except OSError as error:
        raise FileError(f"cannot read the log {path}: {error.strerror}") from error
    raise FileError(f"{path}: more than {MOST_LINES} lines")
