"""What a link that has rested takes at once, from messages after work beside the same in a row.

A shaper of a cloud or a switch lets a burst pass before its rate holds (a token bucket), and a deep
queue takes one before the sender must wait. In a loop of messages either is full; in an iteration ranks
compute meanwhile. The messages after work are those from cold caches: between two of them a rank goes
through memory for tens of milliseconds (microbench/timing/caches.py). Both ranks send at once: of one
way at a time each rests while the answer comes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from scipy.optimize import minimize_scalar, nnls

from calib.fitting.parameters.collectives import Burst, CollectiveFit
from calib.fitting.sections.collective_rows import usual
from calib.foundation.arrays import Floats
from calib.foundation.records import Estimate
from calib.microbench.records.samples import Samples

BOTH_WAYS = "p2p_both"
BOOTSTRAPS = 100
FEWEST_SIZES = 4  # for three numbers
# of a message's time: less may be the caches
LEAST_SAVED = 0.1


def with_bursts(fits: Sequence[CollectiveFit], samples: Samples, seed: int) -> list[CollectiveFit]:
    """The fits, with the burst of messages both ways that were measured after work, too."""
    cold = usual(samples).where(groups=1, cold=True, operation=BOTH_WAYS)
    return [
        fit.model_copy(update={"burst": burst}) if (burst := _burst(fit, cold, seed)) else fit
        for fit in fits
    ]


def _burst(fit: CollectiveFit, cold: Samples, seed: int) -> Burst | None:
    """None where nothing was measured, or nothing passes at once."""
    if fit.operation != BOTH_WAYS or fit.level == "node":
        return None
    rows = cold.where(library=fit.library, device=fit.device, level=fit.level)
    times = {
        int(nbytes): (of["seconds"], of["launch"])
        for (nbytes,), of in sorted(rows.groups("nbytes").items())
    }
    if len(times) < FEWEST_SIZES:
        return None
    sizes = np.array(list(times), dtype=float)
    in_a_row = np.array([fit.seconds(nbytes) for nbytes in times])
    beta = fit.beta_s_per_byte.value
    measured = _medians([seconds for seconds, _ in times.values()])
    nbytes, share = bucket(sizes, in_a_row, measured, beta)
    rng = np.random.default_rng(seed)
    drawn = [
        bucket(sizes, in_a_row, _medians([_drawn(rng, *of) for of in times.values()]), beta)
        for _ in range(BOOTSTRAPS)
    ]
    low, high = np.quantile([size for size, _ in drawn], (0.025, 0.975))
    surely = np.quantile([size * part for size, part in drawn], 0.025)
    saved = share * beta * np.minimum(sizes, nbytes) / in_a_row
    if surely <= 0 or saved.max() < LEAST_SAVED:
        return None
    return Burst(nbytes=Estimate.around(nbytes, float(low), float(high)), share=share)


def bucket(sizes: Floats, in_a_row: Floats, after_work: Floats, beta: float) -> tuple[float, float]:
    """(bytes, share) of after_work = in_a_row + cold - share beta min(m, bytes), cold >= 0.

    By least relative squares; all are of `sizes` [n], in B and s. Cold code and caches cost every
    message as much, which is no part of a burst. Bytes are at most the largest size: where even that
    passes at once, they are at least as many.
    """
    saved, cold = 1.0 - after_work / in_a_row, -1.0 / in_a_row

    def share_of(nbytes: float) -> tuple[float, float]:
        x = beta * np.minimum(sizes, nbytes) / in_a_row
        (share, _), loss = nnls(np.stack([x, cold], axis=1), saved)
        if share > 1:
            share, loss = 1.0, nnls(cold[:, None], saved - x)[1]
        return float(share), float(loss)

    # the loss has a kink at each size: a minimum between every two of them
    borders = np.log(np.concatenate(([sizes[0] / 2.0], sizes)))
    found = [
        minimize_scalar(
            lambda x: share_of(float(np.exp(x)))[1],
            bounds=ends,
            method="bounded",
            options={"xatol": 1e-3},
        )
        for ends in pairwise(borders)
    ]
    best = min(found, key=lambda one: float(one.fun))
    nbytes = float(np.exp(best.x))
    return nbytes, share_of(nbytes)[0]


def _medians(times: Sequence[Floats]) -> Floats:
    return np.array([np.median(of) for of in times])


def _drawn(rng: np.random.Generator, seconds: Floats, launches: Floats) -> Floats:
    """As many repetitions again, drawn from those of each launch."""
    return np.concatenate(
        [rng.choice(of, len(of)) for of in (seconds[launches == n] for n in np.unique(launches))]
    )
