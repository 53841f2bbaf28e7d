"""Lines, step marks and version changes of the history figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from calib.foundation.text import plain
from calib.reports.drift.records import Drift, Step, VersionChange, changed_between
from calib.reports.drift.sentences import groups_of
from calib.reports.drift.trend import strategies, trend
from calib.reports.figures.strategy_looks import (
    COLOURS,
    DASHES,
    MARKERS,
    MEAN_COLOUR,
    look_of,
    rank_of,
)
from calib.reports.history.records import Past

MEAN = "mean of strategies"
# by how much a step matters
STATES = ("open", "accepted", "undone", "not counted")


@dataclass(frozen=True)
class HistoryLine:
    """Accuracy over nights: a value per night of Past, None where there is none."""

    name: str
    values: Sequence[float | None]
    points: Sequence[int]
    colour: str = MEAN_COLOUR
    dash: str = "solid"
    marker: str = "circle"


@dataclass(frozen=True)
class StepMark:
    """Steps that begin together, and the software that changed there. `number` counts from 1."""

    number: int
    steps: Sequence[Step]
    versions: Sequence[VersionChange]
    sentence: str

    @property
    def state(self) -> str:
        """One of STATES: that of the step that matters most."""
        return min((state_of(step) for step in self.steps), key=STATES.index)

    @property
    def leading(self) -> Sequence[Step]:
        """The steps of that state."""
        return [step for step in self.steps if state_of(step) == self.state]

    @property
    def night(self) -> int:
        """The night with which the largest of them begins."""
        return max(self.leading, key=lambda step: abs(step.change)).first

    @property
    def words(self) -> str:
        """What drifted: "network, kernels"."""
        return ", ".join(dict.fromkeys(what_drifted(step) for step in self.leading))


def what_drifted(step: Step) -> str:
    """network, kernels, memory or oracle: where training left its prediction, it was the oracle."""
    return "oracle" if step.of == "accuracy" else step.of


def state_of(step: Step) -> str:
    """One of STATES."""
    if step.is_open:
        return "open"
    return "accepted" if step.accepted else "undone" if step.undone else "not counted"


def strategy_lines(past: Past) -> list[HistoryLine]:
    """The mean of each strategy's points that count in each night, and the mean of those means."""
    nights = trend(past)
    names = sorted(strategies(nights), key=lambda name: (rank_of(name), name))
    lines = []
    for name in names:
        look = look_of(name, names)
        lines.append(
            HistoryLine(
                name,
                [night.strategy_means.get(name) for night in nights],
                [night.strategy_points.get(name, 0) for night in nights],
                COLOURS[look % len(COLOURS)],
                DASHES[look % len(DASHES)],
                MARKERS[look % len(MARKERS)],
            )
        )
    means = [night.mean_of_strategy_means for night in nights]
    return [*lines, HistoryLine(MEAN, means, [len(night.strategy_means) for night in nights])]


def marks(drift: Drift | None) -> list[StepMark]:
    """The steps that begin together, as the sentences of a Drift have them, the first ones first."""
    if drift is None:
        return []
    found = []
    for i, steps in enumerate(groups_of(drift.steps)):
        changes = next((of for x in steps if (of := drift.versions.get(x.first))), [])
        found.append(
            StepMark(i + 1, steps, changes, drift.words[i] if i < len(drift.words) else "")
        )
    return found


def changed_versions(past: Past) -> dict[int, list[VersionChange]]:
    """Software, calib and parameters that changed since the night before, by night."""
    found = {}
    for n in range(1, len(past.nights)):
        before, after = past.nights[n - 1], past.nights[n]
        changes = changed_between(before, after)
        if before.parameters_id != after.parameters_id:
            changes.append(VersionChange("parameters", before.parameters_id, after.parameters_id))
        if changes:
            found[n] = changes
    return found


def change_words(change: VersionChange) -> str:
    """torch 2.9.0 to 2.9.1; torch 2.9.0 (new)."""
    if not change.before:
        return plain(f"{change.name} {change.after} (new)")
    if not change.after:
        return plain(f"{change.name} {change.before} (gone)")
    return plain(f"{change.name} {change.before} to {change.after}")
