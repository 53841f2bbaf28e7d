"""Checks before a night begins, so that its report will not refuse after minutes of work."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from calib.foundation.errors import CalibError, FileError
from calib.foundation.text import plain
from calib.microbench.records.manifest import utc_now
from calib.night.accept import machine_of
from calib.night.options import NightOptions
from calib.reports.drift.judge import baseline_nights, drift
from calib.reports.history.address import address
from calib.reports.history.records import Past, PastNight
from calib.reports.history.store import History
from calib.rundir import history_beside


def look_ahead(
    options: NightOptions,
    history: str | None,
    since: str,
    baseline: str,
    say: Callable[[str], None],
) -> None:
    """Raise InputError for a --history, --since or --baseline that cannot be.

    A history that cannot be opened is only said: the night is held all the same, and `calib report`
    can remember it later.
    """
    where = history or history_beside(options.output or options.calibration)
    at = address(where)
    drift(Past([], []), since=since)
    nights: list[PastNight] = []
    try:
        if at.file is None or history is not None or os.path.exists(at.file):
            nights += _nights(where, at.file, options.calibration if baseline else None)
    except CalibError as error:
        say(f"note: {plain(str(error))}; this night may not be remembered")
    if baseline:
        tonight = PastNight("", "", utc_now(), True, "", "", "", "", "", 0)
        baseline_nights([*nights, tonight], baseline)


def _nights(where: str, file: Path | None, calibration: Path | None) -> list[PastNight]:
    """The nights of the calibration's machine, where one is asked for, of a history that opens.

    None of a file that is not made yet. Raises CalibError where nothing can be recorded.
    """
    if file is not None:
        there = os.path.exists(file)
        if not os.access(file if there else file.resolve().parent, os.W_OK):
            raise FileError(f"history {file} cannot be written")
        if not there:
            return []
    with History.open(where) as store:
        return list(store.past(machine_of(calibration)).nights) if calibration else []
