"""Cases as they were measured in a launch, and which of them are worth measuring again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from calib.microbench.cases import Case
from calib.microbench.machine.telemetry import THROTTLED_MARK, throttled_s
from calib.microbench.records.looks import Look, disturbed_between
from calib.microbench.timing.repeat import FEWEST_REPETITIONS, Repetitions

# of a launch's time, what is kept for measuring disturbed cases again
FOR_MENDING = 0.08
# where more of a launch was disturbed, nothing says that it would be better now: then what was counted
# beside the times must do (fitting/undisturbed.py)
MENDABLE = 0.5


@dataclass(frozen=True)
class Attempt:
    """A case as it was measured once: `started` is Unix time, s; snapshots are of every rank's GPU."""

    result: Repetitions
    started: float
    before: list[dict[str, Any]]
    after: list[dict[str, Any]]
    marks: set[str]

    def throttling(self) -> tuple[bool, float]:
        """Whether a GPU was throttled, and the longest time that one was, s."""
        held = map(throttled_s, self.before, self.after)
        return THROTTLED_MARK in self.marks, max(held, default=0.0)

    def waiting(self) -> float:
        """Share of the time that a rank waited for a core; 0 where nobody counts."""
        return self.result.waited_share() or 0.0


@dataclass(frozen=True)
class Done:
    """A case that has rows, and the best attempt at it; `until` is Unix time, s."""

    case: Case
    attempt: Attempt
    until: float

    def disturbed(self, looks: Sequence[Look]) -> bool:
        """Whether it is worth measuring again: not where enough repetitions were undisturbed."""
        seen = set(disturbed_between(looks, self.attempt.started, self.until))
        few = self.attempt.result.undisturbed() < FEWEST_REPETITIONS
        return bool(seen - {"cores"}) or ("cores" in seen and few)


def worth_again(done: Sequence[Done], looks: Sequence[Look]) -> list[Done]:
    """The cases that were disturbed, the worst first; none where most were."""
    bad = [each for each in done if each.disturbed(looks)]
    if len(bad) > len(done) * MENDABLE:
        return []
    return sorted(bad, key=lambda each: each.attempt.waiting(), reverse=True)
