"""A Series of a history, the Steps in it, and the Drift that they make."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Of = Literal["network", "kernels", "memory", "oracle", "accuracy"]
# where a series comes from: the night's check; phases, total, peak memory of training; predictions
DriftSource = Literal["check", "phase", "accuracy", "peak", "predicted"]


@dataclass(frozen=True)
class Series:
    """One number per night: ln(measured / expected), so that 0.05 is 5% more time than normal.

    `of` is what a step in it says has drifted; `nights` are indices into Past.nights (gaps are
    missing numbers), in order; `name` is for people ("allreduce, torch_mpi, node, p=2").
    """

    name: str
    of: Of
    nights: Sequence[int]
    values: Sequence[float]
    source: DriftSource = "check"
    strategy: str = ""  # of training

    @property
    def exact(self) -> bool:
        """Whether it has no noise: predictions are the same every night until something changes."""
        return self.source == "predicted"


@dataclass(frozen=True)
class Step:
    """The level of a series changed. `first` and `seen` are indices into Past.nights.

    `change` is relative (0.05: 5% more), with a 95% interval; `noise` the relative night-to-night
    spread (one standard deviation) around it; `first` the first night of the new level, `seen` the
    night on which the rule found it. `accepted` is the reason where somebody accepted it.
    """

    series: str
    of: Of
    first: int
    seen: int
    change: float
    low: float
    high: float
    noise: float
    accepted: str = ""
    undone: bool = False  # the level came back; both the step and the return are undone
    closed: str = (
        ""  # why else it does not count: it is older than what was asked for, or too small
    )

    @property
    def is_open(self) -> bool:
        """Whether it is still there, counts, and nobody has accepted it."""
        return not self.accepted and not self.undone and not self.closed


@dataclass(frozen=True)
class VersionChange:
    """What of the software was otherwise on the first night of a step; "" where it was not there.

    `off`: so many nights after the step's first one, or before it where negative.
    """

    name: str
    before: str
    after: str
    off: int = 0


@dataclass(frozen=True)
class Drift:
    """All steps of a history, in order of `first`; those that count are open.

    `words` say in sentences what drifted, when, by how much and which versions changed with it;
    `open_words` are those sentences that have an open step; `sensitivity`: per series the smallest
    relative step that would be found within 3 nights in 9 of 10 cases.
    """

    steps: Sequence[Step]
    words: Sequence[str]
    versions: dict[int, list[VersionChange]]  # first night of a step -> what changed there
    sensitivity: dict[str, float]
    unjudged: dict[str, str]  # series that are too short (or have ended) to judge -> why
    open_words: Sequence[str] = ()
