"""Collectives that a job timed while it ran, beside those of a benchmark."""

from __future__ import annotations

import numpy as np

from calib.foundation.arrays import Mask
from calib.foundation.words import counted
from calib.microbench.importers.table import LACKS_RANKS, OF_RUN
from calib.microbench.records.samples import Samples

# what a law is of
OF_A_LAW = (
    "operation",
    "key",
    "mode",
    "library",
    "device",
    "level",
    "ranks",
    "nodes",
    "active_ranks",
)


def benchmarks_before_runs(rows: Samples) -> tuple[Samples, list[str]]:
    """The rows without those of a run where a benchmark measured the same law, and notes on the others.

    A call of a job has other work beside it, on the links as on the device, and times of both together
    would be of neither.

    Parameters
    ----------
    rows
        That may feed a parameter.

    Returns
    -------
    Samples
        The rows that are left.
    list of str
        That collectives are of a run, and how many were left out; nothing where none is of a run.
    """
    of_run = _marked(rows, OF_RUN)
    if not of_run.any():
        return rows, []
    law = rows.numbered("kind", *OF_A_LAW)
    doubled = of_run & np.isin(law, np.unique(law[~of_run]))
    kept = rows.where(~doubled)
    of_run, lacking = _marked(kept, OF_RUN), _marked(kept, LACKS_RANKS)
    notes = []
    if count := int(doubled.sum()):
        notes.append(
            f"{counted(count, 'row')} of a run left out: a benchmark measured the same collectives"
        )
    if count := int(of_run.sum()):
        names = ", ".join(kept.where(of_run).distinct("operation"))
        notes.append(
            f"{names}: {counted(count, 'row')} of a run (a training job), not of a benchmark: their "
            "times hold what the job did beside them"
        )
    if count := int(lacking.sum()):
        notes.append(f"of these, {count} lack the times of some ranks, and may hold waits for them")
    return kept, notes


def _marked(rows: Samples, word: str) -> Mask:
    return rows.mask("marks", lambda marks: word in marks.split(","))
