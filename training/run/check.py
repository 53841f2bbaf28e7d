"""Contradictions between a run's header and its rows.

`calib train` writes times of every rank in every iteration, and where each rank ran; an imported run may
know some ranks only, and less of them. A run that contradicts itself (put together by hand, or damaged)
is never scored.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain, pairwise

from calib.foundation.division import STRATEGIES
from calib.foundation.statistics import serial_half_width
from calib.training.run.lines import Iteration, RunEnd, RunHeader

# phases in which one rank alone spends no time
BETWEEN_RANKS = ("halo", "layerwise", "pack", "exchange", "unpack")


def contradiction(
    head: RunHeader, iterations: Sequence[Iteration], end: RunEnd | None
) -> str | None:
    """The first contradiction in a run, in one line; None where there is none."""
    every = chain(
        _of_header(head),
        _of_ranks(head, iterations, end),
        _of_order(head, iterations),
        _of_end(head, iterations, end),
    )
    return next(every, None)


def _of_header(head: RunHeader) -> Iterator[str]:
    """What a header cannot say."""
    if head.strategy in STRATEGIES:  # an imported run may have any
        yield from head.division.faults
    for name in ("hosts", "cores", "gpus", "order"):
        length = len(getattr(head, name))
        needed = name == "hosts" and head.trained
        if length != head.p and (length or needed):
            yield f"p is {head.p}, but {name} has {length} of them"
    if head.order and sorted(head.order) != list(range(head.p)):
        yield f"order does not have each of the {head.p} ranks once"
    if head.trained and not head.oversubscribed and len(head.cores) == len(head.hosts):
        of_cores = Counter(zip(head.hosts, map(tuple, head.cores), strict=True))
        for (host, cores), ranks in of_cores.items():
            if cores and ranks > len(cores):
                yield f"oversubscribed is false, but {ranks} ranks share {len(cores)} core of {host}"
    if not head.trained and head.gradient_difference is not None:
        yield "an imported or recorded run has no gradient_difference"


def _of_ranks(
    head: RunHeader, iterations: Sequence[Iteration], end: RunEnd | None
) -> Iterator[str]:
    """Times of every rank, in every iteration."""
    counts = {iteration.ranks: iteration.index for iteration in iterations}
    if len(counts) > 1:
        places = ", ".join(f"{n} in iteration {index}" for n, index in counts.items())
        yield f"the iterations have times of different numbers of ranks: {places}"
    for n in counts:
        known = head.trained or head.hosts
        if n > head.p or (known and n != head.p):
            yield f"p is {head.p}, but the iterations have times of {n} rank(s)"
        peaks = (end.peak_rss_bytes, end.peak_live_bytes) if end else ()
        for of in peaks:
            if len(of) not in (0, n):
                yield f"the iterations have times of {n} rank(s), the end has peaks of {len(of)}"
    if head.strategy == "serial" and head.trained:
        for iteration in iterations:
            for phase in BETWEEN_RANKS:
                if any(iteration.seconds.get(phase, ())):
                    yield f"serial, but iteration {iteration.index} spends time in {phase}"


def _of_order(head: RunHeader, iterations: Sequence[Iteration]) -> Iterator[str]:
    """Every iteration once, the warm-up first."""
    for one, two in pairwise(iterations):
        if two.index <= one.index or (head.trained and two.index != one.index + 1):
            yield f"iteration {two.index} follows iteration {one.index}"
        if head.trained and two.warmup and not one.warmup:
            yield f"iteration {two.index} is a warm-up after a timed one"
    if iterations and head.trained and iterations[0].index:
        yield f"the first iteration is number {iterations[0].index}"
    for iteration in iterations[1:]:
        if iteration.first:
            yield f"iteration {iteration.index} is said to be the first"
    warm = sum(iteration.warmup for iteration in iterations)
    timed = len(iterations) - warm
    if warm > head.warmup or (timed and warm < head.warmup):
        yield f"warmup is {head.warmup}, but {warm} iterations are warm-ups"
    if head.trained and timed > head.iterations:
        yield f"{head.iterations} iterations were planned, and there are {timed}"


def _of_end(head: RunHeader, iterations: Sequence[Iteration], end: RunEnd | None) -> Iterator[str]:
    """A run that stopped at its precision has it."""
    if end is None or end.stopped != "precision":
        return
    if head.precision is None:
        yield "it stopped at a precision that was not asked for"
        return
    reached = serial_half_width([x.total_seconds for x in iterations if not x.warmup])
    if not reached <= head.precision:
        yield f"it stopped at a precision of {head.precision:g}, which its iterations do not reach"
