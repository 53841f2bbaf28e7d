"""What a reader of a parameter file must be warned of: what is thin, noisy, stale or extrapolated.

Pure: the date and the sizes that will be predicted are arguments. A warning is what may make a
prediction wrong by more than its interval says, or the interval useless; a note is worth knowing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime

from fitting.findings import Finding, Remark, about
from fitting.parameters import FORMAT_VERSION, Parameters, Provenance
from fitting.review_collectives import review_collectives
from fitting.review_laws import review_laws

MAX_AGE_DAYS = 30.0
# clocks of two machines may differ by a time zone, not by more
MAX_AHEAD_DAYS = 1.0
# what `calib fit` says of something that is missing in the file, rather than of how it was made
MISSING = (": failed", "were not measured", "a line needs two", "not in the plan")


def review(
    parameters: Parameters,
    today: datetime,
    max_age_days: float = MAX_AGE_DAYS,
    gradients: Mapping[str, int] | None = None,
) -> list[Finding]:
    """All findings, the warnings first, each group in the order of the file.

    `today` has a time zone; `gradients` are the bytes that models to be predicted exchange, by name.
    """
    source = parameters.provenance
    found = [
        *about("provenance", "format", _format(parameters)),
        *about("provenance", "date", _age(source, today, max_age_days)),
        *about("provenance", "launches", _launches(source)),
        *about("provenance", "fit", _notes(source)),
        *review_collectives(parameters, gradients or {}),
        *review_laws(parameters),
    ]
    return sorted(found, key=lambda finding: finding.severity == "note")


def _format(parameters: Parameters) -> Iterator[Remark]:
    if parameters.format_version < FORMAT_VERSION:
        lacks = "nodes, racks and links of the cluster"
        if parameters.format_version < 2:
            lacks = f"pieces, structural laws, {lacks}"
        yield "note", "stale", (
            f"format {parameters.format_version} does not hold {lacks}; fit the runs again to have "
            f"them (format {FORMAT_VERSION})"
        )  # fmt: skip


def _age(source: Provenance, today: datetime, max_age_days: float) -> Iterator[Remark]:
    try:
        until = datetime.fromisoformat(source.measured_until)
    except ValueError:
        yield "note", "stale", (
            f"the file does not say when it was measured ({source.measured_until!r}); make sure "
            "that the machine, its driver and its libraries are still the same"
        )  # fmt: skip
        return
    until = until if until.tzinfo else until.replace(tzinfo=UTC)
    days = (today - until).total_seconds() / 86400
    if days > max_age_days:
        yield "warning", "stale", (
            f"measured {days:.0f} days ago, over {max_age_days:g}; measure again, or compare a short "
            "run with it (`calib diff`)"
        )  # fmt: skip
    elif days < -MAX_AHEAD_DAYS:
        yield "note", "stale", (
            f"measured {-days:.0f} days from now; one of the two machines' clocks is wrong"
        )  # fmt: skip


def _launches(source: Provenance) -> Iterator[Remark]:
    """Launches differ by more than the repetitions of one; how much takes two of them to see."""
    if source.launches == 1:
        yield "warning", "thin", (
            "one launch of the ranks, so no interval holds how launches differ; measure in 3 or "
            "more, or fit several runs together"
        )  # fmt: skip


def _notes(source: Provenance) -> Iterator[Remark]:
    """What `calib fit` wrote down: a warning where something is missing in the file for it."""
    for note in source.notes:
        missing = any(words in note for words in MISSING)
        yield "warning" if missing else "note", "left out", note
