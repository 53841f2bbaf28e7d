"""Parameters + model + strategy -> time, memory and limits, before anyone has the machine.

from calib import oracle
oracle.project(ModelSpec.read(path), oracle.Division("data", p=64, batch=2048), parameters)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from calib.foundation.division import Division
    from calib.oracle.predict import project

__all__ = ["Division", "project"]


def __getattr__(name: str) -> Any:
    """Import the public names on first use, so that start-up stays short."""
    if name == "project":
        from calib.oracle.predict import project

        return project
    if name == "Division":
        from calib.foundation.division import Division

        return Division
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
