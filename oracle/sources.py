"""Where the error of a prediction comes from: the classes of error sources, and their shares.

An error source of a Cost (oracle/cost.py) is a text "class: what exactly"; of most classes there are
several, such as a law for every kind of layer. `told_apart` costs add which measured time it was.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache
from typing import get_args

from calib.oracle.projection import ErrorSource, PhaseTime, SourceClass

# (source, seconds below, seconds above): 95% errors
Error = tuple[str, float, float]

# medians measured on one machine: what shifts one (a hot room, a busy hour) shifts all
MACHINE: SourceClass = "measured times"
# one launch of the ranks, which a training is, against the many that its times were measured in
LAUNCH: SourceClass = "one launch"
# of the machine while that launch runs, as its references say it changes: known when it is trained
SPEED: SourceClass = "speed"
LAYER_LAWS: SourceClass = "layers not measured"
PASS_LAWS: SourceClass = "passes not measured"
SIZE_LAWS: SourceClass = "sizes not measured"
LAYOUT_LAWS: SourceClass = "layouts not measured"
HOCKNEY: SourceClass = "alpha and beta"
CONTENTION: SourceClass = "contention"
IN_PLACE: SourceClass = "in place"
OVERLAP: SourceClass = "overlap"

MEANINGS: dict[SourceClass, str] = {
    MACHINE: "how well the medians of the measured cases are known",
    LAUNCH: "a training is one launch of the ranks, and launches differ",
    SPEED: "the machine is faster in some minutes than in others",
    LAYER_LAWS: "layers or batches that were not measured, by the laws of their kinds",
    PASS_LAWS: "passes over lists of tensors that were not measured",
    SIZE_LAWS: "sizes of collectives between or beyond the measured ones",
    LAYOUT_LAWS: "collectives on layouts, at levels or of operations that were not measured",
    HOCKNEY: "the line through the sizes of a collective",
    CONTENTION: "several groups of ranks at once",
    IN_PLACE: "what an iteration adds to its parts, fitted to other models",
    OVERLAP: "how much of the exchange the backward hides, or iterations measured with overlap",
}
CLASSES: tuple[SourceClass, ...] = get_args(SourceClass)

# between an error source and the measured time that it is of, where times are told apart
FROM = " <- "


def source_of(of: SourceClass, what: str) -> str:
    """The text of an error source."""
    return f"{of}: {what}"


def group_of(source: str) -> str:
    """The source without the measured time that it is of: errors of a group are fully correlated."""
    return source.partition(FROM)[0]


def grouped(errors: Iterable[Error]) -> tuple[Error, ...]:
    """The errors with those of one source added up, whichever measured time they are of."""
    groups: dict[str, tuple[float, float]] = {}
    for source, down, up in errors:
        group = group_of(source)
        before = groups.get(group, (0.0, 0.0))
        groups[group] = before[0] + down, before[1] + up
    return tuple([(source, down, up) for source, (down, up) in groups.items()])


def by_class(errors: Iterable[Error]) -> list[ErrorSource]:
    """The shares of the classes in the variance of the interval, the largest first.

    Parameters
    ----------
    errors
        The 95% errors of one cost, in s, independent of one another.

    Returns
    -------
    list of ErrorSource
        The squares of their seconds below (above) sum to that of the cost. The interval need not be
        symmetric: shares are of the sum of both squares. Empty where there is no error.
    """
    found: dict[str, list[float]] = {}  # class -> squares below and above, and the largest of both
    mostly: dict[str, str] = {}
    for source, below, above in errors:
        name, down, up = class_of(source), below * below, above * above
        both = down + up
        if not both:
            continue
        of = found.get(name)
        if of is None:
            found[name], mostly[name] = [down, up, both], source
            continue
        of[0] += down
        of[1] += up
        if both > of[2]:
            of[2], mostly[name] = both, source
    whole = sum([of[0] + of[1] for of in found.values()])
    return [
        ErrorSource(
            source=name,
            below_s=math.sqrt(down),
            above_s=math.sqrt(up),
            share=min(1.0, (down + up) / whole),
            mostly=mostly[name].partition(": ")[2],
        )
        for name, (down, up, _) in sorted(found.items(), key=lambda of: -of[1][0] - of[1][1])
    ]


@lru_cache(maxsize=4096)
def class_of(source: str) -> str:
    """The class of an error source."""
    return source.partition(": ")[0]


def factor_by(of: SourceClass, sources: Iterable[ErrorSource], seconds: float) -> float:
    """95% of launches are within this factor of many, by a source of a time > 0, s; 1: not known."""
    return next((1.0 + each.above_s / seconds for each in sources if each.source == of), 1.0)


def mean_of_launches(time: PhaseTime, factor: float, n: float) -> PhaseTime:
    """The time in the mean of `n` launches, of one that was predicted for a single launch.

    `factor` is that of a single launch by one source; what launches differ by is independent
    (`Cost.in_one_launch`). Of infinitely many nothing is left of it.
    """
    less, seconds = 1.0 - 1.0 / n, time.value
    below, above = seconds - seconds / factor, seconds * factor - seconds
    down = math.sqrt(max(0.0, (seconds - time.low) ** 2 - less * below**2))
    up = math.sqrt(max(0.0, (time.high - seconds) ** 2 - less * above**2))
    return PhaseTime(value=seconds, low=seconds - down, high=seconds + up, basis=time.basis)


def sources_of_launches(sources: Iterable[ErrorSource], n: int) -> list[ErrorSource]:
    """The sources of the mean of `n` launches, of those of a single one."""
    of_each = (LAUNCH, SPEED)
    each = [(of, 1.0 / math.sqrt(n) if of.source in of_each else 1.0) for of in sources]
    return by_class(
        (f"{of.source}: {of.mostly}", of.below_s * part, of.above_s * part) for of, part in each
    )
