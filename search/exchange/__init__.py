"""P3 (Jayarajan et al., 2019): gradients in slices, sent in the order that the next forward needs.

Data parallelism whose exchange goes on behind the backward and the next forward. Its network is
simulated (simulation.py) on calibrated times of layers and slices (work.py, network.py).
"""

from __future__ import annotations

from calib.search.exchange.profile import profile_of
from calib.search.exchange.search import find
from calib.search.request import Space

SPACE = Space(
    name="exchange",
    about="P3: slices of gradients by priority, behind the backward and the next forward",
    methods={
        "priority": "slices, those that the next forward needs first go first (P3)",
        "fifo": "whole tensors, in the order in which the backward makes them",
        "order": "whole tensors, those that the next forward needs first go first",
    },
    find=find,
    options={
        "slice": "items of a slice (the paper: 50000); default the best of `sizes`",
        "sizes": "items of slices to try, as 1000,50000; default 1, 2 and 5 times powers of ten",
        "bandwidths": "factors on the bandwidth to compare at; default 0.1 to 10",
        "architecture": "allreduce (a ring over all devices; default) or server (one per machine)",
    },
    model_of=profile_of,
)
