"""What counts as a disturbance: the one place with its thresholds."""

from __future__ import annotations

from collections.abc import Sequence

from calib.foundation.statistics import median
from calib.microbench.records.looks import DISTURBANCES, Disturbance, Look

# shares of the time: an idle Linux takes 0.0 to 0.5% for its own work
WAITED = 0.02
OTHERS = 0.05
STOLEN = 0.02
# times the usual time of a reference, over the last LATEST looks: one alone varies by a half where the
# hypervisor has neighbours
SLOW = 1.3
SLOW_MESSAGE = 2.0
LATEST = 5
RESENT = 10.0  # packets per s; a network without trouble sends next to none again
FOREIGN = 2e6  # B/s; what a host says to its servers is a tenth of that
CONGESTED = 10.0  # pauses and marks per s


def usual(looks: Sequence[Look], reference: str) -> float | None:
    """The median time of a reference over looks on a machine that nothing disturbed otherwise.

    Over all of them where something always did; None of fewer than LATEST.
    """
    quiet = [look for look in looks if not {"cores", "stolen"}.intersection(look.disturbed)]
    known = [
        [seconds for look in some if (seconds := getattr(look, reference)) is not None]
        for some in (quiet, looks)
    ]
    enough = [times for times in known if len(times) >= LATEST]
    return median(enough[0]) if enough else None


def disturbances(looks: Sequence[Look]) -> list[Disturbance]:
    """What disturbed the last of these looks, which are in the order of time."""
    if not looks:
        return []
    last = looks[-1]

    def slower(reference: str, factor: float) -> bool:
        often = usual(looks, reference)
        recent = [getattr(look, reference) for look in looks[-LATEST:]]
        known = [seconds for seconds in recent if seconds is not None]
        return often is not None and bool(known) and median(known) > factor * often

    found: dict[Disturbance, bool] = {
        "cores": _over(last.waited, WAITED) or _over(last.others, OTHERS),
        "stolen": _over(last.stolen, STOLEN),
        "slow": slower("arithmetic_s", SLOW) or slower("memory_s", SLOW),
        "network": slower("message_s", SLOW_MESSAGE)
        or _over(last.foreign, FOREIGN)
        or _over(last.resent, RESENT)
        or _over(last.congested, CONGESTED),
        "gpu": _over(last.gpu_processes, 0),
    }
    return [word for word in DISTURBANCES if found[word]]


def _over(value: float | None, limit: float) -> bool:
    return value is not None and value > limit
