"""How much of a step was disturbed, and by what, in one line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from calib.foundation.words import counted, percent
from calib.microbench.records.looks import DISTURBANCES, Disturbance
from calib.microbench.records.manifest import Manifest
from calib.reports.scoring.timed import disturbed_by
from calib.training.run.record import TrainingRun

WORTH_SAYING = 0.02  # of the time; a quiet machine waits a little, too


def of_measuring(manifest: Manifest) -> str:
    """Of the cases that were measured; "" where nobody looked at the machine."""
    measured = [end for end in manifest.cases if end.started_unix_s is not None]
    if not measured or not any(launch.looks for launch in manifest.launches):
        return ""
    by = Counter(word for end in measured for word in end.disturbed)
    disturbed = sum(bool(end.disturbed) for end in measured)
    again = sum(end.again for end in measured)
    line = f"disturbed: {_share(disturbed, len(measured))} of the cases"
    if by:
        line += f" ({_causes(by, len(measured))})"
    return f"{line}; {counted(again, 'case')} measured again" if again else line


def of_training(run: TrainingRun) -> str:
    """What its ranks waited, and what else disturbed it; "" where that is next to nothing."""
    timed = [each for each in run.timed if each.waited]
    whole = sum(max(each.rank_seconds) for each in timed)
    waited = sum(max(each.waited or [0.0]) for each in timed)
    looks = run.end.looks if run.end else []
    said = []
    busy = "cores" in disturbed_by(looks)
    if busy and whole > 0 and waited / whole > WORTH_SAYING:
        said.append(f"a rank waited for a core {percent(waited / whole)} of the time")
    words = (word for look in looks for word in look.disturbed)
    by = Counter[Disturbance](word for word in words if word != "cores")
    if by and max(by.values()) > WORTH_SAYING * len(looks):
        said.append(f"of {counted(len(looks), 'look')} at the machine: {_causes(by, len(looks))}")
    return f"disturbed: {'; '.join(said)}" if said else ""


def _ordered(words: Iterable[Disturbance]) -> list[Disturbance]:
    found = set(words)
    return [word for word in DISTURBANCES if word in found]


def _causes(by: Counter[Disturbance], of: int) -> str:
    return ", ".join(f"{DISTURBANCES[word]} {_share(by[word], of)}" for word in _ordered(by))


def _share(part: int, of: int) -> str:
    return percent(part / of)
