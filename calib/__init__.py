"""calib: measure a machine, fit its parameters, predict training, run it, report how right it was."""

from __future__ import annotations

TYPE_CHECKING = False  # that of typing takes half the time until signals are heard (calib/cli.py)
if TYPE_CHECKING:
    from typing import Any

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """What a user's program calls, imported when it is used: it loads PyTorch, or pandas."""
    if name in ("calib_recorder", "recorder"):
        from calib.training.recorder.recorder import calib_recorder

        return calib_recorder
    if name == "collective":
        from calib.notebook_collectives import collective

        return collective
    if name == "open_run":
        from calib.notebook import open_run

        return open_run
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
