"""Histories made by hand for the tests of drift: nights from 2026-01-01 on, every number chosen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
from tests.reports.pasts import past_night, past_point

from calib.reports.history.records import Acceptance, Past, PastCheck, PastNight, PastPoint

# of an iteration
SHARES = {"forward": 0.3, "backward": 0.4, "pack": 0.05, "exchange": 0.2, "update": 0.05}
CHECKS = (
    ("network", "allreduce, torch_mpi, node, p=2", ("64 KiB", "4 MiB")),
    ("kernels", "conv layers, p=2", ("first", "second", "third")),
    ("memory", "pack, p=1", ("1 MiB",)),
)
Factor = Callable[[int, str, str], float]  # of (night, what, which) -> of the seconds


def unchanged(night: int, what: str, which: str) -> float:
    """1."""
    return 1.0


def day(night: int) -> str:
    """2026-01-01."""
    return (datetime(2026, 1, 1, tzinfo=UTC) + timedelta(days=night)).date().isoformat()


def night(number: int, **more: Any) -> PastNight:
    """A night with its software, or what `more` says."""
    of = {"versions": {"torch": "2.12", "driver": "550"}, **more}
    return past_night(number, f"{day(number)}T02:00:00Z", **of)


def point(
    number: int, work: str, strategy: str, seconds: float, predicted: float = 1.0, **more: Any
) -> PastPoint:
    """A training of `seconds`, predicted to take `predicted`, its phases SHARES of a second each."""
    of = {
        "run_id": f"{number}-{work}",
        "memory_predicted_bytes": 1e6,
        "memory_measured_bytes": 10**6,
        "phases": {name: (share * predicted, share * seconds) for name, share in SHARES.items()},
        **more,
    }
    return past_point(number, strategy, predicted, seconds, work=work, **of)


def past(
    nights: int = 60,
    measured: Factor = unchanged,
    predicted: Callable[[int], float] = lambda night: 1.0,
    noise: float = 0.004,
    seed: int = 1,
    described: Callable[[int], dict[str, Any]] = lambda night: {},
    accepted: Sequence[Acceptance] = (),
    checks: bool = True,
) -> Past:
    """Two points of data and two of filter, and CHECKS, each night.

    `measured` says by what the seconds of a phase or check ("phase", name), ("check", its what), of
    the rest of an iteration, which is in no phase ("rest", ""), and bytes ("peak", strategy) grow.
    """
    random = np.random.default_rng(seed)
    points, found = [], []
    for number in range(nights):
        for work, strategy, base in (
            ("data a", "data", 1.0),
            ("data b", "data", 3.0),
            ("filter a", "filter", 1.2),
            ("filter b", "filter", 2.0),
        ):
            error = float(np.exp(noise * random.standard_normal()))
            phases = {
                name: (
                    share * base * predicted(number),
                    share * base * error * measured(number, "phase", name),
                )
                for name, share in SHARES.items()
            }
            total = sum(seconds for _, seconds in phases.values())
            points.append(
                point(
                    number,
                    work,
                    strategy,
                    total * measured(number, "rest", ""),
                    base * predicted(number),
                    phases=phases,
                    memory_measured_bytes=round(1e6 * base * measured(number, "peak", strategy)),
                )
            )
        for kind, what, cases in CHECKS if checks else ():
            for place, case in enumerate(cases):
                error = float(np.exp(noise * random.standard_normal()))
                seconds = (1 + place) * 1e-3
                factor = measured(number, "check", what)
                found.append(PastCheck(number, kind, what, case, seconds, seconds * error * factor))
    return Past([night(n, **described(n)) for n in range(nights)], points, found, accepted)


def since(first: int, factor: float, *which: tuple[str, str]) -> Factor:
    """What `which` names takes `factor` of the time from night `first` on."""
    return lambda night, what, name: factor if night >= first and (what, name) in which else 1.0
