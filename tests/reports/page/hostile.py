"""Text that must stay text on a page."""

from __future__ import annotations

from tests.helpers import filled as f

from calib.fitting.parameters.file import Parameters

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"


def hostile() -> Parameters:
    """Names that are tags."""
    return f.filled(
        device=HOSTILE,
        collectives=[f.collective(operation=HOSTILE)],
        layers=[f.layer(kind=HOSTILE)],
        work=[f.work(kind=HOSTILE)],
        contention=[f.contention(library=HOSTILE)],
        partitions=[f.partitions(library=HOSTILE)],
    )
