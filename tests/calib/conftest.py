"""What tests of several verbs start from."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.calib.machines import NET, full_machine


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A machine of nodes of 2 ranks and a net that all but the spatial strategies can divide."""
    full_machine().write(tmp_path / "parameters.json")
    NET.write(tmp_path / "model.json")
    return tmp_path
