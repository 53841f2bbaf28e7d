"""Parameters in the file formats of other tools, one module per target (calib/export/target.py)."""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module
from typing import cast

from calib.export.target import Target
from calib.foundation.errors import InputError

# names as --to has them; the module is the name with underscores
TARGETS = (
    "simgrid",
    "astra-sim",
    "calculon",
    "nccl-tuner",
    "galvatron",
    "flexflow",
    "csv",
    "python",
)
# `csv` is a module of the standard library, and `python` no name for what it writes
MODULES = {"csv": "tidy_csv", "python": "numbers_json"}


def target_named(name: str) -> Target:
    """The exporter of a target. Raises InputError with the known names."""
    name = name.lower()
    if name not in TARGETS:
        near = get_close_matches(name, TARGETS, 1, 0.5)
        meant = f"did you mean {near[0]}? " if near else ""
        raise InputError(f"unknown target {name!r}; {meant}known: {', '.join(TARGETS)}, or all")
    module = MODULES.get(name, name.replace("-", "_"))
    return cast("Target", import_module(f"{__name__}.{module}"))


__all__ = ("TARGETS", "target_named")
