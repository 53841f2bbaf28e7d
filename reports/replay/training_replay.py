"""Whole trainings predicted from those that are known, the logs of allreduce, and logs of epochs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from calib.foundation.errors import InputError
from calib.foundation.records import Estimate
from calib.oracle.projection import PhaseTime
from calib.reports.replay.training_exchange import ExchangeTime
from calib.reports.replay.training_terms import Logged, Term, TrainingTerms
from calib.reports.replay.training_times import Trained
from calib.reports.scoring.accuracy import score
from calib.training.importers.epochs.record import EpochLog

CONTRADICTED = (
    "the known times contradict one another: start-up, epochs' ends and exchange hardly explain them "
    "together"
)


@dataclass(frozen=True)
class Expected:
    """A training, its predicted seconds with a 90% interval, and an iteration's exchange in a loop."""

    trained: Trained
    seconds: Estimate
    exchange: PhaseTime

    @property
    def accuracy(self) -> float | None:
        """1 - |predicted - measured| / measured."""
        measured = self.trained.seconds
        return None if measured is None else score(self.seconds.value, measured)

    @property
    def inside(self) -> bool | None:
        """Whether the interval holds the measured time."""
        measured = self.trained.seconds
        return None if measured is None else self.seconds.covers(measured)


@dataclass(frozen=True)
class TrainingReplay:
    """The predicted trainings, the rows and terms that they follow from, and notes."""

    rows: list[Expected]
    known: list[Trained]
    terms: list[Term]
    notes: list[str]

    @property
    def accuracy(self) -> float | None:
        """Mean over the rows that were measured."""
        each = [row.accuracy for row in self.rows if row.accuracy is not None]
        return sum(each) / len(each) if each else None

    @property
    def inside(self) -> list[bool]:
        """Of each row that was measured, whether its interval holds it."""
        return [row.inside for row in self.rows if row.inside is not None]


def replay_trainings(
    trainings: Sequence[Trained],
    exchange: ExchangeTime,
    samples: int,
    nodes: Sequence[int] = (),
    logs: Mapping[int | None, Sequence[EpochLog]] | None = None,
    notes: Sequence[str] = (),
) -> TrainingReplay:
    """Predict every training but the known ones.

    Parameters
    ----------
    trainings
        The rows of a table.
    exchange
        p -> exchange of an iteration in a loop.
    samples
        Of an epoch.
    nodes
        Of the known rows; none: those on the fewest nodes that have a time.
    logs
        Nodes -> logs of epochs of that row; None stands for the row with as many GPUs as the log has
        ranks, else for the known row on the fewest nodes.
    notes
        What else is to be said.

    Raises
    ------
    InputError
        For nodes without a row or a time, and where nothing is left to predict.
    """
    timed = [row for row in trainings if row.seconds is not None]
    if not timed:
        raise InputError("no row has a time to start from")
    for each in nodes:
        _row(timed, each, "with a time")
    chosen = nodes or [min(row.nodes for row in timed)]
    known = [row for row in timed if row.nodes in chosen]
    wanted = [row for row in trainings if row not in known]
    if not wanted:
        raise InputError("every row is known: nothing to predict")
    fewest = min(known, key=lambda row: row.nodes)
    by_gpus: dict[int | None, Trained] = {row.gpus: row for row in trainings}
    logged = [
        Logged(
            _row(trainings, each, "in the table") if each else by_gpus.get(log.ranks, fewest), log
        )
        for each, of in (logs or {}).items()
        for log in of
    ]
    terms = TrainingTerms(known, exchange, samples, logged)
    rows = [Expected(row, terms.seconds(row), exchange(row.gpus)) for row in wanted]
    more = [CONTRADICTED] if terms.contradicted else []
    return TrainingReplay(rows, terms.known, terms.terms(), [*notes, *more])


def _row(rows: Sequence[Trained], nodes: int, what: str) -> Trained:
    """The row of so many nodes. Raises InputError."""
    found = next((row for row in rows if row.nodes == nodes), None)
    if found is None:
        there = ", ".join(str(row.nodes) for row in rows)
        raise InputError(f"no training on {nodes} nodes is {what} (there are those on {there})")
    return found
