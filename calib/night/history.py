"""The history of nights: look at it before a night begins, and accept steps in it.

An accepted step is one that somebody has looked at: its new level is normal from then on.
"""

from __future__ import annotations

import getpass
import os
from collections.abc import Sequence
from pathlib import Path

from calib.fitting.parameters.file import Parameters
from calib.foundation.errors import CalibError, FileError, InputError
from calib.foundation.run_files import CLUSTER_FILE, PARAMETERS_FILE
from calib.foundation.text import plain
from calib.microbench.records.cluster import Cluster
from calib.microbench.records.manifest import utc_now
from calib.night.options import Judging, NightOptions
from calib.reports.drift.judge import baseline_nights, drift
from calib.reports.drift.records import Step
from calib.reports.history.address import address
from calib.reports.history.records import Acceptance, Past, PastNight
from calib.reports.history.store import History
from calib.rundir import history_beside
from calib.terminal.printing import say

LEAST_ID = 8  # characters that name a night


def look_ahead(options: NightOptions, judging: Judging) -> None:
    """Check before a night begins, so that its report will not refuse after minutes of work.

    Raises InputError for a --history, --since or --baseline that cannot be. A history that cannot be
    opened is only said: the night is held all the same, and `calib report` can remember it later.
    """
    where = judging.history or history_beside(options.output or options.calibration)
    at = address(where)
    drift(Past([], []), since=judging.since)
    nights: list[PastNight] = []
    try:
        if at.file is None or judging.history is not None or os.path.exists(at.file):
            nights += _nights(where, at.file, options.calibration if judging.baseline else None)
    except CalibError as error:
        say(f"note: {plain(str(error))}; this night may not be remembered")
    if judging.baseline:
        tonight = PastNight("", "", utc_now(), True, "", "", "", "", "", 0)
        baseline_nights([*nights, tonight], judging.baseline)


def _nights(where: str, file: Path | None, calibration: Path | None) -> list[PastNight]:
    """The nights of the calibration's machine in a history; none without a calibration or a file.

    Raises CalibError where nothing can be recorded.
    """
    if file is not None:
        there = os.path.exists(file)
        if not os.access(file if there else file.resolve().parent, os.W_OK):
            raise FileError(f"history {file} cannot be written")
        if not there:
            return []
    with History.open(where) as store:
        return list(store.past(machine_of(calibration)).nights) if calibration else []


def accept(calibration: Path, judging: Judging, reason: str, night: str) -> list[Acceptance]:
    """Accept the open steps of the calibration's machine; with `night`, those of that night.

    `night` is an id or the beginning of one, the name of a run directory, or a date. Raises FileError
    where there is no history, InputError where no such step is open.
    """
    if not reason.strip():
        raise InputError("--accept needs a reason, as --accept 'new driver 560, looked at it'")
    where = judging.history or history_beside(calibration)
    if judging.history is None and not Path(where).exists():
        raise FileError(f"there is no history {where} yet; `calib report` or a night makes one")
    with History.open(where) as store:
        past = store.past(machine_of(calibration))
        found = drift(past, since=judging.since, baseline=judging.baseline)
        steps = chosen([step for step in found.steps if step.is_open], past, night)
        accepted = [
            Acceptance(
                night=past.nights[step.first].id,
                series=step.series,
                reason=reason.strip(),
                who=who(),
                accepted=utc_now(),
            )
            for step in steps
        ]
        for acceptance in accepted:
            store.accept(acceptance)
    return accepted


def machine_of(calibration: Path) -> str | None:
    """The machine of a calibration; None, that of the newest night, where it does not say."""
    path, parameters = calibration / CLUSTER_FILE, calibration / PARAMETERS_FILE
    if not path.exists():
        return None
    kind = Parameters.read(parameters).device_kind if parameters.exists() else "cpu"
    return Cluster.read(path).history(kind)


def chosen(steps: Sequence[Step], past: Past, night: str) -> list[Step]:
    """The steps that begin with `night`, else those that were found on it. Raises InputError."""
    if not steps:
        raise InputError("no step is open: there is nothing to accept")
    if not night:
        return list(steps)
    which = {index for index, each in enumerate(past.nights) if _is(each, night)}
    if not which:
        raise InputError(f"--night {night!r}: the history has no such night")
    found = [step for step in steps if step.first in which]
    found = found or [step for step in steps if step.seen in which]
    if not found:
        begin = ", ".join(dict.fromkeys(past.nights[step.first].started[:10] for step in steps))
        raise InputError(f"--night {night!r}: no open step begins then; open ones begin on {begin}")
    return found


def _is(night: PastNight, name: str) -> bool:
    known = len(name) >= LEAST_ID and night.id.startswith(name)
    return known or name in (night.run, night.started[:10], night.started)


def who() -> str:
    """The user's name; nothing where the system has none for this user."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return ""
