"""Bridges that redirect, in made-up trees of sysfs."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.helpers.sysfs import ETHERNET, GPU, Tree, configuration, two_sockets

from calib.microbench.machine.acs import redirecting_bridges, redirects


def test_the_bit_of_the_capability() -> None:
    assert redirects(configuration(redirect=True)) and not redirects(configuration(redirect=False))
    assert not redirects(configuration(redirect=True, length=64)), (
        "all that others than root may read"
    )
    assert not redirects(configuration(redirect=True, length=256)), (
        "a device without the extended part"
    )
    assert not redirects(b"") and not redirects(bytes(4096))


def test_capabilities_that_go_round_in_circles() -> None:
    space = bytearray(4096)
    space[0x100:0x104] = (0x000B | 1 << 16 | 0x100 << 20).to_bytes(4, "little")
    assert not redirects(bytes(space))
    space[0x100:0x104] = b"\xff" * 4  # a device that does not answer
    assert not redirects(bytes(space))


@pytest.mark.parametrize(("redirect", "readable"), [(True, True), (False, True), (True, False)])
def test_switches_between_gpus_and_cards(tmp_path: Path, redirect: bool, readable: bool) -> None:
    two_sockets(tmp_path, redirect, readable)
    downstream = [f"0000:{bus}:0{slot}.0" for bus in ("12", "a2") for slot in range(4)]
    assert redirecting_bridges(tmp_path) == (downstream if redirect and readable else [])


def test_ports_of_the_cpu_redirect_nothing_that_did_not_pass_it(tmp_path: Path) -> None:
    """A GPU and a card on root ports of their own; and cards behind a switch without a GPU."""
    tree = Tree(tmp_path)
    for bus, kind in (("01", GPU), ("02", ETHERNET)):
        tree.device(f"0000:00:{bus}.0", redirect=True)
        tree.device(f"0000:00:{bus}.0", f"0000:{bus}:00.0", kind=kind, ids=("0x10de", "0x1"))
    switch = ("0000:00:03.0", "0000:10:00.0")
    tree.device(switch[0], redirect=True)
    tree.device(*switch)
    for slot in (0, 1):
        down = (*switch, f"0000:11:0{slot}.0")
        tree.device(*down, redirect=True)
        tree.device(*down, f"0000:{12 + slot}:00.0", kind=ETHERNET)
    assert redirecting_bridges(tmp_path) == []


def test_a_host_without_pci(tmp_path: Path) -> None:
    assert redirecting_bridges(tmp_path) == []
