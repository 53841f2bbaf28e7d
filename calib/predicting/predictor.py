"""Predict many points on one machine, for `calib predict` and `calib sweep`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from calib.advice import plan_of
from calib.fitting.merging.merge import across_note
from calib.fitting.parameters.file import Parameters
from calib.fitting.parameters.memory import STATES
from calib.foundation.division import Division, traits_of
from calib.foundation.errors import FileError, InputError, MissingParameter
from calib.oracle.costs.machine import Machine
from calib.oracle.model.spec import ModelSpec
from calib.oracle.predict import project, without_time
from calib.oracle.projection import Form, Projection
from calib.oracle.sweep import Choices, Variant
from calib.oracle.what_if.changes import apply, notes_of
from calib.predicting.choices import Batch
from calib.rundir import LATEST_PARAMETERS

NOT_PREDICTED = "not predicted: "
# points after which looked-up costs are forgotten: many p have many message sizes
FORGET_AFTER = 20_000


@dataclass
class Predictor:
    """One machine, asked for many points. `missing` is the first that a parameter was missing for."""

    machine: Machine
    choices: Choices = field(default_factory=Choices)
    form: Form = "measured"
    optimizer: str = "momentum"
    samples: int | None = None
    explain: bool = False
    missing: tuple[MissingParameter, Projection] | None = None
    predicted: int = 0

    def points(
        self, model: ModelSpec, chosen: Sequence[Variant], p: int, batch: Batch
    ) -> Iterator[Projection]:
        """The projection of every strategy, in their order."""
        for variant in chosen:
            yield self.one(model, variant, p, batch)

    def one(self, model: ModelSpec, variant: Variant, p: int, batch: Batch) -> Projection:
        """One projection. One that lacks a parameter says so in its limits, and has no time."""
        node = self.machine.parameters.ranks_per_node
        division = self.choices.division(model, variant, p, batch.of(p, node), node)
        why = self.choices.why_no_groups(variant.strategy, p)
        if why:
            return self._without_time(model, division, f"{why} (--inner takes others)")
        try:
            found = project(
                model, division, self.machine, self.form, self.optimizer, self.samples, self.explain
            )
        except MissingParameter as error:
            without = self._without_time(model, division, f"{NOT_PREDICTED}{error}")
            self.missing = self.missing or (error, without)
            return without
        self.predicted += found.total is not None
        return self._noted(found)

    def _without_time(self, model: ModelSpec, division: Division, reason: str) -> Projection:
        """The answer where the oracle has none."""
        return self._noted(without_time(model, division, self.form, self.optimizer, [reason]))

    def _noted(self, found: Projection) -> Projection:
        """With what was changed in the parameters among its notes."""
        about = [*notes_of(self.machine.parameters), *self._across]
        changed = [note for note in about if note not in found.notes]
        return found.model_copy(update={"notes": [*changed, *found.notes]}) if changed else found

    @cached_property
    def _across(self) -> list[str]:
        """What is to be said of parameters of several clusters."""
        if not self.machine.parameters.provenance.merged:
            return []
        note = across_note(self.machine.parameters)
        return [f"the parameter file was {note}"] if note else []


def predictor_of(
    path: Path,
    settings: list[str] | None,
    choices: Choices,
    form: str,
    optimizer: str,
    samples: int | None,
    explain: bool = False,
) -> Predictor:
    """The machine of a parameter file, with what --set changes. Raises InputError or FileError."""
    if form not in ("measured", "paper"):
        raise InputError(f"unknown form {form!r}; known: measured, paper")
    if optimizer not in STATES:
        raise InputError(f"unknown optimizer {optimizer!r}; known: {', '.join(STATES)}")
    if path == LATEST_PARAMETERS and not path.exists():
        raise FileError(
            f"there is no {path} here; `calib calibrate` makes one, or give --parameters FILE"
        )
    machine = Parameters.read(path)
    if settings:
        machine = apply(machine, settings)
    named: Form = "paper" if form == "paper" else "measured"
    return Predictor(Machine(machine), choices, named, optimizer, samples, explain)


def something(predictor: Predictor, models: str, points: Sequence[Projection] = ()) -> None:
    """Raise MissingParameter, with a plan of the points, if it kept all from being predicted."""
    if predictor.missing is not None and not predictor.predicted:
        error, first = predictor.missing
        raise MissingParameter(f"{error}; {plan_of(models, points or [first])} plans it") from error


def crossed(
    chosen: list[Variant], choices: Choices, inners: list[int], segments: list[int]
) -> list[tuple[Variant, Choices]]:
    """Every strategy with every p2 and number of segments that are something to it."""
    found = []
    for variant in chosen:
        own = inners if traits_of(variant.strategy).hybrid else inners[:1]
        cut = segments if traits_of(variant.strategy).stages else segments[:1]
        found += [(variant, replace(choices, inner=i, segments=s)) for i in own for s in cut]
    return found


def points(
    predictor: Predictor,
    sizes: list[tuple[ModelSpec, list[Batch]]],
    ranks: list[int],
    laid_out: list[tuple[Variant, Choices]],
) -> Iterator[Projection]:
    """The projections, one after the other; no more of them is kept than what makes the next fast."""
    done = 0
    for model, scales in sizes:
        for scale in scales:
            for p in ranks:
                for variant, choices in laid_out:
                    predictor.choices = choices
                    yield predictor.one(model, variant, p, scale)
                    done += 1
                    if done % FORGET_AFTER == 0:
                        predictor.machine = Machine(predictor.machine.parameters)
                        model.cache.clear()
