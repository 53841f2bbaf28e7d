"""What a night trains: points of a request, with division and file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from calib.driver.defaults import ranks_per_node
from calib.fitting.parameters.file import Parameters
from calib.foundation.division import CALIBRATED, Division, traits_of
from calib.foundation.errors import InputError
from calib.foundation.execution import USUAL, unusual
from calib.oracle.costs.machine import Machine
from calib.oracle.model.spec import ModelSpec
from calib.oracle.template import DivisionTemplate
from calib.planning.built import require_built
from calib.planning.request import Request
from calib.reports.night import PlannedPoint
from calib.reports.scoring.accuracy import Missing
from calib.rundir import training_path
from calib.terminal.printing import say
from calib.training.job import Settings
from calib.training.models import entry
from calib.training.models.specs import named, why_not_built
from calib.training_runs.options import backend_on, trained_division
from calib.training_runs.stages import Balance


@dataclass(frozen=True)
class NightPoint:
    """A model, its division, execution and optimizer; `named` where the request has several of these."""

    model: ModelSpec
    division: Division
    optimizer: str
    execution: str = USUAL
    named: bool = False

    @property
    def _more(self) -> tuple[str, str]:
        """What tells apart points of one model, strategy and p."""
        return unusual(self.execution), self.optimizer * self.named

    @property
    def label(self) -> str:
        """For people: vgg16-mini pipeline 4 micro-batches p=2 bfloat16."""
        of = self.division
        words = [self.model.name, of.strategy, of.layout, f"p={of.p}", *self._more]
        return " ".join(filter(None, words))

    @property
    def file(self) -> str:
        """The run's file, relative to the run directory."""
        of = self.division
        return str(training_path(Path(), self.model.name, of.strategy, of.p, *self._more))

    @property
    def planned(self) -> PlannedPoint:
        """As night.json has it."""
        return PlannedPoint(
            model=self.model.name, division=self.division, label=self.label, file=self.file
        )

    def path(self, run: Path) -> Path:
        """The run's file in a run directory."""
        return run / self.file


def of_calibration(request: Request, ranks: int) -> Request:
    """The request with what every calibration trains, on the available p."""
    sizes = tuple(p for p in request.p if p <= ranks)
    if not sizes:
        raise InputError(
            f"the calibration is for p = {_words(request.p)}, and there are {ranks} ranks here; "
            "--ranks takes more"
        )
    strategies = tuple(dict.fromkeys([*CALIBRATED, *request.strategies]))
    return request.model_copy(update={"strategies": strategies, "p": sizes})


def points_of(
    request: Request, ranks: int, launcher: str, parameters: Parameters
) -> tuple[list[NightPoint], list[Missing]]:
    """The points that can be trained, in order, and those that cannot be laid out, with why.

    One rank runs serial and data parallelism, which says how well a run repeats. Stages of pipelines are
    those that `parameters` predict. Raises InputError for what cannot be trained at all (an unknown
    model, more than `ranks` ranks), and where no point is left.
    """
    _refuse(request, ranks)
    models = named(request.models)
    require_built(models.values())
    balance = Balance(Machine(parameters), "of the night")
    points: dict[str, NightPoint] = {}
    left_out: dict[str, Missing] = {}
    several = len(request.optimizers) > 1
    unbuilt = {name: why for name, model in models.items() if (why := why_not_built(model))}
    for name, why in unbuilt.items():
        say(f"left out: {why}")
        del models[name]
    for name, strategy, p, execution in _asked(request, models):
        model = models[name]
        try:
            division = _division(request, model, strategy, p, execution, launcher, balance)
        except InputError as error:
            what = f"{model.name} {strategy} p={p} {unusual(execution)}".rstrip()
            left_out[what] = Missing(what=what, why=str(error))
            continue
        for optimizer in request.optimizers:
            point = NightPoint(model, division, optimizer, execution, several)
            points.setdefault(point.file, point)
    if not points:
        reasons = [*(each.line for each in left_out.values()), *unbuilt.values()]
        raise InputError(reasons[0] if reasons else "serial runs on 1 rank: add 1 to p of the plan")
    return list(points.values()), list(left_out.values())


def _refuse(request: Request, ranks: int) -> None:
    beyond = [p for p in request.p if p > ranks]
    if beyond:
        raise InputError(
            f"the plan asks for p = {_words(beyond)}, and there are {ranks} ranks here; leave it "
            f"out, or --ranks {max(beyond)} trains it with several ranks on a core, marked and in "
            "no mean"
        )


def _asked(request: Request, models: Iterable[str]) -> Iterator[tuple[str, str, int, str]]:
    """(model, strategy, p, execution) of the request, each once, model by model."""
    seen = set()
    for model in models:
        for p in request.p:
            for name in request.strategies:
                if not traits_of(name).parallel and p > 1:
                    continue
                strategy = name if p > 1 or name == "data" else "serial"
                if (model, strategy, p) not in seen:
                    seen.add((model, strategy, p))
                    for execution in request.executions:
                        yield model, strategy, p, execution


def _division(
    request: Request,
    model: ModelSpec,
    strategy: str,
    p: int,
    execution: str,
    launcher: str,
    balance: Balance,
) -> Division:
    """The division as `calib train` lays it out. Raises InputError where it cannot be."""
    template = DivisionTemplate(strategy, segments=request.segments)
    about = entry(model.name, model.own)
    batch = request.global_batch(p, about.batch_per_rank)
    layers = None if p == 1 or traits_of(strategy).whole else model
    node = ranks_per_node(launcher, request.device)
    settings = Settings(backend_on(request.device), execution, own=model.own)
    division = trained_division(template, p, batch, node, about, layers, settings)
    return division if layers is None else balance.cut(layers.run_as(execution), division)[0]


def _words(sizes: tuple[int, ...] | list[int]) -> str:
    return ", ".join(map(str, sizes))
