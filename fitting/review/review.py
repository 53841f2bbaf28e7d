"""All warnings of a parameter file: thin, noisy, stale or extrapolated laws.

Pure: the date and the sizes that will be predicted are arguments. A warning is what may make a
prediction wrong by more than its interval says, or the interval useless; a note is worth knowing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime

from calib.fitting.merging.merge import clusters_of, files_of, time_of
from calib.fitting.merging.mixed import APART, MERGED, MIXED
from calib.fitting.parameters.file import Parameters
from calib.fitting.parameters.findings import (
    EDITED,
    LAUNCHES,
    LEFT_OUT,
    MIXED_FILES,
    STALE,
    Finding,
    Remark,
    about,
    note,
    warning,
)
from calib.fitting.parameters.provenance import Provenance
from calib.fitting.review.collectives import review_collectives
from calib.fitting.review.laws import review_laws
from calib.foundation.words import several

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
    """Find all that a reader of a parameter file must be warned of.

    Parameters
    ----------
    parameters
        The file.
    today
        The time now, with a time zone.
    max_age_days
        Older measurements get a warning.
    gradients
        Bytes of gradients that each model to be predicted exchanges, by name.

    Returns
    -------
    list of Finding
        Warnings first, each group in the order of the file.
    """
    source = parameters.provenance
    found = [
        *about("provenance", "signature", _edited(source)),
        *about("provenance", "merge", _merged(parameters, today, max_age_days)),
        *about("provenance", "date", _age(source, today, max_age_days)),
        *about("provenance", "launches", _launches(source)),
        *about("provenance", "fit", _notes(source)),
        *review_collectives(parameters, gradients or {}),
        *review_laws(parameters),
    ]
    return sorted(found, key=lambda finding: finding.severity == "note")


def _edited(source: Provenance) -> Iterator[Remark]:
    if source.edited:
        yield warning(
            EDITED,
            "the file, or a file that it was merged of, was edited by hand after its fit: its "
            "numbers are not all measured, and intervals may not belong to them; fit the runs again",
        )


def _merged(parameters: Parameters, today: datetime, max_age_days: float) -> Iterator[Remark]:
    """A merged file is of one cluster, and as old as its oldest part."""
    source = parameters.provenance
    clusters = clusters_of(parameters)
    if len(clusters) > 1:
        yield warning(
            MIXED_FILES,
            f"merged of different clusters: {several(clusters)}; no machine is like this, so "
            "compare what it predicts with a run before you rely on it",
        )
    elif source.merged:
        yield note(
            MIXED_FILES,
            (f"merged of {files_of(source)} files of the cluster; nothing was fitted again"),
        )
    # a file of which nothing was taken makes nothing old
    used = [time_of(x.measured_until) for x in source.merged if x.parts]
    until = [time for time in used if time is not None]
    whole = time_of(source.measured_until)
    if until and whole is not None:
        days = [(today - time).total_seconds() / 86400 for time in (min(until), whole)]
        if days[0] > max_age_days >= days[1]:
            yield warning(
                STALE,
                f"a part was measured {days[0]:.0f} days ago, over {max_age_days:g}; measure anew",
            )


def _age(source: Provenance, today: datetime, max_age_days: float) -> Iterator[Remark]:
    until = time_of(source.measured_until)
    if until is None:
        yield note(
            STALE,
            f"the file does not say when it was measured ({source.measured_until!r}); make sure "
            "that the machine, its driver and its libraries are still the same",
        )
        return
    days = (today - until).total_seconds() / 86400
    if days > max_age_days:
        yield warning(
            STALE,
            f"measured {days:.0f} days ago, over {max_age_days:g}; measure again, or compare a "
            "short run with it",
        )
    elif days < -MAX_AHEAD_DAYS:
        yield note(
            STALE, (f"measured {-days:.0f} days from now; one of the two machines' clocks is wrong")
        )


def _launches(source: Provenance) -> Iterator[Remark]:
    """Launches differ by more than the repetitions of one; how much takes two of them to see."""
    if source.launches == 1:
        yield warning(
            LAUNCHES,
            "one launch of the ranks, so no interval includes launch-to-launch variation; measure in 3 "
            "or more, or fit several runs together",
        )


def _notes(source: Provenance) -> Iterator[Remark]:
    """What `calib fit` wrote down: a warning where something is missing in the file for it."""
    for words in source.notes:
        if words.startswith(MIXED):
            then = "; fit the runs together" if APART in words else ""
            yield warning(MIXED_FILES, words.removeprefix(MIXED) + then)
        elif words.startswith(MERGED):
            yield note(MIXED_FILES, words.removeprefix(MERGED))
        elif any(missing in words for missing in MISSING):
            yield warning(LEFT_OUT, words)
        else:
            yield note(LEFT_OUT, words)
