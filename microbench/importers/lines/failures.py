"""Why a program did not come to print what it is known by: words of launchers and libraries."""

from __future__ import annotations

import re

from calib.microbench.importers.lines.reading import HEAD, Log

# and what they mean; of a line only what is in the parentheses is quoted
FAILURES = (
    (re.compile(r"NCCL WARN ([ -~]{1,160})"), "NCCL says: {}"),
    (re.compile(r"error occurred in (MPI_\w+)"), "an error in {}"),
    (re.compile(r"(MPI_A(?:BORT|bort)) was (?:invoked|called)"), "{} was called"),
    (re.compile(r"(Segmentation fault|Bus error|[Oo]ut [Oo]f [Mm]emory|oom-kill)"), "{}"),
    (re.compile(r"(command not found|No such file or directory)"), "{}"),
    (re.compile(r"\b(srun|slurmstepd|mpirun|mpiexec|prterun): error"), "an error of {}"),
)


def failure_in(log: Log) -> tuple[int, str]:
    """The number of the first line that says so, and what; 0 and "" where none does."""
    for number, line in enumerate(log.text[:HEAD].split("\n"), 1):
        for pattern, text in FAILURES:
            if match := pattern.search(line):
                return number, text.format(match[1].strip())
    return 0, ""
