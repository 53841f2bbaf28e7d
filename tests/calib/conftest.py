"""What tests of several verbs start from."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.calib.machines import NET, full_machine


@pytest.fixture(autouse=True, scope="module")
def _on_cpus() -> Iterator[None]:
    """Verbs take the CPU where nobody says, also on a machine with GPUs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUDA_VISIBLE_DEVICES", "")
        yield


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A machine of nodes of 2 ranks and a net that all but the spatial strategies can divide."""
    full_machine().write(tmp_path / "parameters.json")
    NET.write(tmp_path / "model.json")
    return tmp_path
