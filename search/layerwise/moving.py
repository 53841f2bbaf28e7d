"""t_X: what moves between two layers cut in different ways, and how long it takes.

Assumptions: every item has one owner, which sends it to each device that needs it and lacks it; nothing
else is sent. All devices send and receive at once, in both directions of their links. A device's own
messages share its link, separately inside its node and between nodes: so on each of the two levels the
busiest device counts, by the larger of what comes and what leaves, as one message of that size; first
one level, then the other. In the backward the gradients go the same way back, where somebody needs them,
and take as long. Reading the model's input costs nothing.

Copies around the messages are those of training (training/plans/): a device packs what it sends unless
that is all it has, and joins what came with what it had; in the backward it packs gradients of what
came, and adds or joins those of what it gave. Padding at the border of an image is left out.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calib.foundation.arrays import Floats
from calib.search.layerwise.layouts import BoxLayout
from calib.search.request import Devices, Look, never


def busiest(
    own: BoxLayout, need: BoxLayout, devices: Devices, look: Look = never
) -> tuple[Floats, Floats]:
    """Items at the busiest device inside its node, and between nodes.

    By the configurations of the layer that owns the tensor and of the one that reads it.
    """
    nodes, each = devices.nodes, devices.per_node
    cut, scale = cut_dimensions(own, need)
    shape = (len(own.lo), len(need.lo))
    within, between = np.zeros(shape), np.zeros(shape)
    # [configuration, dimension, node, device of the node]
    own_lo, own_hi, need_lo, need_hi = (
        a[:, cut].reshape(len(a), len(cut), nodes, each) for a in (own.lo, own.hi, need.lo, need.hi)
    )
    needed = {d: padded(need, d) for d in cut[1:]} if nodes > 1 else {}
    wanted = np.prod(need_hi - need_lo, axis=1, dtype=np.float64)
    for i in range(shape[0]):
        look()
        shared = np.ones((shape[1], nodes, each, each))  # [.., owner, reader]
        for d in range(len(cut)):
            top = np.minimum(own_hi[i, d, :, :, None], need_hi[:, d, :, None, :])
            top -= np.maximum(own_lo[i, d, :, :, None], need_lo[:, d, :, None, :])
            shared *= np.maximum(top, 0, out=top)
        there = np.diagonal(shared, axis1=2, axis2=3)
        leaves, comes = shared.sum(3) - there, shared.sum(2) - there
        within[i] = np.maximum(leaves, comes).max((1, 2))
        if nodes > 1:
            given = given_to_all(own, needed, need.times, i).reshape(wanted.shape) - there - leaves
            between[i] = np.maximum(given, wanted - there - comes).max((1, 2))
    return within * scale, between * scale


def cut_dimensions(own: BoxLayout, need: BoxLayout) -> tuple[list[int], float]:
    """The dimensions that are cut on either side, always samples, and the items along the others."""
    cut = [0]
    for d, length in enumerate(own.lengths[1:], 1):
        whole = all(
            len(first) == 1 and (first[0], end[0]) == (0, length)
            for side in (own, need)
            for first, end in {id(r[d]): r[d] for r in side.ranges}.values()
        )
        if not whole:
            cut.append(d)
    others = [length for d, length in enumerate(own.lengths) if d not in cut]
    return cut, float(math.prod(others))


def padded(need: BoxLayout, d: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """First and end of the ranges along a dimension by configuration, padded with empty ones."""
    most = max(len(of[d][0]) for of in need.ranges)
    first, end = (np.zeros((len(need.ranges), most), np.int64) for _ in range(2))
    for c, of in enumerate(need.ranges):
        n = len(of[d][0])
        first[c, :n], end[c, :n] = of[d]
    return first, end


def given_to_all(
    own: BoxLayout, needed: dict[int, tuple[Any, Any]], times: Floats, i: int
) -> Floats:
    """What all readers together need of what each device owns: [configurations of readers, devices].

    The sum over readers of products of overlaps is the product of sums along each dimension. Along the
    samples the readers' parts make the whole batch, so the sum is what the device has.
    """
    lengths = (own.hi[i, 0] - own.lo[i, 0]).astype(np.float64)
    given = times[:, None] * lengths[None, :]
    for d, (lo, hi) in needed.items():
        first, end = own.ranges[i][d]
        top = np.minimum(end[:, None, None], hi) - np.maximum(first[:, None, None], lo)
        given *= np.maximum(top, 0).sum(2)[own.index[i, d]].T
    found: Floats = given
    return found


def copied(own: BoxLayout, need: BoxLayout, look: Look = never) -> tuple[Floats, Floats]:
    """Items that the busiest device copies, forward and backward, by the configurations of both."""
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
