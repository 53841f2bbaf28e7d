"""The devices that ranks compute on, one file each, behind one protocol (microbench/device.py)."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from calib.foundation.errors import InputError

if TYPE_CHECKING:
    import torch

    from calib.microbench.control import Control
    from calib.microbench.device import Device

# kind -> module that has `take(control)`
DEVICES = {"cpu": "calib.microbench.devices.cpu", "cuda": "calib.microbench.devices.cuda"}
_TAKEN: dict[str, Device] = {}


def take_device(kind: str, control: Control) -> Device:
    """This rank's device, which it keeps; collective over `control` the first time.

    Raises MachineError on all ranks where one of them has no such device, InputError for another kind.
    """
    if kind not in DEVICES:
        raise InputError(f"unknown device {kind!r}; known: {', '.join(DEVICES)}")
    if kind not in _TAKEN:
        _TAKEN[kind] = import_module(DEVICES[kind]).take(control)
    return _TAKEN[kind]


def device_of(tensors: torch.device) -> Device:
    """The device that has these tensors, in a program that is not ours: nothing is set there."""
    made: Device = import_module(DEVICES.get(tensors.type, DEVICES["cpu"])).of(tensors)
    return made
