"""The critical path of a pipeline: the exact makespan of GPipe and 1F1B.

A stage has a forward and a backward slot for each of S micro-batches, in which it computes and sends
(as in the paper's sum). A slot begins when the stage's previous slot has ended and its input is there.
All micro-batches take equally long at a stage, so the longest path has a closed form.

GPipe (Huang et al., 2019): all forwards, then all backwards. Each half is a flow shop of S identical
jobs: sum of the slots + (S-1) times the longest. A link that carries a message while both its stages
compute is a machine of that shop, too.

1F1B (PipeDream's schedule with a flush): stage i of 0..p-1 begins with min(S, p-1-i) forwards, then
alternates forward and backward. With slots a_i, r_i and P_i the sum of a_j + r_j over j < i,

    max over t of (S-p+t)(a_t + r_t) - P_{t+1} + max over s >= t of X_s + max over e >= t of Y_e,
    X_s = P_{s+1} + (p-1-s) max over j <= s of a_j,   Y_e likewise with r,   t >= max(0, p-S).

A path goes down the stages by forwards and up by backwards. It fills (a flow shop of forwards until
stage s has its first backward), moves to stage t, stays there in the steady state, goes on to stage e
and drains. A way down takes one turn per stage and a way up none, so every stage visited on the way
costs a turn of t, and a second stop gains nothing.
(tests/oracle/strategies/test_schedules.py simulates both schedules.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from calib.foundation.division import Schedule

# (first stage, end stage, count): slots of one direction on a path
Span = tuple[int, int, int]


@dataclass(frozen=True)
class CriticalPath:
    """The slots whose times add up to the makespan, of stages and of the links between them."""

    forward: tuple[Span, ...]
    backward: tuple[Span, ...]
    forward_links: tuple[Span, ...] = ()
    backward_links: tuple[Span, ...] = ()

    def of(self, direction: str) -> tuple[Span, ...]:
        """The spans of one direction."""
        return self.forward if direction == "forward" else self.backward

    def links(self, direction: str) -> tuple[Span, ...]:
        """Those of links; link i is between stages i and i + 1."""
        return self.forward_links if direction == "forward" else self.backward_links


def critical_path(
    schedule: Schedule,
    forward: Sequence[float],
    backward: Sequence[float],
    segments: int,
    forward_links: Sequence[float] = (),
    backward_links: Sequence[float] = (),
) -> CriticalPath:
    """The longest path, given every stage's seconds per slot and S micro-batches.

    And of GPipe those of links that need neither of their stages.
    """
    if schedule == "1f1b":
        return _one_forward_one_backward(forward, backward, segments)
    stages, links = zip(
        _flow_shop(forward, forward_links, segments),
        _flow_shop(backward, backward_links, segments),
        strict=True,
    )
    return CriticalPath(*stages, *links)


def _flow_shop(
    stages: Sequence[float], links: Sequence[float], segments: int
) -> tuple[tuple[Span, ...], tuple[Span, ...]]:
    """The spans of stages, and of links: each once, and the slowest of all for all other jobs."""
    slowest, busiest = _slowest(stages), _slowest(links) if links else 0
    on_a_link = bool(links) and links[busiest] > stages[slowest]
    others = segments - 1
    return (
        _some(((0, len(stages), 1), _at(slowest, 0 if on_a_link else others))),
        _some(((0, len(links), 1), _at(busiest, others if on_a_link else 0))),
    )


def _one_forward_one_backward(
    forward: Sequence[float], backward: Sequence[float], segments: int
) -> CriticalPath:
    """The maximum of the formula above; t falls, so the maxima over s, e >= t are running ones."""
    p = len(forward)
    both = [a + r for a, r in zip(forward, backward, strict=True)]
    sums = list(accumulate(both, initial=0.0))
    fill = [m * (p - 1 - s) for s, m in enumerate(accumulate(forward, max))]
    drain = [m * (p - 1 - e) for e, m in enumerate(accumulate(backward, max))]
    longest, at = -1.0, (0, 0, 0)
    s = e = p - 1
    for t in range(p - 1, max(0, p - segments) - 1, -1):
        s = t if sums[t + 1] + fill[t] > sums[s + 1] + fill[s] else s
        e = t if sums[t + 1] + drain[t] > sums[e + 1] + drain[e] else e
        ends = sums[s + 1] + fill[s] + sums[e + 1] + drain[e]
        seconds = (segments - p + t) * both[t] - sums[t + 1] + ends
        if seconds > longest:
            longest, at = seconds, (t, s, e)
    t, s, e = at
    shared = ((0, max(s, e) + 1, 1), (t + 1, min(s, e) + 1, 1), _at(t, segments - p + t))
    return CriticalPath(
        _some((*shared, _at(_slowest(forward[: s + 1]), p - 1 - s))),
        _some((*shared, _at(_slowest(backward[: e + 1]), p - 1 - e))),
    )


def _at(stage: int, count: int) -> Span:
    return stage, stage + 1, count


def _slowest(slots: Sequence[float]) -> int:
    return max(range(len(slots)), key=slots.__getitem__)


def _some(spans: tuple[Span, ...]) -> tuple[Span, ...]:
    """The spans that are not empty."""
    return tuple(span for span in spans if span[0] < span[1] and span[2])
