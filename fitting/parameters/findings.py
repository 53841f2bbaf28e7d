"""One thing that a reader of a parameter file must know; the limits that its checks share.

A check of one law yields remarks; `about` makes findings of them by adding which law it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

from calib.foundation.records import Estimate
from calib.foundation.statistics import median_ranks
from calib.foundation.words import several

Severity = Literal["warning", "note"]
Kind = Literal[
    "thin",
    "noisy",
    "stale",
    "extrapolated",
    "left out",
    "outlying",
    "shape",
    "edited",
    "mixed",
    "one run",
]


class Cause(NamedTuple):
    """What several findings have in common: their kind, why they arise, and the remedy."""

    kind: Kind
    words: str
    remedy: str


# in the order of what a reader must know first
EDITED = Cause("edited", "edited by hand after the fit", "fit the runs again")
MIXED_FILES = Cause("mixed", "merged of what was not fitted together", "fit the runs together")
STALE = Cause("stale", "old, or of an old format", "measure and fit again")
LEFT_OUT = Cause("left out", "left out of the file", "measure it again, with a larger budget")
BEYOND = Cause("extrapolated", "beyond what was measured", "measure up to there")
OUTLYING = Cause("outlying", "runs unlike the others", "run them again")
MISFIT = Cause("noisy", "laws that miss their data", "measure what you need, do not predict it")
WIDE = Cause("noisy", "intervals over +-10%", "measure longer, or in quiet")
LAUNCHES = Cause("thin", "one launch", "measure in 3 or more")
FEW = Cause("thin", "too few repetitions", "measure longer")
GAPS = Cause("thin", "too few sizes, p, layers or models", "measure more of them")
COSTS = Cause("shape", "overlap that costs time", "train without overlap")
SHAPE = Cause("shape", "times that fall with the size", "see whether another run has it too")
ONE_RUN = Cause("one run", "means of one run", "import more runs of it")
CAUSES = (
    EDITED,
    MIXED_FILES,
    STALE,
    LEFT_OUT,
    BEYOND,
    OUTLYING,
    MISFIT,
    WIDE,
    LAUNCHES,
    FEW,
    GAPS,
    COSTS,
    SHAPE,
    ONE_RUN,
)


class Remark(NamedTuple):
    """What a check says of one law; `about` makes a Finding of it."""

    severity: Severity
    cause: Cause
    message: str


warning, note = partial(Remark, "warning"), partial(Remark, "note")

# half-width of a 95% interval, relative: pyperf's `check` complains of a spread over 10%
MAX_HALF_WIDTH = 0.10
# a law that is off by more than this is a guess: 95% of the times lie within / and * it
MAX_FACTOR = 1.5
# sizes or groups that are off by more than this, on average, are better measured
MAX_ERROR = 0.10
# under this many values a median has no 95% interval
MIN_REPETITIONS = next(n for n in range(1, 100) if median_ranks(n, 0.95) is not None)
QUIETER = "measure longer, fit several runs together, or measure while nothing else runs"


@dataclass(frozen=True)
class Finding:
    """`section` is that of the file, `subject` the law, `message` one sentence with numbers.

    Findings of one `cause` (the words of a Cause) have one remedy.
    """

    severity: Severity
    kind: Kind
    section: str
    subject: str
    message: str
    cause: str


def about(section: str, subject: str, *checks: Iterable[Remark]) -> Iterator[Finding]:
    """The remarks of all checks as findings on one law."""
    for remarks in checks:
        for severity, cause, message in remarks:
            yield Finding(severity, cause.kind, section, subject, message, cause.words)


def by_cause(findings: Iterable[Finding]) -> list[tuple[Cause, list[Finding]]]:
    """The findings of each cause, in the order of CAUSES."""
    found: dict[str, list[Finding]] = {}
    for finding in findings:
        found.setdefault(finding.cause, []).append(finding)
    return [(cause, found[cause.words]) for cause in CAUSES if cause.words in found]


def wide_intervals(
    estimates: Iterable[tuple[str, Estimate]], then: str = QUIETER
) -> Iterator[Remark]:
    """One warning that names the estimates whose interval is over MAX_HALF_WIDTH to each side.

    `then` says what to do about it.
    """
    over = [
        f"{name} +-{of.half_width:.0%}" for name, of in estimates if of.half_width > MAX_HALF_WIDTH
    ]
    if over:
        what = f"95% intervals are over +-{MAX_HALF_WIDTH:.0%}: {several(over)}"
        yield warning(WIDE, f"{what}; {then}")


def large_error(factor: float | None, what: str, then: str) -> Iterator[Remark]:
    """A warning where an error factor is over MAX_FACTOR; `what` has it, `then` says what to do."""
    if factor is not None and factor > MAX_FACTOR:
        yield warning(
            MISFIT,
            f"{what} lie within / and * {factor:.2f} of the law (95%), over {MAX_FACTOR:g}; {then}",
        )
