"""Whose law a merge takes where files have different ones of the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Literal

from calib.fitting.parameters.file import Provenance, Signed
from calib.fitting.parameters.findings import several
from calib.fitting.parameters.laws import label_of
from calib.fitting.parameters.records import Record
from calib.foundation.errors import InputError

Prefer = Literal["first", "last", "newest"]


def time_of(text: str) -> datetime | None:
    """A time of a provenance; UTC where it names no zone, None where it is none ("unknown")."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def chosen_of(
    files: Sequence[Signed],
    section: str,
    having: Mapping[int, tuple[Record, ...]],
    prefer: Prefer | None,
) -> int:
    """Whose law is taken, of the files that have it in their order. Raises InputError."""
    first = min(having)
    if prefer == "last":
        return max(having)
    if prefer != "newest" or all(laws == having[first] for laws in having.values()):
        return first
    times = {i: _measured(files[i].parameters.provenance, section) for i in having}
    known = {i: time for i, time in times.items() if time is not None}
    newest = [i for i, time in known.items() if time == max(known.values())]
    if not newest or any(having[i] != having[newest[0]] for i in newest):
        names = several([str(files[i].path) for i in newest or having])
        why = "were measured at the same time" if newest else "do not say when they were measured"
        raise InputError(
            f"which is newer is not known: {names} differ in "
            f"{label_of(section, having[first][0])} of {section}, and {why}; --prefer first or last"
        )
    return newest[0]


def _measured(source: Provenance, section: str) -> datetime | None:
    """When laws of a section were measured last: of a merged file no later than its oldest part."""
    parts = [time_of(x.measured_until) for x in source.merged if section in x.parts]
    times = parts or [time_of(source.measured_until)]
    known = [time for time in times if time is not None]
    return min(known) if len(known) == len(times) else None
