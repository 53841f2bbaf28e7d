"""The whole way: doctor, probe, measure, fit, predict, train, report."""

from __future__ import annotations

import socket
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import date
from itertools import product
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

from calib.checked import checked, cost_lines, costs_of
from calib.driver.defaults import default_device, default_ranks, require_device
from calib.driver.probe import probe
from calib.driver.ranks import RanksEnded
from calib.fitting.fit import fit_runs
from calib.fitting.outliers.check import ClusterCheck
from calib.fitting.parameters.file import Parameters
from calib.foundation.division import CALIBRATED, Division
from calib.foundation.errors import FileError, InputError, MeasurementError, MissingParameter
from calib.foundation.execution import USUAL, unusual
from calib.foundation.files import ensure_directory, write_json
from calib.foundation.names import DeviceName
from calib.foundation.run_files import CLUSTER_FILE, DOCTOR_FILE, PARAMETERS_FILE, REPORT_HTML
from calib.foundation.words import counted
from calib.microbench.doctor import examine, require_measurable
from calib.microbench.records.cluster import Cluster
from calib.options import MINIS
from calib.oracle.costs.machine import Machine
from calib.oracle.layout.shards import fitted
from calib.oracle.model.spec import ModelSpec
from calib.oracle.predict import project
from calib.oracle.projection import Projection
from calib.oracle.template import DivisionTemplate
from calib.planning.built import require_built
from calib.planning.plan import plan_for_run
from calib.planning.request import FULL, Effort, request_of
from calib.precision import Asked, measure_within
from calib.predicting.file import write_predictions
from calib.reports.tables.cluster_check import culprit_lines, settings_lines, verdict
from calib.reports.writers.json import as_dict
from calib.rundir import default_run, link_latest, training_path
from calib.scoring.findings import report_of
from calib.terminal.calibrated import show as show_end
from calib.terminal.disturbed import of_training
from calib.terminal.doctor import show as show_findings
from calib.terminal.fit import fitted_words
from calib.terminal.measured import show as show_cases
from calib.terminal.printing import say
from calib.training.allowed import why_not_trained
from calib.training.job import Settings, TrainingJob
from calib.training.models.specs import batch_of, entry_of, named, why_not_built
from calib.training.run.record import TrainingRun
from calib.training_runs.options import backend_on
from calib.training_runs.stages import Balance
from calib.training_runs.train import train


class Steps:
    """Announces the steps and keeps how long each took."""

    def __init__(self, count: int) -> None:
        self.seconds: dict[str, float] = {}
        self._count = count

    @contextmanager
    def step(self, name: str, what: str) -> Iterator[None]:
        """One step of the pipeline."""
        say(f"\n[{len(self.seconds) + 1}/{self._count}] {name}: {what}")
        start = monotonic()
        yield
        self.seconds[name] = round(monotonic() - start, 2)


def calibrate(
    output: Path | None = None,
    effort: Effort = FULL,
    models: Sequence[str] = MINIS,
    batch_per_rank: int | None = None,
    ranks: int | None = None,
    launcher: str = "local",
    name: str | None = None,
    seed: int = 0,
    device: DeviceName | None = None,
    libraries: Sequence[str] | None = None,
    executions: Sequence[str] | None = None,
    variables: Mapping[str, str] | None = None,
    quiet: bool = False,
    strategies: Sequence[str] | None = None,
    precision: float | None = None,
) -> dict[str, Any]:
    """Run all steps in one run directory; a step that was done there is not done again.

    Parameters
    ----------
    output
        The run directory; by default runs/<date>-<cluster>.
    effort
        How long is measured and trained: `calib.planning.request.FULL`, `QUICK`, or another.
    models
        Registered models and model.json files. Those that do not say how they are built are only
        predicted.
    batch_per_rank
        Samples per rank and iteration; by default each model's own.
    ranks
        The most ranks; by default one per GPU or physical core, or those of the Slurm allocation.
    launcher
        How ranks are started: local, slurm, or a template with {n}.
    name
        Of the cluster; by default that of this host.
    seed
        Shuffles cases and makes data.
    device
        What is calibrated: cpu or cuda; by default cuda where a GPU is visible and PyTorch is built for
        CUDA.
    libraries
        What sends messages, the one that trains first; by default that one alone. With nccl its
        algorithms are measured, as the export for NCCL's tuner needs.
    executions
        How layers run (foundation/execution.py): each is measured, predicted and trained; by default
        float32 alone.
    variables
        Environment variables that the ranks are started with, on purpose.
    quiet
        Whether no tables are printed on stdout; what goes on is said on stderr all the same.
    strategies
        By name; by default serial and data.
    precision
        The half-width of every predicted iteration's 95% interval, relative, at which measuring ends
        before the effort's launches are made; by default all are.

    Returns
    -------
    The paths in the run directory, seconds of each step, rows, projections, which trainings failed, what
    the precision is, and the report. Of a single execution the first failure ends the calibration.

    Raises
    ------
    CalibError
        Where a step cannot be done: InputError for what was asked, MachineError and MeasurementError
        for what the machine does not do, FileError for files.
    """
    specs, strategies = named(models), CALIBRATED if strategies is None else strategies
    _require_trainable(specs.values())
    device = device or default_device()
    require_device(device, launcher)
    ranks = ranks or default_ranks(launcher, device)
    sizes = sorted({1, ranks})
    request = request_of(
        effort,
        models=tuple(models),
        strategies=strategies,
        p=tuple(sizes),
        ranks=ranks,
        device=device,
        libraries=libraries,
        executions=executions,
        variables=dict(variables or {}),
        batch_per_rank=batch_per_rank,
        seed=seed,
    )
    points = points_of(
        list(specs.values()),
        batch_per_rank,
        sizes,
        effort.extras,
        request.executions,
        device,
        strategies,
    )
    steps = Steps(7)
    with steps.step("doctor", "what this machine can do"):
        findings = examine(ranks, launcher, device)
        warned = [finding for finding in findings if finding.verdict != "ok"]
        fine = len(findings) - len(warned)
        say(f"{fine} of {len(findings)} checks passed; `calib doctor` lists them")
        if warned and not quiet:
            show_findings(warned)
        require_measurable(findings)
    with steps.step("probe", "hosts, devices, levels, links"):
        if output is None:
            output = default_run(name or socket.gethostname().split(".")[0], date.today())
        run = ensure_directory(output)
        write_json(run / DOCTOR_FILE, [finding.model_dump() for finding in findings])
        cluster = _probed(run / CLUSTER_FILE, launcher, ranks, name)
        alike = _compared(run, cluster, launcher, ranks, device)
    with steps.step(
        "measure", f"{effort.budget_s:.0f} s and start-ups, on {', '.join(map(str, sizes))} ranks"
    ):
        plan, asked = plan_for_run(run, request, cluster), [point.asked for point in points]
        rows, known = measure_within(run, plan, launcher, asked, precision)
        show_cases(run, rows)
    with steps.step("fit", "alpha, beta, layers, updates, packing"):
        parameters = fit_runs([run])
        parameters.write(run / PARAMETERS_FILE)
        say(f"{fitted_words(parameters)}; `calib show {run / PARAMETERS_FILE}` prints them")
    balance = Balance(Machine(parameters), "of the calibration")
    points = [_in_stages(point, balance) for point in points]
    with steps.step("predict", f"{len(points)} points, before any of them is run"):
        projections, missing = _predict(run, points)
        for point, reason in missing.items():
            say(f"not predicted, so not run: {point.label}: {reason}")
    times = f"{counted(effort.turns, 'turn')} of {effort.iterations} timed iterations"
    with steps.step("train", f"{times} of each point"):
        settings = Settings(
            backend=backend_on(device, request.libraries),
            iterations=effort.iterations,
            seed=seed,
            variables=request.variables,
        )
        todo = [x for x in points if x not in missing and entry_of(x.model) is not None]
        failed = _train(run, todo, effort.turns, settings, cluster.fingerprint, launcher)
    with steps.step("report", "predicted against measured"):
        made = report_of([run])
        made.write(run / REPORT_HTML)
        link_latest(run)
    if not quiet:
        seconds, first = sum(steps.seconds.values()), request.executions[0]
        show_end(
            made.findings,
            run,
            seconds,
            models[0],
            ranks,
            first,
            _of_cluster(alike, points, parameters),
        )
    return {
        "run": str(run),
        "parameters": str(run / PARAMETERS_FILE),
        "page": str(run / REPORT_HTML),
        "seconds": steps.seconds,
        "rows": rows,
        "failed": failed,
        "cluster_check": alike and alike.model_dump(mode="json"),
        "precision": known,
        "projections": [projection.model_dump() for projection in projections],
        **as_dict(made.findings),
    }


def _compared(
    run: Path, cluster: Cluster, launcher: str, ranks: int, device: DeviceName
) -> ClusterCheck | None:
    """Who of several nodes or GPUs is not like the others; None where there are no others."""
    say(f"cluster {cluster.name}, fingerprint {cluster.fingerprint}; results go to {run}")
    if cluster.nodes == 1 and (device == "cpu" or ranks == 1):
        return None
    alike = checked(run, launcher, ranks, device)
    for line in (verdict(alike), *culprit_lines(alike), *settings_lines(alike)):
        say(line)
    return alike


def _of_cluster(
    alike: ClusterCheck | None, points: Sequence[CalibrationPoint], parameters: Parameters
) -> list[str]:
    """Who is not like the others, and what it costs data parallelism on all ranks."""
    if alike is None:
        return []
    lines = [verdict(alike), *culprit_lines(alike)]
    most = max(point.division.p for point in points)
    data = [x for x in points if x.division.strategy == "data" and x.division.p == most]
    if alike.culprits and data:
        of = data[0].model.run_as(data[0].execution), data[0].division
        lines += cost_lines(costs_of(alike, *of, parameters, included=True), *of)
    return lines


def _require_trainable(specs: Collection[ModelSpec]) -> None:
    """Raise InputError where no model can be built, or one has changed."""
    if all(unbuilt := list(map(why_not_built, specs))):
        raise InputError(f"{unbuilt[0]}; `calib measure` and `calib fit` take it")
    require_built(specs)


def _probed(path: Path, launcher: str, ranks: int, name: str | None) -> Cluster:
    """The cluster as it is now. Raises InputError for a run directory begun on another one."""
    if not path.exists():
        return probe(path, launcher, ranks, name)
    known = Cluster.read(path)
    fresh = path.with_name("cluster.now.json")
    now = probe(fresh, launcher, ranks, name).declared_as(known)
    fresh.unlink()
    if now.fingerprint != known.fingerprint:
        raise InputError(
            f"{path.parent} was begun on another machine or with other versions "
            f"({known.fingerprint}, now {now.fingerprint}); choose another -o"
        )
    return known


class CalibrationPoint(NamedTuple):
    """What is predicted and trained."""

    model: ModelSpec
    division: Division
    execution: str = USUAL

    @property
    def label(self) -> str:
        """For people: vgg16-mini data p=2 bfloat16."""
        words = (
            self.model.name,
            self.division.slug,
            f"p={self.division.p}",
            unusual(self.execution),
        )
        return " ".join(filter(None, words))

    @property
    def asked(self) -> Asked:
        """What is predicted of it."""
        return Asked(self.label, self.model.run_as(self.execution), self.division)

    def path(self, run: Path, turn: int = 0) -> Path:
        """The file of one launch of its training in a run directory."""
        of, later = self.division, f"turn{turn + 1}" if turn else ""
        return training_path(run, self.model.name, of.slug, of.p, unusual(self.execution), later)


def points_of(
    models: Sequence[ModelSpec],
    batch_per_rank: int | None,
    sizes: list[int],
    overlap: bool,
    executions: Sequence[str] = (USUAL,),
    device: str = "cpu",
    strategies: Sequence[str] = CALIBRATED,
) -> list[CalibrationPoint]:
    """Serial and data parallelism of each model; with overlap that of the first on all ranks.

    Other strategies on more ranks than one, where the model can be divided so. All of it in each
    execution that the device has for it, one after the other.
    """
    divided: list[tuple[ModelSpec, Division]] = []
    for model in models:
        each = batch_of(model, batch_per_rank)
        for strategy in strategies:
            alone = {"serial": [1], "data": sizes}.get(strategy, [p for p in sizes if p > 1])
            template = DivisionTemplate(strategy)
            for p in alone:
                if why := template.why_no_groups(p):
                    say(f"left out: {model.name} {strategy} p={p}: {why}")
                else:
                    divided.append((model, template.division(p, p * each, p, model)))
        p = sizes[-1]
        if overlap and model is models[0] and p > 1 and "data" in strategies:
            divided.append((model, Division("data", p, p * each, overlap=True)))
    points = []
    for execution, (model, division) in product(executions, divided):
        point = CalibrationPoint(model, fitted(model, division), execution)
        reasons = why_not_trained(
            point.division, model, execution, input_shape=model.input_shape, device=device
        )
        if reasons:
            say(f"left out: {point.label}: {reasons[0]}")
        else:
            points.append(point)
    return points


def _in_stages(point: CalibrationPoint, balance: Balance) -> CalibrationPoint:
    """A pipeline with the stages that its prediction has; others as they are."""
    division, _ = balance.cut(point.model.run_as(point.execution), point.division)
    return point._replace(division=division)


def _predict(
    run: Path, points: list[CalibrationPoint]
) -> tuple[list[Projection], dict[CalibrationPoint, str]]:
    """Project every point and write predictions.json; also why points have no prediction."""
    machine = Machine(Parameters.read(run / PARAMETERS_FILE))
    projections, missing = [], {}
    for point in points:
        try:
            model = point.model.run_as(point.execution)
            projections.append(project(model, point.division, machine))
        except MissingParameter as error:
            missing[point] = str(error)
    write_predictions(run, projections)
    return projections, missing


def _train(
    run: Path,
    points: Sequence[CalibrationPoint],
    turns: int,
    settings: Settings,
    fingerprint: str,
    launcher: str,
) -> dict[str, str]:
    """Train every point in so many turns, unless that is done; label -> why for those that failed.

    Where all points are of one execution, the first failure is raised. Else the others go on: PyTorch
    has not every kernel in every item type.
    """
    failed: dict[str, str] = {}
    for turn, point in product(range(turns), points):
        path = point.path(run, turn)
        if point.label in failed or _complete(path, settings.iterations):
            continue
        job = TrainingJob(
            model=point.model.name,
            division=point.division,
            settings=replace(settings, execution=point.execution, own=point.model.own),
            fingerprint=fingerprint,
            series=point.path(run).stem,
        )
        try:
            if line := of_training(train(path, job, launcher)):
                say(f"{point.label}: {line}")
        except (MeasurementError, RanksEnded) as error:
            if len({each.execution for each in points}) == 1:
                raise
            failed[point.label] = str(error)
            say(f"failed: {point.label}: {error}")
    return failed


def _complete(path: Path, iterations: int) -> bool:
    """Whether a training run is complete, so that an interrupted calibration goes on."""
    with suppress(FileError):
        run = TrainingRun.read(path)
        return run.complete and run.header.iterations == iterations
    return False
