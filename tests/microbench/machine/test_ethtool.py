"""Statistics of cards: the real ones of this machine, and names that drivers give to pauses."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from calib.microbench.machine.ethtool import pauses, statistics_of


@pytest.mark.parametrize(
    ("statistics", "frames"),
    [
        ({}, None),
        ({"rx0_packets": 5, "tx_kicks": 7}, None),  # virtio_net
        # mlx5: the link's and those of priorities; durations are in microseconds
        (
            {
                "rx_pause_ctrl_phy": 1,
                "tx_pause_ctrl_phy": 2,
                "rx_prio3_pause": 10,
                "tx_prio3_pause": 20,
                "rx_prio3_pause_duration": 999,
                "rx_prio3_pause_transition": 999,
                "tx_pause_storm_warning_events": 999,
            },
            33,
        ),
        ({"rx_flow_control_xoff": 4, "tx_flow_control_xoff": 5}, 9),  # igb, ixgbe
        ({"rx_pause_frames": 0, "tx_pause_frames": 0}, 0),
    ],
)
def test_pauses(statistics: dict[str, int], frames: int | None) -> None:
    assert pauses(statistics) == frames


def test_an_interface_that_is_not_there() -> None:
    assert statistics_of("nosuchcard0") == {}
    assert statistics_of("lo") == {}


@pytest.mark.skipif(not Path("/sys/class/net").exists(), reason="Linux's")
def test_the_cards_of_this_machine() -> None:
    """Names are the drivers'; what counts packets has as many as the kernel says, or none."""
    found = {name: statistics_of(name) for name in psutil.net_if_stats()}
    if not any(found.values()):
        pytest.skip("no interface of this machine has statistics of its own")
    for statistics in found.values():
        assert all(name and name.isprintable() and count >= 0 for name, count in statistics.items())
