"""How a program is started on stand-in GPUs."""

from __future__ import annotations

import os
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def environment(**more: str) -> dict[str, str]:
    """The environment of a program that is to find stand-in GPUs."""
    path = os.pathsep.join([str(HERE), str(ROOT / "src"), str(ROOT)])
    inherited = {name: text for name, text in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    return {**inherited, "PYTHONPATH": path, **more}
