"""How well a model is predicted of which nothing was measured, from the calibration of others.

`python -m benchmarks.unseen_models RUN...` takes run directories of one cluster in which several models
were measured and trained. Each model in turn is left out: its layers that no other model has, its
iterations in place, its lists of tensors. The rest is fitted, and the trained points of the model are
predicted; then again with all that was measured. The same runs give the same lines.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from calib.fitting.fit import fit
from calib.fitting.measured_run import MeasuredRun, read_run
from calib.foundation.layer_keys import but_batch
from calib.microbench.cases import Case, InPlaceCase, LayerCase, TensorsCase
from calib.oracle.cost import Cost, total
from calib.oracle.costs.machine import Machine
from calib.oracle.predict import divided, project
from calib.oracle.strategies import strategy_named
from calib.predicting.file import spec_of
from calib.reports.scoring.accuracy import Accuracy
from calib.reports.scoring.pairing import pair, why_not_scored
from calib.rundir import training_runs
from calib.training.run.record import TrainingRun

SOURCES = 4  # of an interval's width, that are named


@dataclass(frozen=True)
class Point:
    """A trained point, its score, and the Cost behind its prediction."""

    accuracy: Accuracy
    cost: Cost

    @property
    def name(self) -> str:
        """Model, strategy and p."""
        of = self.accuracy
        return f"{of.model} {of.layout or of.strategy} p={of.p}"

    @property
    def half_width(self) -> float:
        """Of the interval, over the prediction."""
        of = self.accuracy.total.predicted
        return 0.5 * (of.high - of.low) / of.value

    @property
    def line(self) -> str:
        """Milliseconds, score and sources of the interval."""
        of = self.accuracy.total
        predicted, held = of.predicted, "held" if of.covered else "NOT held"
        return (
            f"  {self.name:34s} {1e3 * of.measured.value:7.1f} ms, predicted "
            f"{1e3 * predicted.value:7.1f} [{1e3 * predicted.low:.1f}, {1e3 * predicted.high:.1f}], "
            f"{100 * _accuracy(self):5.1f}%, {held}: {self._sources()}"
        )

    def _sources(self) -> str:
        """The sources of most of the squared width, with their shares."""
        squares: dict[str, float] = {}
        for source, down, up in self.cost.errors:
            name = source.partition(":")[0]  # of one layer: its law
            squares[name] = squares.get(name, 0.0) + down**2 + up**2
        whole = sum(squares.values()) or 1.0
        most = sorted(squares.items(), key=lambda each: -each[1])[:SOURCES]
        return ", ".join(f"{name} {100 * square / whole:.0f}%" for name, square in most)


Layers = set[tuple[str, str]]  # keys without the batch


def models_of(runs: Sequence[MeasuredRun]) -> dict[str, Layers]:
    """The models that were measured in place, and their layers."""
    found: dict[str, Layers] = {}
    for case in (case for run in runs for case in run.cases):
        if isinstance(case, InPlaceCase):
            found.setdefault(case.model, set()).update(map(but_batch, case.layer_keys))
    return found


def without(run: MeasuredRun, model: str, models: dict[str, Layers]) -> MeasuredRun:
    """The run as if nothing of a model had been measured."""
    others: Layers = set().union(*(layers for name, layers in models.items() if name != model))
    mine = models[model] - others
    in_place = [case for case in run.cases if isinstance(case, InPlaceCase)]
    lists = {case.tensors_key for case in in_place if case.model == model} - {
        case.tensors_key for case in in_place if case.model != model
    }

    def is_kept(case: Case) -> bool:
        if isinstance(case, InPlaceCase):
            return case.model != model
        if isinstance(case, LayerCase):
            return but_batch(case.key) not in mine
        return not (isinstance(case, TensorsCase) and case.key in lists)

    assert run.plan is not None  # of logs alone
    kept = {case.id: case for case in run.cases if is_kept(case)}
    gone = {case.id for case in run.cases} - set(kept)
    ends = [end for end in run.manifest.cases if end.case_id not in gone]
    return replace(
        run,
        samples=run.samples.where(run.samples.mask("case_id", lambda case: case not in gone)),
        plan=run.plan.model_copy(update={"cases": tuple(kept.values())}),
        manifest=run.manifest.model_copy(update={"cases": ends}),
    )


def points(machine: Machine, trained: Sequence[tuple[Path, TrainingRun]]) -> Iterator[Point]:
    """Each training predicted on a machine, with what its interval is made of."""
    for run, training in trained:
        head = training.header
        model = spec_of(head.model, run).run_as(head.execution)
        projection = project(model, head.division, machine, optimizer=head.optimizer)
        division = divided(model, head.division, machine)
        active = min(head.p, machine.parameters.ranks_per_node)
        costs = machine.costs(active, head.optimizer, model.execution)
        terms = strategy_named(division.strategy).measured(model, division, costs)
        yield Point(pair(projection, training), total(term.cost for term in terms))


def unseen_models(paths: Sequence[Path]) -> Iterator[str]:
    """A line for every trained point, without its model and with it, and what they come to."""
    runs = [read_run(path) for path in paths]
    models = models_of(runs)
    trained = [(path, TrainingRun.read(file)) for path in paths for file in training_runs(path)]
    trained = [each for each in trained if why_not_scored(each[1]) is None]
    unseen: list[Point] = []
    for model in models:
        mine = [each for each in trained if each[1].header.model == model]
        if mine:
            machine = Machine(fit([without(run, model, models) for run in runs]))
            found = list(points(machine, mine))
            unseen += found
            yield from (point.line for point in found)
    yield _summary("left out", unseen)
    seen = list(points(Machine(fit(runs)), trained))
    yield from (point.line for point in seen)
    yield _summary("measured", seen)


def _accuracy(point: Point) -> float:
    accuracy = point.accuracy.total.accuracy
    assert accuracy is not None  # a training that took no time is not scored
    return accuracy


def _summary(what: str, found: Sequence[Point]) -> str:
    accuracies, n = [_accuracy(point) for point in found], max(len(found), 1)
    held = sum(point.accuracy.total.covered for point in found) / n
    width = sum(point.half_width for point in found) / n
    return (
        f"{what}: {len(found)} points, accuracy {100 * sum(accuracies) / n:.1f}% (worst "
        f"{100 * min(accuracies, default=0.0):.1f}%), {100 * held:.0f}% held, half width "
        f"+-{100 * width:.1f}%"
    )


if __name__ == "__main__":
    for row in unseen_models([Path(word) for word in sys.argv[1:]]):
        print(row, flush=True)
