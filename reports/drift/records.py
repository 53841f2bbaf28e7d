"""A Series of a history, the Steps in it, software that changed, and the Drift that they make."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from calib.foundation.quantities import FiniteOrNull
from calib.reports.history.records import PastNight

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
    strategy: str = ""  # of training, with its execution

    @property
    def exact(self) -> bool:
        """Whether it has no noise: predictions are the same every night until something changes."""
        return self.source == "predicted"


@dataclass(frozen=True)
class Step:
    """The level of a series changed. Nights are indices into Past.nights."""

    series: Annotated[str, Field(description="name of the series")]
    of: Annotated[Of, Field(description="what has drifted")]
    first: Annotated[
        int, Field(description="the first night of the new level, an index into the nights")
    ]
    seen: Annotated[
        int, Field(description="the night on which it was found, an index into the nights")
    ]
    change: Annotated[
        FiniteOrNull, Field(description="relative: 0.05 is 5% more; null: not finite")
    ]
    low: Annotated[
        FiniteOrNull,
        Field(description="lower end of the 95% interval of the change; null: not finite"),
    ]
    high: Annotated[
        FiniteOrNull,
        Field(description="upper end of the 95% interval of the change; null: not finite"),
    ]
    noise: Annotated[
        FiniteOrNull,
        Field(
            description="relative spread from night to night around it, one standard deviation; null: "
            "not finite"
        ),
    ]
    accepted: Annotated[
        str, Field(description='the reason where somebody accepted it, else ""')
    ] = ""
    undone: Annotated[
        bool,
        Field(description="whether the level came back; both the step and the return are undone"),
    ] = False
    closed: Annotated[
        str, Field(description='why else it does not count (too old, too small), or ""')
    ] = ""

    @property
    def is_open(self) -> bool:
        """Whether it is still there, counts, and nobody has accepted it."""
        return not self.accepted and not self.undone and not self.closed


@dataclass(frozen=True)
class VersionChange:
    """Software that changed at a step, or a night before or after it."""

    name: Annotated[str, Field(description="of the software")]
    before: Annotated[str, Field(description='"" where it was not there')]
    after: Annotated[str, Field(description='"" where it is not there any more')]
    off: Annotated[
        int, Field(description="nights after the step's first one; below 0: before it")
    ] = 0


def changed(before: Mapping[str, str], after: Mapping[str, str]) -> list[VersionChange]:
    """Versions that differ, in order of their names; "" where one was not there."""
    return [
        VersionChange(name, before.get(name, ""), after.get(name, ""))
        for name in sorted({*before, *after})
        if before.get(name, "") != after.get(name, "")
    ]


def changed_between(before: PastNight, after: PastNight) -> list[VersionChange]:
    """The same of two nights, with calib's own version."""
    return changed(
        {**before.versions, "calib": before.program_version},
        {**after.versions, "calib": after.program_version},
    )


@dataclass(frozen=True)
class Drift:
    """All steps of a history; those that count are open."""

    steps: Annotated[Sequence[Step], Field(description="in order of their first night")]
    words: Annotated[
        Sequence[str],
        Field(description="what drifted, when, by how much and with which versions, in sentences"),
    ]
    versions: Annotated[
        dict[int, list[VersionChange]],
        Field(description="first night of a step -> the software that changed there"),
    ]
    sensitivity: Annotated[
        dict[str, FiniteOrNull],
        Field(
            description="series -> the smallest relative step that would be found within 3 nights in "
            "9 of 10 cases"
        ),
    ]
    unjudged: Annotated[
        dict[str, str],
        Field(description="series that are too short (or have ended) to judge -> why"),
    ]
    open_words: Annotated[
        Sequence[str], Field(description="those of the sentences that have an open step")
    ] = ()
