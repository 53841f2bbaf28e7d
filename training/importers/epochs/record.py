"""The EpochLog record, and how one follows from the clock times of steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median
from typing import NamedTuple

MOST_MARKS = 5_000_000  # of one log


@dataclass(frozen=True)
class EpochLog:
    """What one training's own log says of its time, in seconds.

    Parameters
    ----------
    format
        What the log is, for people.
    startup_s
        From the log's beginning to the first step; None where it does not say.
    epochs_s
        Of each epoch, without what is in `validations_s` and `pauses_s`.
    validations_s
        Of each validation; there need not be one an epoch.
    pauses_s
        Between epochs, neither steps nor validation.
    epoch_steps
        Iterations that `epochs_s` has of each epoch, where they are logged.
    step_s
        Of an iteration.
    input_s
        Of it, waiting for data.
    ranks
        That trained.
    """

    format: str
    startup_s: float | None = None
    epochs_s: tuple[float, ...] = ()
    validations_s: tuple[float, ...] = ()
    pauses_s: tuple[float, ...] = ()
    epoch_steps: float | None = None
    step_s: float | None = None
    input_s: float | None = None
    ranks: int | None = None

    @property
    def epoch_s(self) -> float | None:
        """A usual epoch's training; the first has what is slow once."""
        return median(self.epochs_s) if self.epochs_s else None

    @property
    def validation_s(self) -> float | None:
        """Validation per epoch."""
        if not self.validations_s:
            return None
        each = median(self.validations_s)
        return each * min(len(self.validations_s) / max(len(self.epochs_s), 1), 1.0)

    @property
    def pause_s(self) -> float | None:
        """What an epoch's end takes; None where steps and epochs cannot be told apart."""
        return median(self.pauses_s) if self.pauses_s else None


class Mark(NamedTuple):
    """What was logged at `at_s`, after `step` steps of the epoch or of all."""

    at_s: float
    epoch: int
    step: int
    validation: bool = False


def log_of_marks(
    name: str,
    marks: Sequence[Mark],
    begin_s: float,
    inputs_s: Sequence[float] = (),
    ranks: int | None = None,
) -> EpochLog:
    """The log of marks in the order of time; `inputs_s` are of single steps.

    From an epoch's last mark on there are the steps up to the next mark of training, each of the usual
    time; its validation, up to that one's last mark; and a pause.
    """
    epochs: dict[int, list[Mark]] = {}
    validated: dict[int, Mark] = {}  # the last mark of each
    for mark in marks:
        if mark.validation:
            validated[mark.epoch] = mark
        else:
            epochs.setdefault(mark.epoch, []).append(mark)
    if not epochs:
        return EpochLog(name, ranks=ranks)
    groups = list(epochs.values())
    step_s = _step_seconds(groups)
    trained, validations, pauses, steps = [], [], [], []
    for own, after in zip(groups, [*groups[1:], []], strict=True):
        last, end = own[-1], validated.get(own[-1].epoch)
        ahead = _steps(last, after[0]) if after else 0
        validation = 0.0
        if end is not None and end.at_s >= last.at_s:
            left = min(max(end.step - last.step, 0), ahead)  # steps before it that were not logged
            validation = max(0.0, end.at_s - last.at_s - left * step_s)
            validations.append(validation)
        if after:
            between = after[0].at_s - last.at_s
            pause = max(0.0, between - validation - ahead * step_s)
            pauses.append(pause)
            trained.append(after[0].at_s - own[0].at_s - validation - pause)
            steps.append(last.step - own[0].step + ahead)
    first = groups[0][0]
    waits = [wait for wait in inputs_s[1:] if 0 <= wait < math.inf]  # the first is of the start-up
    return EpochLog(
        name,
        startup_s=max(0.0, first.at_s - begin_s - first.step * step_s),
        epochs_s=tuple(trained),
        validations_s=tuple(validations),
        pauses_s=tuple(pauses),
        epoch_steps=median(steps) if steps else None,
        step_s=step_s or None,
        input_s=fmean(waits) if waits else None,
        ranks=ranks,
    )


def _steps(last: Mark, after: Mark) -> int:
    """From one mark to one of the next epoch, whether steps are counted in all or in the epoch."""
    return after.step - last.step if after.step > last.step else max(after.step, 1)


def _step_seconds(groups: Sequence[Sequence[Mark]]) -> float:
    """The usual time of a step; 0 where no two were logged."""
    each = [
        (b.at_s - a.at_s) / (b.step - a.step)
        for marks in groups
        for a, b in pairwise(marks)
        if b.step > a.step
    ]
    return max(0.0, median(each)) if each else 0.0
