"""Predicted times, strategies and cases as text, with their marks: in terminal and page alike."""

from __future__ import annotations

from calib.foundation.records import Estimate
from calib.foundation.text import plain
from calib.foundation.words import estimate_words, number
from calib.oracle.projection import Basis, PhaseTime

BASIS_MARKS: dict[Basis, str] = {
    "exact": "",
    "measured": "",
    "interpolated": "~",
    "extrapolated": "!",
}
OVERSUBSCRIBED_MARK = "*"
LEGEND = {
    "~": "interpolated between measured cases",
    "!": "extrapolated beyond them",
    OVERSUBSCRIBED_MARK: "oversubscribed (more ranks than cores): left out of the means",
}


def marked(time: Estimate, text: str) -> str:
    """With the mark of what a predicted time rests on; a measured one has none."""
    return (BASIS_MARKS[time.basis] if isinstance(time, PhaseTime) else "") + text


def ms_words(time: Estimate, interval: bool = False) -> str:
    """A predicted or measured time in ms, with its mark, with or without its interval."""
    return marked(time, estimate_words(time, 1e3) if interval else number(time.value * 1e3))


def strategy_text(strategy: str, layout: str, oversubscribed: bool) -> str:
    """A strategy with its layout, marked where it was oversubscribed."""
    words = f"{strategy}, {layout}" if layout else strategy
    return plain(words) + (OVERSUBSCRIBED_MARK if oversubscribed else "")


def case_words(
    model: str, strategy: str, layout: str, p: int, batch_per_rank: float | None = None
) -> str:
    """`vgg16-mini data+filter, 2 groups of 2, p=4, 8 per rank`; not yet `plain`."""
    how = f"{strategy}, {layout}," if layout else strategy
    each = "" if batch_per_rank is None else f", {samples_words(batch_per_rank)} per rank"
    return f"{model} {how} p={p}{each}"


def samples_words(batch_per_rank: float) -> str:
    """8; 0.25."""
    return str(batch_per_rank) if isinstance(batch_per_rank, int) else f"{batch_per_rank:.4g}"
