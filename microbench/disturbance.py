"""What counts as a disturbance: the one place with its thresholds."""

from __future__ import annotations

from collections.abc import Sequence

from calib.foundation.statistics import median
from calib.microbench.records.looks import DISTURBANCES, Disturbance, Look

# shares of the time: an idle Linux takes 0.0 to 0.5% for its own work
WAITED = 0.02
OTHERS = 0.05
LATELY_S = 1.0  # what waiting and others are judged by
AT_ALL = 0.02  # of the cores, what others use at least where ranks wait for them
STOLEN = 0.02
# times the usual time of a reference, over the last LATEST looks: one alone varies by a half where the
# hypervisor has neighbours
SLOW = 1.3
SLOW_MESSAGE = 2.0
LATEST = 5
FOREIGN = 2e6  # B/s; what a host says to its servers is a tenth of that
# packets sent again, pauses and marks, per s; and times what is usual, for the ranks' own messages
# may cause them
RESENT, CONGESTED = 10.0, 10.0
TIMES_USUAL = 5.0


def usual(looks: Sequence[Look], field: str) -> float | None:
    """The median of what looks have in a field, of those that nothing else disturbed.

    Over all of them where something always did; None of fewer than LATEST.
    """
    quiet = [look for look in looks if not {"cores", "stolen"}.intersection(look.disturbed)]
    known = [
        [value for look in some if (value := getattr(look, field)) is not None]
        for some in (quiet, looks)
    ]
    enough = [values for values in known if len(values) >= LATEST]
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

    def oftener(event: str, limit: float) -> bool:
        often = usual(looks, event) or 0.0
        return _over(getattr(last, event), max(limit, TIMES_USUAL * often))

    # threads of the ranks wait for one another, too; and a process on the other cores of a rank that is
    # not bound takes nothing from it
    waited, others = _lately(looks, "waited"), _lately(looks, "others")
    if waited is None:
        busy = _over(others, OTHERS)
    else:
        busy = waited > WAITED and (others is None or others > AT_ALL)
    found: dict[Disturbance, bool] = {
        "cores": busy,
        "stolen": _over(last.stolen, STOLEN),
        "slow": slower("arithmetic_s", SLOW) or slower("memory_s", SLOW),
        "network": slower("message_s", SLOW_MESSAGE)
        or _over(last.foreign, FOREIGN)
        or oftener("resent", RESENT)
        or oftener("congested", CONGESTED),
        "gpu": _over(last.gpu_processes, 0),
    }
    return [word for word in DISTURBANCES if found[word]]


def _lately(looks: Sequence[Look], share: str) -> float | None:
    """The mean of a share over the looks of the last LATELY_S: a burst of others may be between two."""
    known, window_s = list[tuple[float, float]](), 0.0
    for look in reversed(looks):
        if window_s >= LATELY_S:
            break
        window_s += look.window_s
        if (value := getattr(look, share)) is not None:
            known.append((value, look.window_s))
    whole = sum(seconds for _, seconds in known)
    return sum(value * seconds for value, seconds in known) / whole if whole > 0 else None


def _over(value: float | None, limit: float) -> bool:
    return value is not None and value > limit
