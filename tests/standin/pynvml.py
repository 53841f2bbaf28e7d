"""What is imported as pynvml under the stand-in."""

from __future__ import annotations

from tests.helpers.nvml import nvml
from tests.standin.boards import BOARDS

globals().update(
    {name: value for name, value in vars(nvml(BOARDS)).items() if not name.startswith("__")}
)
