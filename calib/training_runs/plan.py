"""`calib train --plan`: runs a plan.json, and compares its prediction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from calib.foundation.division import Division
from calib.foundation.errors import InputError
from calib.foundation.files import read_bytes
from calib.foundation.own import Own
from calib.foundation.words import estimate_words, number, percent
from calib.reports.scoring.accuracy import score
from calib.search.plan import SearchedPlan
from calib.terminal.printing import print_json, say
from calib.training.job import Settings
from calib.training.plans.division import division_of
from calib.training.run.record import TrainingRun
from calib.training_runs.options import model_layers
from calib.training_runs.table import as_dict, summary


@dataclass(frozen=True)
class PlanFile:
    """A plan, its file, and how one sees that it was edited after its search ("": it was not)."""

    path: Path
    plan: SearchedPlan
    digest: str
    edited: str = ""

    @classmethod
    def read(cls, path: Path) -> PlanFile:
        """Raises FileError for a file that is not a plan."""
        digest = sha256(read_bytes(path, "plan file")).hexdigest()
        plan = SearchedPlan.read(path)
        return cls(path, plan, digest, plan.edited)

    def division(self, model: str, own: Own | None) -> Division:
        """How it divides the model. Raises InputError where it is of another, or not trainable."""
        return division_of(self.plan, model_layers(model, own, f"a plan of {self.plan.space}"))

    def require_alone(self, given: Mapping[str, object]) -> None:
        """Raise InputError for options that say again how training is divided."""
        named = [option for option, value in given.items() if value]
        if named:
            raise InputError(f"--plan says how training is divided; leave out {', '.join(named)}")

    def settings(self, of: Settings) -> Settings:
        """With the optimizer that the plan is for. Raises InputError where another was chosen."""
        if of.optimizer not in (Settings.optimizer, self.plan.optimizer):
            raise InputError(
                f"the plan is for the optimizer {self.plan.optimizer}, not {of.optimizer}"
            )
        return replace(of, optimizer=self.plan.optimizer)


def comparison(of: PlanFile, run: TrainingRun) -> dict[str, Any]:
    """The predicted iteration and the run's median, in seconds, and the accuracy.

    A plan that was edited has no accuracy: it may have been edited after the run.
    """
    plan = of.plan
    measured, predicted = summary(run)["median_s"], plan.total
    return {
        "predicted_s": predicted.value,
        "low_s": predicted.low,
        "high_s": predicted.high,
        "measured_s": measured,
        "accuracy": None if of.edited else score(predicted.value, measured),
        "edited": of.edited,
        "phases_s": {name: time.value for name, time in plan.phases.items()},
        "form": plan.form,
        "parameters": plan.parameters,
    }


def show_planned(plan: PlanFile | None, run: TrainingRun) -> None:
    """Predicted beside measured, in two lines; nothing without a plan."""
    if plan is None:
        return
    of = comparison(plan, run)
    form = "" if plan.plan.form == "measured" else "paper's form, "
    judged = (
        f"not scored, as {plan.path} was edited by hand after its search: {of['edited']}"
        if of["edited"]
        else f"accuracy {percent(of['accuracy'])}"
    )
    say(
        f"  predicted by the plan ({form}parameters of {plan.plan.parameters}): "
        f"{estimate_words(plan.plan.total, 1e3)} ms, measured "
        f"{number(of['measured_s'] * 1e3)} ms: {judged}"
    )
    phases = [f"{name} {number(s * 1e3)} ms" for name, s in of["phases_s"].items() if s > 0]
    say(f"  of it, predicted: {', '.join(phases)}")


def print_found(
    plan: PlanFile | None,
    found: Sequence[tuple[TrainingRun, Path]],
    reasons: Sequence[str],
    several: bool,
) -> None:
    """The one JSON document of --json."""
    runs = [as_dict(run, path) for run, path in found]
    if plan is not None:
        print_json(runs[0] | {"plan": comparison(plan, found[0][0])})
    else:
        print_json({"runs": runs, "not_run": list(reasons)} if several else runs[0])
