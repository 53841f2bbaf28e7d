"""The device that a rank computes on: its CPU, or a GPU, whose module imports PyTorch."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from calib.foundation.errors import InputError
from calib.microbench.device import CPU, Device

if TYPE_CHECKING:
    import torch

    from calib.microbench.control import Control

# kind -> module that has `take(control)` and `of(tensors)`
GPUS = {"cuda": "calib.microbench.devices.cuda"}
_TAKEN: dict[str, Device] = {"cpu": CPU}


def take_device(kind: str, control: Control) -> Device:
    """This rank's device, which it keeps; collective over `control` the first time.

    Raises MachineError on all ranks where one of them has no such device, InputError for another kind.
    """
    if kind not in ("cpu", *GPUS):
        raise InputError(f"unknown device {kind!r}; known: cpu, {', '.join(GPUS)}")
    if kind not in _TAKEN:
        _TAKEN[kind] = import_module(GPUS[kind]).take(control)
    return _TAKEN[kind]


def device_of(tensors: torch.device) -> Device:
    """The device that has these tensors, in a program that is not ours: nothing is set there.

    The CPU also for one that calib does not know.
    """
    if tensors.type not in GPUS:
        return CPU
    made: Device = import_module(GPUS[tensors.type]).of(tensors)
    return made
