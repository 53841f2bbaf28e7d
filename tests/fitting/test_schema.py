"""The published JSON Schema is the one that the program checks by."""

from __future__ import annotations

from pathlib import Path

from calib import fitting
from calib.fitting.parameters.file import json_schema


def test_the_published_schema_is_current() -> None:
    published = Path(fitting.__path__[0]) / "parameters.schema.json"
    assert published.read_text() == json_schema(), (
        "fitting/parameters/file.py changed: raise FORMAT_VERSION if old files no longer read, then "
        "write json_schema() to fitting/parameters/file.schema.json"
    )
