"""What devices copy around the messages between two layers: boxes packed, and what came put together.

Of training (training/plans/): a device packs what it sends unless that is all it has, and joins what
came with what it had; in the backward it packs gradients of what came, and adds or joins those of what
it gave. Filling at the border of an image is left out.
"""

from __future__ import annotations

import numpy as np

from calib.search.layerwise.layouts import Layout
from calib.search.layerwise.moving import Floats, cut_dimensions, given_to_all, padded
from calib.search.request import Look, never


def copied(own: Layout, need: Layout, look: Look = never) -> tuple[Floats, Floats]:
    """Items that the busiest device copies, forward and backward: [producers', consumers']."""
    cut, scale = cut_dimensions(own, need)
    shape = (len(own.lo), len(need.lo))
    there, back = np.zeros(shape), np.zeros(shape)
    own_lo, own_hi, need_lo, need_hi = (
        a[:, cut] for a in (own.lo, own.hi, need.lo, need.hi)
    )  # [configuration, dimension, device]
    needed = {d: padded(need, d) for d in cut[1:]}
    wanted = np.prod(need_hi - need_lo, axis=1, dtype=np.float64)
    has = np.prod(own_hi - own_lo, axis=1, dtype=np.float64)
    for i in range(shape[0]):
        look()
        common = np.minimum(own_hi[i], need_hi) - np.maximum(own_lo[i], need_lo)
        here = np.prod(np.maximum(common, 0), axis=1, dtype=np.float64)
        comes, leaves = wanted - here, given_to_all(own, needed, need.times, i) - here
        some, gives = comes > 0, leaves > 0
        packed = np.where(gives & (leaves < has[i]), leaves, 0.0)
        there[i] = (np.where(some, wanted, 0.0) + packed).max(1)
        packed = np.where(some & (comes < wanted), comes, 0.0)
        taken = np.where(gives, np.where(here < has[i], has[i], leaves), 0.0)
        back[i] = (packed + taken).max(1)
    return there * scale, back * scale
