"""Findings: everything a report says. Writers and pages take nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from calib.reports.drift.records import Drift
from calib.reports.drift.verdict import Verdict
from calib.reports.history.records import Past
from calib.reports.night import Check
from calib.reports.scoring.accuracy import Accuracy, Missing
from calib.reports.scoring.causes import ErrorCause
from calib.reports.scoring.choice import StrategyChoices
from calib.reports.scoring.paper import PaperRow
from calib.reports.scoring.summary import Summary


@dataclass(frozen=True)
class Findings:
    """What a report of one or several run directories says.

    `accuracies` are of all the runs, in order of start; `missing` what was planned and is not there
    or not scored. `past` is the history of the machine, this report's own nights included; without
    one, there is no `drift` and no `verdict`.
    """

    runs: Sequence[str]
    accuracies: Sequence[Accuracy]
    summary: Summary
    missing: Sequence[Missing] = ()
    checks: Sequence[Check] = ()
    causes: Sequence[ErrorCause] = ()
    choices: StrategyChoices | None = None
    paper: Sequence[PaperRow] = ()
    past: Past | None = None
    drift: Drift | None = None
    verdict: Verdict | None = None
    notes: Sequence[str] = field(default_factory=tuple)
