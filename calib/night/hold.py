"""A whole night: from the doctor to the verdict."""

from __future__ import annotations

from dataclasses import asdict

from calib.foundation.errors import CalibError, FileError
from calib.foundation.run_files import REPORT_HTML
from calib.microbench.records.manifest import utc_now
from calib.night.directory import night_of
from calib.night.options import Begun, Judging, NightOptions
from calib.night.shown import announce, as_content, show
from calib.night.steps import measured, report_first
from calib.reports.drift.verdict import WRONG
from calib.reports.findings import Findings
from calib.scoring.findings import Report, report_of
from calib.terminal.printing import print_json, say

NOT_RUN = 2  # exit code


def hold(options: NightOptions, judging: Judging, as_json: bool = False) -> int:
    """A whole night, from the doctor to the verdict; returns the exit code: 0, 1, 2 or 3.

    Raises what `night_of` does, for a night that cannot begin.
    """
    with night_of(options) as begun:
        try:
            return _held(begun, judging, as_json)
        except KeyboardInterrupt:
            say(f"interrupted; `calib report {begun.run}` reports what is there")
            return NOT_RUN


def _held(begun: Begun, judging: Judging, as_json: bool) -> int:
    announce(begun)
    whole = measured(begun)
    with report_first():
        if whole:
            begun.night = begun.night.model_copy(update={"finished": utc_now()})
            begun.night.write(begun.run)
        made, kept = report_on(begun, judging)
        try:
            made.write(begun.run / REPORT_HTML)
        except FileError as error:  # a full disk: what was found is shown all the same
            say(f"no page: {error}")
            kept = False
        findings = made.findings
        code = code_of(findings, whole and kept)
        if as_json:
            print_json(as_content(begun, findings, whole, code))
        else:
            show(begun, findings, whole)
    return code


def code_of(findings: Findings, done: bool) -> int:
    """The exit code, that of the page: a bad verdict stays bad where not all was `done`."""
    of = findings.verdict.code if findings.verdict else NOT_RUN
    return of if done or of == WRONG else NOT_RUN


def report_on(begun: Begun, judging: Judging) -> tuple[Report, bool]:
    """The report of the night, and whether it is remembered.

    A night took minutes: where its history cannot be reached, it is reported without one.
    """
    try:
        made = report_of([begun.run], **asdict(judging))
    except CalibError as error:
        made = report_of([begun.run], record=False, least_accuracy=judging.least_accuracy)
        other = " --history ..." if judging.history is not None else ""
        say(f"not remembered: {error}; `calib report {begun.run}{other}` does it later")
        return made, False
    return made, made.findings.past is not None  # why there is none, a note says
