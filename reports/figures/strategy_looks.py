"""Colour, dash and marker of each strategy in figures."""

from __future__ import annotations

from collections.abc import Sequence

from calib.foundation.division import STRATEGIES

# at least 3:1 on the light and on the dark panel
COLOURS = (
    "#3b82d0",
    "#c76a14",
    "#2f8f63",
    "#c24a8a",
    "#8f7d00",
    "#7f68d0",
    "#1f8a9c",
    "#d0483e",
    "#97613f",
)
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot", "2px,2px,8px,2px")
MARKERS = (
    "circle",
    "square",
    "diamond",
    "triangle-up",
    "cross",
    "x",
    "triangle-down",
    "star",
    "hexagon",
)
MEAN_COLOUR = "#7d848d"


def rank_of(strategy: str) -> int:
    """Its place among the known strategies; the others come last."""
    return list(STRATEGIES).index(strategy) if strategy in STRATEGIES else len(STRATEGIES)


def look_of(name: str, names: Sequence[str]) -> int:
    """A known strategy looks the same in every page, whatever else was run."""
    return rank_of(name) + (0 if name in STRATEGIES else names.index(name))
