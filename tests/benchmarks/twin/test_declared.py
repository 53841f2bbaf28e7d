"""What the twin's platforms declare, against every collective that was simulated on them."""

from __future__ import annotations

import pytest
from benchmarks.twin.platforms import PER_NODE, PLATFORMS
from benchmarks.twin.tables import read

from calib.fitting.parameters.algorithms import GroupShape
from calib.fitting.sections.network import network


@pytest.mark.parametrize("name", PLATFORMS)
def test_nothing_is_faster_than_the_links_that_are_declared(name: str) -> None:
    declared, _ = network(PLATFORMS[name].cluster, [])
    rows = [row for row in read() if row.platform == name and row.nodes > 1]
    assert rows and declared.link_bandwidth
    for row in rows:
        shape = GroupShape(row.ranks, row.nodes, min(-(-row.ranks // row.nodes), PER_NODE))
        least = declared.capacity.least(row.operation, shape, row.nbytes, True)
        assert least.seconds <= row.microseconds * 1e-6, (row, least)
