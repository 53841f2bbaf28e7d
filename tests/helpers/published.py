"""The published logs and tables of ../shared/data, which are never copied into the project."""

from __future__ import annotations

from pathlib import Path

import pytest

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
needs_data = pytest.mark.skipif(
    not DATA.is_dir(), reason=f"{DATA} is not here: published data are not copied into the project"
)
