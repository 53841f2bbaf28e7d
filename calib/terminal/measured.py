"""How the cases of a run directory ended, in a few lines."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from calib.foundation.words import several
from calib.microbench.records.manifest import CaseEnd, Manifest
from calib.terminal.disturbed import of_measuring
from calib.terminal.printing import say

MOST_NAMED = 8


def show(run: Path, rows: int) -> None:
    """How the cases ended: a line of counts, and one of the cases that failed or were left out."""
    manifest = Manifest.read(run)
    ends = [case.stopped_by for case in manifest.cases]
    failed = [case for case in manifest.cases if case.stopped_by.startswith("failed")]
    skipped = [case for case in manifest.cases if case.stopped_by.startswith("skipped")]
    say(
        f"{rows} rows of {len(ends)} cases in {run}: {ends.count('interval')} have a median "
        f"known to +-{manifest.target_half_width:.1%}, {ends.count('budget')} used up their time "
        f"before, {len(failed)} failed, {len(skipped)} were left out"
    )
    if failed:
        say(f"failed (--resume tries again; why: {run}/manifest.json): {case_names(failed)}")
    if skipped:
        for reason, number in Counter(case.stopped_by for case in skipped).items():
            names = case_names([case for case in skipped if case.stopped_by == reason])
            say(f"left out: {number}, {reason.removeprefix('skipped: ')}: {names}")
    if line := of_measuring(manifest):
        say(line)
    if any(launch.oversubscribed for launch in manifest.launches):
        say("more ranks than cores: these rows are marked and calibrate nothing")


def case_names(ends: list[CaseEnd]) -> str:
    """The label of each case once, with the numbers of its launches."""
    launches: dict[str, set[int]] = {}
    for end in ends:
        launches.setdefault(end.label, set()).add(end.launch + 1)
    names = [
        f"{label} (launch {', '.join(map(str, sorted(numbers)))})"
        for label, numbers in launches.items()
    ]
    return several(names, MOST_NAMED, "; ")
