"""predictions.json: written before training, checked by every report.

What is scored was predicted by the parameters at hand. Where predictions.json says something else it was
edited (or calib has changed), and the report says so; where it cannot be made again, that is said. Both
leave the verdict open.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache, partial
from pathlib import Path

from calib import __version__
from calib.fitting.parameters.file import Signed, read_signed
from calib.foundation.division import Division
from calib.foundation.errors import CalibError, FileError
from calib.foundation.execution import UNSAID, USUAL, unusual
from calib.foundation.run_files import PARAMETERS_FILE, PREDICTIONS_FILE
from calib.foundation.words import number, several, signed_percent
from calib.microbench.records.manifest import utc_now
from calib.oracle.costs.machine import Machine
from calib.oracle.model.spec import ModelSpec
from calib.oracle.predict import project
from calib.oracle.predicted import Predicted, predicted_of, same
from calib.oracle.projection import Form, Projection
from calib.reports.scoring.accuracy import Missing
from calib.reports.scoring.pairing import Lookup, name_of
from calib.training.models import model_names
from calib.training.models.specs import spec
from calib.training.run.lines import RunHeader
from calib.training.run.record import TrainingRun

_named = partial(several, most=8, between="; ")  # points in one line
DIGITS = len("sha256:") + 12  # of a digest, for people


def spec_of(name: str, run: Path | None = None) -> ModelSpec:
    """The layers of a model in the records of `run`; cached for registered ones: a file may change."""
    return _registered(name) if name in model_names() else spec(name, run)


@lru_cache(maxsize=32)
def _registered(name: str) -> ModelSpec:
    return spec(name)


@lru_cache(maxsize=4096)  # the nights of a year train the same
def projected(
    machine: Machine,
    model: ModelSpec,
    division: Division,
    form: Form = "measured",
    optimizer: str = "momentum",
    samples: int | None = None,
    execution: str = USUAL,
) -> Projection:
    """What the parameters of a machine predict. Raises what `run_as` and `project` do."""
    return project(model.run_as(execution), division, machine, form, optimizer, samples)


def write_predictions(run: Path, projections: Sequence[Projection]) -> None:
    """Write predictions.json of a run directory with parameters.

    A file that says the same stays: it tells when that was first predicted.
    """
    path = run / PREDICTIONS_FILE
    digest = read_signed(run / PARAMETERS_FILE).sha256
    layers = partial(spec_of, run=run)
    made = predicted_of(projections, digest, layers, __version__, utc_now())
    with suppress(FileError):
        there, edited = Predicted.read(path)
        if not edited and there == made.model_copy(
            update={"made": there.made, "signature": there.signature}
        ):
            return
    made.write(path)


@dataclass
class CheckedPredictions:
    """The projections to score the runs of a directory by, and what was found about predictions.json.

    `missing` leaves the verdict open, `notes` do not.
    """

    projections: list[Projection] = field(default_factory=list)
    missing: list[Missing] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def predictions_of(
    run: Path, source: Signed, machine: Machine, runs: Sequence[TrainingRun], nightly: bool
) -> CheckedPredictions:
    """Predictions of the runs: those of predictions.json that still hold, the others made now.

    `machine` has the parameters of `source`. Raises FileError for a damaged predictions.json.
    """
    path, found = run / PREDICTIONS_FILE, CheckedPredictions()
    if source.edited:
        found.missing.append(
            Missing(
                what=source.path.name,
                why="it was edited by hand after its fit: what it predicts was not measured",
            )
        )
    kept = None
    if path.exists():
        kept = _Kept(*Predicted.read(path), source, run)
        found.missing += kept.faults()
        found.notes += kept.remarks(runs)
    elif nightly:
        found.missing.append(Missing(what=PREDICTIONS_FILE, why="it is not there any more"))
    later, fresh = [], Lookup()
    known = Lookup(kept.record.projections if kept else ())
    for item in runs:
        projection = known.of(item)
        if projection is not None and kept is not None:
            kept.check(projection, name_of(item), machine)
        elif fresh.of(item) is None:
            made = _now(item.header, machine, run, found.notes)
            if made is not None:
                fresh.add(made)
                found.projections.append(made)
                later.append(name_of(item))
    if kept is not None:
        found.projections += kept.right
        found.missing += kept.wrong()
    if later:
        line = f"predicted by this report, after the training: {_named(later)}"
        if nightly and kept is not None:
            found.missing.append(Missing(what=PREDICTIONS_FILE, why=line))
        else:
            found.notes.append(line)
    return found


def _now(head: RunHeader, machine: Machine, run: Path, notes: list[str]) -> Projection | None:
    """A prediction of what a run did; None where that is impossible, with the reason in `notes`."""
    if head.execution == UNSAID:
        return None
    try:
        model = spec_of(head.model, run)
        return projected(
            machine, model, head.division, optimizer=head.optimizer, execution=head.execution
        )
    except CalibError as error:
        how = f" {unusual(head.execution)}".rstrip()
        notes.append(f"not predicted: {head.model} {head.strategy} p={head.p}{how}: {error}")
        return None


class _Kept:
    """A predictions.json held against the parameters at hand. `right`: predictions to score by."""

    def __init__(self, record: Predicted, edited: str, source: Signed, run: Path) -> None:
        self.record, self.edited, self.source, self.run = record, edited, source, run
        self.right: list[Projection] = []
        self._seen: set[int] = set()
        self._changed: list[Missing] = []
        self._unmade: dict[str, list[str]] = defaultdict(list)

    def faults(self) -> list[Missing]:
        """What is wrong with the file as a whole."""
        if not self.edited:
            return []
        why = f"{self.edited}: it was edited after it was written"
        return [Missing(what=PREDICTIONS_FILE, why=why)]

    def remarks(self, runs: Sequence[TrainingRun]) -> list[str]:
        """What a reader should know although it is not a fault."""
        made = self.record.made
        early = [name_of(run) for run in runs if _before(run.header.started, made)]
        if not early:
            return []
        return [f"{PREDICTIONS_FILE} was written ({made}) after training began: {_named(early)}"]

    def check(self, kept: Projection, name: str, machine: Machine) -> None:
        """Make a prediction of the file again, and choose which of the two is scored."""
        if id(kept) in self._seen:
            return
        self._seen.add(id(kept))
        try:
            made = self._made_again(kept, machine)
        except CalibError as error:
            self._unmade[str(error)].append(name)
            if not self.edited:
                self.right.append(kept)
            return
        self.right.append(made)
        if not same(kept, made):
            self._changed.append(Missing(what=name, why=self._difference(kept, made)))

    def _made_again(self, kept: Projection, machine: Machine) -> Projection:
        """Raises CalibError where that is impossible."""
        of = self.record.parameters_sha256
        if of and of != self.source.sha256:
            raise FileError(
                f"it was made from other parameters ({of[:DIGITS]}) than those of "
                f"{self.source.path.name} ({self.source.sha256[:DIGITS]})"
            )
        layers, model = self.record.models_sha256.get(kept.model), spec_of(kept.model, self.run)
        if layers is not None and layers != model.sha256:
            raise FileError(f"{kept.model} has other layers now")
        again = projected(
            machine, model, kept.division, kept.form, kept.optimizer, kept.samples, kept.execution
        )
        if again.total is None:
            raise FileError("; ".join(again.limits))
        return again

    def _difference(self, kept: Projection, made: Projection) -> str:
        assert kept.total is not None and made.total is not None  # of what is looked up
        other = self.record.program_version not in ("", __version__)
        by = f" (calib {self.record.program_version}; this is {__version__})" if other else ""
        before, now = number(kept.total.value * 1e3, 4), number(made.total.value * 1e3, 4)
        if before == now or kept.total.value <= 0:
            return (
                f"{PREDICTIONS_FILE}{by} has other phases, intervals or bytes than the parameters "
                "give; what they give is scored"
            )
        return (
            f"{PREDICTIONS_FILE}{by} says {before} ms, the parameters give {now} ms "
            f"({signed_percent(made.total.value / kept.total.value - 1)}), which is scored"
        )

    def wrong(self) -> list[Missing]:
        """Predictions that were replaced, and those that could not be made again."""
        scored = "so not scored" if self.edited else "scored as it says"
        unmade = [
            Missing(
                what=PREDICTIONS_FILE,
                why=f"could not be made again: {why}; {scored}: {_named(names)}",
            )
            for why, names in self._unmade.items()
        ]
        return [*self._changed, *unmade]


def _before(started: str, made: str) -> bool:
    """Whether a training started before its prediction was made; False where a time is missing."""
    with suppress(ValueError, TypeError):  # no time; one without its zone
        return datetime.fromisoformat(started) < datetime.fromisoformat(made)
    return False
