"""Rows of a disturbed machine -> the times that it takes undisturbed, by what was counted beside them.

A rank that waits for a core does nothing meanwhile, and the system counts how long. So a repetition in
which no rank waited is as on a quiet machine, and of one in which a rank did the time without the wait
is; of a long iteration beside a busy neighbour there are none of the first kind. What was predicted or
trained is not looked at.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from calib.fitting.waits_in_place import without_waits
from calib.foundation.arrays import Integers
from calib.foundation.words import counted, percent
from calib.microbench.records.manifest import CaseEnd
from calib.microbench.records.samples import OF_EACH_RANK, Samples
from calib.microbench.timing.repeat import CLEAN, FEWEST_REPETITIONS

# of its time, what a rank may have waited in a repetition whose rest still says something
MOST_WAITED = 0.6
# what rows are told apart by before it is asked whether enough of them were undisturbed
OF_A_MEDIAN = ("case_id", "operation", "key", "launch")


def undisturbed(rows: Samples, ends: Iterable[CaseEnd]) -> tuple[Samples, list[str]]:
    """The rows without what disturbed them, and notes on that.

    Threads of the ranks wait for one another, too, in training as when they are measured. So rows of
    cases beside which nobody else was seen on the cores stay as they are. Of the others: of a case in a
    launch with FEWEST_REPETITIONS in which no rank waited, those alone. Else all in which no rank waited
    for more than MOST_WAITED of the time, less what was waited: of work side by side by each rank, where
    ranks wait for one another by the rank that waited most, of iterations in place part by part
    (waits_in_place.py). Of a case that has none of these, all as they are.

    Parameters
    ----------
    rows
        That may feed a parameter, with `rank_waited` where the system counts.
    ends
        How their cases ended, with what disturbed them.

    Returns
    -------
    Samples
        Rows with the same columns; `seconds` and `rank_seconds` of some less what was waited.
    list of str
        A note where any were left out or lessened.
    """
    ranks, counted_ranks = rows.lengths("rank_seconds"), rows.lengths("rank_waited")
    known = (ranks == counted_ranks) & (ranks > 0)
    busy = {(end.case_id, end.started_unix_s) for end in ends if "cores" in end.disturbed}
    cases = rows.table["case_id"].to_pylist(), rows["started_unix_s"].tolist()
    known &= np.array([case in busy for case in zip(*cases, strict=True)], dtype=bool)
    if not known.any():
        return rows, []
    seconds, most = rows["seconds"], np.zeros(len(rows))
    waits = rows.where(known).flat("rank_waited")
    most[known] = np.maximum.reduceat(waits, _starts(ranks[known]))
    share = np.divide(most, seconds, out=np.zeros(len(rows)), where=seconds > 0)
    clean, some = share <= CLEAN, share <= MOST_WAITED
    if clean.all():
        return rows, []
    _, group = np.unique(rows.numbered(*OF_A_MEDIAN), return_inverse=True)
    enough = np.bincount(group, weights=clean)[group] >= FEWEST_REPETITIONS
    usable = np.bincount(group, weights=some)[group] > 0
    keep = np.where(enough, clean, some | ~usable)
    less = ~enough & usable & keep & ~clean
    # what each rank's time is lessened by
    of_row, times = np.repeat(np.arange(len(rows)), ranks), rows.flat("rank_seconds")
    alone = rows.mask("kind", OF_EACH_RANK.__contains__)
    by = most[of_row]
    own = known[of_row] & alone[of_row]
    by[own] = waits[alone[known].repeat(ranks[known])]
    times = np.where(less[of_row], np.maximum(times - by, 0.0), times)
    iterations = np.flatnonzero(less & rows.mask("kind", "in_place".__eq__))
    first = _starts(ranks)
    for place, net in without_waits(rows.where(np.isin(np.arange(len(rows)), iterations))).items():
        row = iterations[place]
        times[first[row] : first[row] + len(net)] = net
    seconds[ranks > 0] = np.where(
        less[ranks > 0], np.maximum.reduceat(times, _starts(ranks[ranks > 0])), seconds[ranks > 0]
    )
    lost, lessened = counted(int((~keep).sum()), "row"), counted(int(less.sum()), "row")
    note = (
        f"{percent(float((~clean).mean()))} of the repetitions waited for cores that other processes "
        f"had: {lost} left out, {lessened} less what was waited"
    )
    return rows.with_times(times, seconds).where(keep), [note]


def _starts(lengths: Integers) -> Integers:
    """Where lists of these lengths begin, one after another; of none that is empty."""
    starts: Integers = np.cumsum(lengths) - lengths
    return starts
