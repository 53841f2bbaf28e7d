"""A network that spatial can cut."""

from __future__ import annotations

from tests.oracle.simulated import Network, network


def fresh() -> Network:
    """One that no other test has seen."""
    return network([8, 12], 8, [10, 6], channels=4)


NET = fresh()
