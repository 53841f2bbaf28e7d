"""Which phase, or layer, of an iteration lost the time that a rank waited for a core.

What is counted is what a rank waited in a whole iteration, shared out to its parts by their time. But
another program has the core for some milliseconds at once: it hits one part, and that is as much longer
in this iteration than it is in others. So what was waited is taken off where a part took longer than
it mostly does, and only the rest of it by time. In the calls in which ranks meet a rank waits for the
others: there it loses what these waited.
"""

from __future__ import annotations

import numpy as np

from calib.foundation.arrays import Floats, Mask
from calib.microbench.cases import BLOCKING, MET, OVERLAPPED
from calib.microbench.records.samples import Samples

ROUNDS = 5  # of parts and what they mostly take in turn; after three little moves
USUALLY = 0.25  # the quantile of a part's times that it mostly takes, at first
# whole iterations: each rank's is as long as the one that lost most
WHOLE = (BLOCKING, OVERLAPPED)


def without_waits(rows: Samples) -> dict[int, Floats]:
    """The times [ranks] of rows of models in place without what was waited, by the row's place.

    Parameters
    ----------
    rows
        Of one kind, "in_place", with `rank_waited` for every time. Rows of one case, launch and
        repetition are the parts of one iteration; layers are timed in other ones than phases.

    Returns
    -------
    dict
        Seconds; without rows of iterations whose parts have times of different ranks, as those of a
        pipeline's layers do.
    """
    found: dict[int, Floats] = {}
    hooked = rows.mask("operation", lambda name: name.startswith(("layer_", "loss")))
    group = 2 * rows.numbered("case_id", "launch") + hooked
    ranks = rows.lengths("rank_seconds")
    starts = np.cumsum(ranks) - ranks
    times, waits = rows.flat("rank_seconds"), rows.flat("rank_waited")
    part, repetition = rows.numbered("operation", "key"), rows["repetition"]
    operations = rows.table["operation"].to_pylist()
    for number in np.unique(group):
        places = np.flatnonzero(group == number)
        p = int(ranks[places[0]])
        if (ranks[places] != p).any():
            continue
        columns, column = np.unique(part[places], return_inverse=True)
        lines, line = np.unique(repetition[places], return_inverse=True)
        shape = len(lines), len(columns), p
        t, w = np.full(shape, np.nan), np.zeros(shape)
        at = starts[places][:, None] + np.arange(p)
        t[line, column], w[line, column] = times[at], waits[at]
        names = dict(zip(column.tolist(), (operations[place] for place in places), strict=True))
        met = np.array([names[k] in MET for k in range(len(columns))])
        if any(name in WHOLE for name in names.values()):
            net = t - w.max(axis=2, keepdims=True)
            side = [k for k, name in names.items() if name not in WHOLE]
            net[:, side] = (t - w)[:, side]
        else:
            net = _iterations(t, w.sum(axis=1), met)
        found |= dict(zip(places.tolist(), np.maximum(net, 0.0)[line, column], strict=True))
    return found


def _iterations(t: Floats, waited: Floats, met: Mask) -> Floats:
    """Times [n, parts, ranks] without what each rank `waited` [n, ranks]; in parts `met` the others."""
    net, p = t.copy(), t.shape[2]
    for rank in range(p):
        net[:, ~met, rank] = attributed(t[:, ~met, rank], waited[:, rank])
        if met.any() and p > 1:
            others = np.delete(waited, rank, axis=1).max(axis=1)
            net[:, met, rank] = attributed(t[:, met, rank], others, all_of_it=False)
    return net


def attributed(t: Floats, waited: Floats, all_of_it: bool = True) -> Floats:
    """Times [n, parts], NaN where there is none, of iterations without what was `waited` [n] in each.

    What no part took longer than mostly is taken off all by their time, unless not `all_of_it`.
    """
    net, known = t, np.nan_to_num(t)
    all_s = known.sum(axis=1)
    usual = np.nanquantile(t, USUALLY if all_of_it else 0.0, axis=0)
    for _ in range(ROUNDS):
        longer = np.clip(np.nan_to_num(t - usual), 0.0, None)
        whole = longer.sum(axis=1)
        share = np.minimum(1.0, np.divide(waited, whole, out=np.zeros_like(whole), where=whole > 0))
        net = t - longer * share[:, None]
        if all_of_it:
            rest = waited - share * whole
            part = np.divide(rest, all_s, out=np.zeros_like(rest), where=all_s > 0)
            net = net - known * np.clip(part, 0.0, 1.0)[:, None]
        usual = np.nanmedian(net, axis=0)
    return net
