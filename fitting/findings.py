"""One thing that a reader of a parameter file must know, and what the checks of its sections share.

A check of one law yields remarks; `about` makes findings of them by adding which law it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from fitting.records import Estimate
from foundation.statistics import median_ranks

Severity = Literal["warning", "note"]
Kind = Literal["thin", "noisy", "stale", "extrapolated", "left out", "shape", "edited", "mixed"]
Remark = tuple[Severity, Kind, str]  # the last is the message

# half-width of a 95% interval, relative: pyperf's `check` complains of a spread over 10%
MAX_HALF_WIDTH = 0.10
# a law that is off by more than this is a guess: 95% of the times lie within / and * it
MAX_FACTOR = 1.5
# sizes or groups that are off by more than this, on average, are better measured
MAX_ERROR = 0.10
# under this many values a median has no 95% interval
MIN_REPETITIONS = next(n for n in range(1, 100) if median_ranks(n, 0.95) is not None)
NAMED = 3  # examples in a sentence
QUIETER = "measure longer (--budget), fit several runs together, or measure while nothing else runs"


@dataclass(frozen=True)
class Finding:
    """`section` is that of the file, `subject` the law, `message` one sentence with numbers."""

    severity: Severity
    kind: Kind
    section: str
    subject: str
    message: str


def about(section: str, subject: str, *checks: Iterable[Remark]) -> Iterator[Finding]:
    """The remarks of all checks as findings on one law."""
    for remarks in checks:
        for severity, kind, message in remarks:
            yield Finding(severity, kind, section, subject, message)


def half_width(of: Estimate) -> float:
    """Relative half-width of an interval; 0 where the value is 0."""
    return (of.high - of.low) / (2 * of.value) if of.value > 0 else 0.0


def wide_intervals(
    estimates: Iterable[tuple[str, Estimate]], then: str = QUIETER
) -> Iterator[Remark]:
    """One warning that names the estimates whose interval is over MAX_HALF_WIDTH to each side.

    `then` says what to do about it.
    """
    over = [
        f"{name} +-{half_width(of):.0%}"
        for name, of in estimates
        if half_width(of) > MAX_HALF_WIDTH
    ]
    if over:
        what = f"95% intervals are over +-{MAX_HALF_WIDTH:.0%}: {several(over)}"
        yield "warning", "noisy", f"{what}; {then}"


def large_error(factor: float | None, what: str, then: str) -> Iterator[Remark]:
    """A warning where an error factor is over MAX_FACTOR; `what` has it, `then` says what to do."""
    if factor is not None and factor > MAX_FACTOR:
        yield "warning", "noisy", (
            f"{what} lie within / and * {factor:.2f} of the law (95%), over {MAX_FACTOR:g}; {then}"
        )  # fmt: skip


def several(words: Sequence[str]) -> str:
    """`a, b, c and 4 more`."""
    more = len(words) - NAMED
    return ", ".join(words[:NAMED]) + (f" and {more} more" if more > 0 else "")


def size(nbytes: float) -> str:
    """`8 B`, `4 KiB`, `64.3 MiB`."""
    value = float(nbytes)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.4g} {unit}"
        value /= 1024
    return f"{value:.4g} GiB"
