"""Points by case: one row for all runs of a case, over all nights."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from calib.foundation.statistics import median
from calib.reports.scoring.accuracy import Accuracy


@dataclass(frozen=True)
class CaseRuns:
    """A case: its newest run, and over all its runs the number, the median and worst accuracy.

    The accuracies are None where nothing was measured in any of them.
    """

    newest: Accuracy
    runs: int
    median: float | None
    worst: float | None


def by_case(accuracies: Iterable[Accuracy]) -> list[CaseRuns]:
    """The cases in the order in which they first appear; of runs with equal starts the last is newest.

    A case is what `Accuracy.work` tells apart, and the strategy also on one rank; runs of one machine
    with other software are of one case.
    """
    groups: dict[tuple[object, ...], list[Accuracy]] = {}
    for of in accuracies:
        groups.setdefault((of.strategy, of.layout, *of.work[:-1]), []).append(of)
    found = []
    for runs in groups.values():
        values = [run.total.accuracy for run in runs if run.total.accuracy is not None]
        newest = max(enumerate(runs), key=lambda item: (item[1].started, item[0]))[1]
        found.append(
            CaseRuns(
                newest=newest,
                runs=len(runs),
                median=median(values) if values else None,
                worst=min(values, default=None),
            )
        )
    return found
