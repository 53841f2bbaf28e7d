"""A PostgreSQL server for the tests of the history, started once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.helpers import postgres


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    """The URL of a PostgreSQL server; skips, with the reason, where none can be started."""
    reason = postgres.why_not()
    if reason:
        pytest.skip(reason)
    with postgres.server() as url:
        yield url
