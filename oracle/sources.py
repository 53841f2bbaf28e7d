"""Where the error of a prediction comes from: the classes of error sources, and their shares.

An error source of a Cost (oracle/cost.py) is a text "class: what exactly"; of most classes there are
several, such as a law for every kind of layer. `told_apart` costs add which measured time it was.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache
from typing import get_args

from calib.oracle.projection import ErrorSource, SourceClass

# (source, seconds below, seconds above): 95% errors
Error = tuple[str, float, float]

# medians measured on one machine: what shifts one (a hot room, a busy hour) shifts all
MACHINE: SourceClass = "measured times"
# one launch of the ranks, which a training is, against the many that its times were measured in
LAUNCH: SourceClass = "one launch"
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
    LAYER_LAWS: "layers or batches that were not measured, by the laws of their kinds",
    PASS_LAWS: "passes over lists of tensors that were not measured",
    SIZE_LAWS: "sizes of collectives between or beyond the measured ones",
    LAYOUT_LAWS: "collectives on layouts, at levels or of operations that were not measured",
    HOCKNEY: "the line through the sizes of a collective",
    CONTENTION: "several groups of ranks at once",
    IN_PLACE: "what an iteration adds to its parts, fitted to other models",
    OVERLAP: "how much of the exchange the backward hides",
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
