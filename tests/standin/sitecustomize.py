"""Puts a stand-in for GPUs into every Python whose PYTHONPATH begins with this folder.

The program under test is not changed and does not know: when it has imported its module for CUDA, the
class in it becomes the stand-in's (gpu.py). pynvml.py beside this file answers for NVML.
"""

from __future__ import annotations

import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

sys.path.append(str(Path(__file__).parents[2]))  # tests.helpers

CUDA, DOCTOR = "calib.microbench.devices.cuda", "calib.microbench.doctor"


def equip(module: ModuleType) -> None:
    """What the stand-in changes in a module of the program."""
    if module.__name__ == DOCTOR:
        module.__dict__["torch_cuda"] = lambda: "13.0"  # this machine's PyTorch has none
        return
    from tests.standin.gpu import StandIn

    module.__dict__["CudaDevice"] = StandIn


class Equipping(Loader):
    """Loads a module as it would be loaded, and equips it."""

    def __init__(self, of: Any) -> None:
        self._of = of

    def create_module(self, spec: Any) -> Any:
        return self._of.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._of.exec_module(module)
        equip(module)


class Finder(MetaPathFinder):
    """Finds the modules that are equipped."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name not in (CUDA, DOCTOR):
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = Equipping(spec.loader)
        return spec


sys.meta_path.insert(0, Finder())
