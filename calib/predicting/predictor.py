"""Predict many points on one machine, for `calib predict` and `calib sweep`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from calib.advice import advised, plan_of
from calib.fitting.merging.merge import across_note
from calib.fitting.parameters.file import Parameters
from calib.foundation.division import Division
from calib.foundation.errors import FileError, MissingParameter
from calib.oracle.costs.machine import Machine
from calib.oracle.model.spec import ModelSpec
from calib.oracle.predict import project, without_time
from calib.oracle.projection import Form, Projection
from calib.oracle.template import DivisionTemplate
from calib.oracle.what_if.changes import apply, notes_of
from calib.predicting.choices import Batch
from calib.rundir import LATEST_PARAMETERS

NOT_PREDICTED = "not predicted: "


@dataclass
class Predictor:
    """One machine, asked for many points. `missing` is the first that a parameter was missing for."""

    machine: Machine
    form: Form = "measured"
    optimizer: str = "momentum"
    samples: int | None = None
    explain: bool = False
    missing: tuple[MissingParameter, Projection] | None = None
    predicted: int = 0

    def points(
        self,
        models: Sequence[tuple[ModelSpec, Sequence[Batch]]],
        ranks: Sequence[int],
        templates: Sequence[DivisionTemplate],
    ) -> Iterator[Projection]:
        """Every model with its batches, on every number of ranks, under every strategy.

        One that lacks a parameter says so in its limits, and has no time.
        """
        return (
            self._point(model, batch, p, template)
            for model, batches in models
            for batch in batches
            for p in ranks
            for template in templates
        )

    def _point(
        self, model: ModelSpec, batch: Batch, p: int, template: DivisionTemplate
    ) -> Projection:
        node = self.machine.parameters.ranks_per_node
        division = template.division(p, batch.of(p, node), node, model)
        why = template.why_no_groups(p)
        if why:
            return self._without_time(model, division, f"{why} (--inner takes others)")
        try:
            found = project(
                model, division, self.machine, self.form, self.optimizer, self.samples, self.explain
            )
        except MissingParameter as error:
            without = self._without_time(model, division, f"{NOT_PREDICTED}{advised(error)}")
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

    def require_some(self, models: str, points: Sequence[Projection] = ()) -> None:
        """Raise MissingParameter, with a plan of the points, if it kept all from being predicted."""
        if self.missing is not None and not self.predicted:
            error, first = self.missing
            plan = plan_of(models, points or [first])
            raise MissingParameter(f"{advised(error)}; {plan} plans it") from error


def parameters_of(path: Path, settings: Sequence[str] | None, instead: str = "") -> Parameters:
    """A parameter file with the changes of --set. `instead`: another option that would do.

    Raises InputError or FileError.
    """
    if path == LATEST_PARAMETERS and not path.exists():
        raise FileError(
            f"there is no {path} here; `calib calibrate` makes one, or give --parameters FILE{instead}"
        )
    return apply(Parameters.read(path), settings or ())
