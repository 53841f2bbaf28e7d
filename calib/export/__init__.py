"""Parameters in the file formats of other tools, one module per target (calib/export/target.py)."""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module
from typing import cast

from calib.export.target import Target
from calib.foundation.errors import InputError

# as --to has them -> the module
TARGETS = {
    "simgrid": "calib.export.simgrid.platform",
    "astra-sim": "calib.export.astra.files",
    "calculon": "calib.export.calculon",
    "nccl-tuner": "calib.export.nccl_tuner",
    "galvatron": "calib.export.galvatron.files",
    "flexflow": "calib.export.flexflow",
    "csv": "calib.export.csv_table",
    "python": "calib.export.numbers_json",
}


def target_named(name: str) -> Target:
    """The exporter of a target. Raises InputError with the known names."""
    name = name.lower()
    if name not in TARGETS:
        near = get_close_matches(name, TARGETS, 1, 0.5)
        meant = f"did you mean {near[0]}? " if near else ""
        raise InputError(f"unknown target {name!r}; {meant}known: {', '.join(TARGETS)}, or all")
    return cast("Target", import_module(TARGETS[name]))


__all__ = ("TARGETS", "target_named")
