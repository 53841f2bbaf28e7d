"""Software that changed between two records."""

from __future__ import annotations

from collections.abc import Mapping

from calib.reports.drift.records import VersionChange
from calib.reports.history.records import PastNight


def changed(before: Mapping[str, str], after: Mapping[str, str]) -> list[VersionChange]:
    """Versions that differ, in order of their names; "" where one was not there."""
    return [
        VersionChange(name, before.get(name, ""), after.get(name, ""))
        for name in sorted({*before, *after})
        if before.get(name, "") != after.get(name, "")
    ]


def changed_between(before: PastNight, after: PastNight) -> list[VersionChange]:
    """The same of two nights, with calib's own version."""
    return changed(
        {**before.versions, "calib": before.program_version},
        {**after.versions, "calib": after.program_version},
    )
