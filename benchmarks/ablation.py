"""What each correction of the oracle brings: runs scored again with one of them left out.

`python -m benchmarks.ablation RUN...`, of run directories with samples and training runs. "Of other
models": every model is predicted from laws that its own iterations in place had no part in.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from calib.fitting.fit import fit
from calib.fitting.measured_run import MeasuredRun, read_run
from calib.fitting.parameters.file import Parameters
from calib.fitting.sections.composition import COPIES, EXCHANGE
from calib.foundation.errors import CalibError
from calib.microbench.cases import MET, InPlaceCase
from calib.oracle.costs.machine import Machine
from calib.predicting.file import projected, spec_of
from calib.reports.scoring.accuracy import Accuracy
from calib.reports.scoring.pairing import score_runs
from calib.reports.scoring.summary import summary
from calib.rundir import training_runs
from calib.training.run.record import TrainingRun


@dataclass(frozen=True)
class Variant:
    """A name; what of the samples is fitted, and what of the laws is kept."""

    name: str
    rows: Callable[[MeasuredRun], MeasuredRun] = lambda run: run
    laws: Callable[[Parameters], Parameters] = lambda parameters: parameters


def without_phases(*phases: str) -> Callable[[Parameters], Parameters]:
    """The parameters without the composition laws of some phases."""

    def change(parameters: Parameters) -> Parameters:
        kept = [law for law in parameters.composition if law.phase not in phases]
        return parameters.model_copy(update={"composition": kept})

    return change


def alone(run: MeasuredRun) -> MeasuredRun:
    """Without the layers that were timed in place."""
    hooked = run.samples.mask("operation", lambda name: name.startswith("layer_"))
    hooked &= run.samples.mask("kind", "in_place".__eq__)
    return replace(run, samples=run.samples.where(~hooked))


def without_model(run: MeasuredRun, model: str) -> MeasuredRun:
    """Without the iterations of a model in place."""
    own = {c.id for c in run.cases if isinstance(c, InPlaceCase) and c.model == model}
    return replace(run, samples=run.samples.where(~run.samples.mask("case_id", own.__contains__)))


MEETINGS = without_phases(*MET)
VARIANTS = (
    Variant("as it is"),
    Variant("layers alone, with one law of what an iteration adds", alone),
    Variant("copies alone", laws=without_phases(COPIES)),
    Variant("calls between layers alone", laws=MEETINGS),
    Variant("exchange from warm buffers", laws=without_phases(EXCHANGE)),
    Variant("all four left out", alone, without_phases(COPIES, EXCHANGE, *MET)),
    Variant(
        "nothing added in place at all", alone, lambda of: of.model_copy(update={"composition": []})
    ),
)


def accuracies_of(parameters: Parameters, runs: Sequence[TrainingRun]) -> list[Accuracy]:
    """The runs, scored by predictions from these parameters."""
    machine, predictions = Machine(parameters), []
    for head in (run.header for run in runs):
        with suppress(CalibError):  # then that run has no score
            made = projected(machine, spec_of(head.model), head.division, optimizer=head.optimizer)
            predictions.append(made)
    return score_runs(predictions, runs)[0]


def line_of(name: str, accuracies: Sequence[Accuracy]) -> str:
    """A row of the table: means, worst point, coverage."""
    of = summary(accuracies)
    means = " ".join(f"{s} {m:.1%}" for s, m in of.strategy_means.items())
    if of.worst is None:
        return f"| {name} | no point |"
    worst = f"{of.worst.accuracy:.1%} ({of.worst.model} {of.worst.strategy})"
    return (
        f"| {name} | {of.mean_of_strategy_means:.1%} | {worst} | {of.coverage_90:.0%} | {means} |"
    )


def of_others(run: MeasuredRun, runs: Sequence[TrainingRun]) -> list[Accuracy]:
    """Every model by what the iterations of the others say."""
    found = []
    for model in sorted({item.header.model for item in runs}):
        own = [item for item in runs if item.header.model == model]
        found += accuracies_of(fit([without_model(run, model)]), own)
    return found


def table(path: Path) -> list[str]:
    """The table of one run directory."""
    measured = read_run(path)
    runs = [TrainingRun.read(each) for each in training_runs(path)]
    lines = [
        "| what | mean of strategy means | worst | 90% covers | strategies |",
        "|---|---|---|---|---|",
    ]
    fitted: Mapping[str, Parameters] = {}
    for variant in VARIANTS:
        key = variant.rows.__name__
        if key not in fitted:
            fitted = {**fitted, key: fit([variant.rows(measured)])}
        lines.append(line_of(variant.name, accuracies_of(variant.laws(fitted[key]), runs)))
    lines.append(line_of("of other models", of_others(measured, runs)))
    return lines


def main(arguments: Sequence[str]) -> int:
    """Print the table of every run directory."""
    try:
        for name in arguments:
            print(f"{name}\n")
            print("\n".join(table(Path(name))), "\n")
    except CalibError as error:
        print(f"ablation: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
