"""Searches: how long the elimination takes by what it replaces.

Ratios of one run: of a pass over the tables that it reads, and of the same search on fewer devices.
"""

from __future__ import annotations

from time import process_time

from calib.oracle.costs.machine import Machine
from calib.search.layerwise.elimination import solve
from calib.search.layerwise.search import tables_of
from calib.search.layerwise.tables import Pricing
from calib.search.nominal import nominal
from calib.search.request import Devices, SearchRequest
from calib.training.models.specs import spec

MODEL = "inception-v3"
CLUSTERS = (Devices(1, 4), Devices(4, 4))
PER_DEVICE = 32
REPEATS = 3


def layerwise() -> list[str]:
    """Layer-wise parallelism: tables and search of Inception-v3 on 4 and on 16 devices."""
    lines, machine, before = [], Machine(nominal("p100")), 0.0
    for devices in CLUSTERS:
        request = SearchRequest(
            spec(MODEL), devices, machine, PER_DEVICE * devices.p, "elimination"
        )
        start = process_time()
        made = tables_of(request, Pricing(request))
        built, times = process_time() - start, []
        for _ in range(REPEATS):
            start = process_time()
            solve(made.costs)
            times.append(process_time() - start)
        took = min(times)
        more = f", {took / before:.1f} times that on fewer" if before else ""
        lines.append(
            f"{MODEL} on {devices.p} devices: search {took:.4f} s, {took / built:.4f} of its tables"
            f"{more}"
        )
        before = took
    return lines
