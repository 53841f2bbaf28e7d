"""The steps of a night: predictions before anything is trained, the check, the trainings."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from signal import SIGTERM

from calib.driver.measure import measure
from calib.driver.ranks import RanksEnded
from calib.fitting.parameters.file import Parameters
from calib.foundation.errors import (
    InputError,
    Interrupted,
    MachineError,
    MeasurementError,
    MissingParameter,
)
from calib.foundation.files import open_own
from calib.foundation.run_files import CHECK, NIGHT_LOG_FILE, PLAN_FILE
from calib.microbench.cases import read_plan
from calib.microbench.records.cluster import Cluster
from calib.night.cases import Known, chosen, planned_cases
from calib.night.check import begin, check_plan, read_checks
from calib.night.options import Begun, NightOptions
from calib.night.points import NightPoint
from calib.oracle.costs.machine import Machine
from calib.oracle.costs.senders import library_of
from calib.oracle.predict import project
from calib.planning.request import Request
from calib.predicting.file import write_predictions
from calib.process.interrupts import INTERRUPTS, SIGNALS
from calib.reports.scoring.accuracy import Missing
from calib.terminal.printing import say
from calib.training.job import Settings, TrainingJob
from calib.training_runs.options import backend_on
from calib.training_runs.train import train

# fields of a request that say which points there are; the others say how they are measured
OF_POINTS = (
    "models",
    "strategies",
    "p",
    "batch",
    "batch_per_rank",
    "segments",
    "executions",
    "optimizers",
)


def predict(run: Path, points: list[NightPoint], parameters: Parameters) -> dict[str, str]:
    """Write predictions.json of all points; returns label -> why for those without a prediction."""
    machine = Machine(parameters)
    projections, unpredicted = [], {}
    for point in points:
        try:
            model = point.model.run_as(point.execution)
            found = project(model, point.division, machine, optimizer=point.optimizer)
        except (MissingParameter, InputError) as error:
            unpredicted[point.label] = f"not predicted: {error}"
            continue
        if found.total is None:
            unpredicted[point.label] = f"not predicted: {'; '.join(found.limits)}"
        projections.append(found)
    write_predictions(run, projections)
    return unpredicted


def plan_check(
    run: Path,
    options: NightOptions,
    request: Request,
    base: Request,
    points: list[NightPoint],
    parameters: Parameters,
    cluster: Cluster,
) -> list[Missing]:
    """Choose the cases of the check and write their plan; returns what it cannot check.

    The cases are of the points of `request`, at the sizes of `base`, by which the parameters were
    measured.
    """
    asked = base.model_copy(update={name: getattr(request, name) for name in OF_POINTS})
    cases = chosen(planned_cases(asked, cluster), points, Known(parameters))
    if not cases:
        why = "the parameters hold no measured case of these points"
        return [Missing(what="the check", why=why)]
    settled = options.settled
    check = check_plan(cases, settled.check_budget_s, settled.seed, parameters.variables)
    begin(run / CHECK, check, cluster)
    return []


def check(begun: Begun) -> None:
    """Measure the cases of the check and keep how they compare, whatever ends the measuring.

    Raises Interrupted, after the results so far were kept.
    """
    run = begun.run / CHECK
    if not (run / PLAN_FILE).exists():
        return
    why = ""
    try:
        with steps_in(begun.run / NIGHT_LOG_FILE):
            measure(run, read_plan(run), begun.launcher, begun.night.hang_s)
    except (MeasurementError, MachineError) as error:
        why = str(error)
    finally:
        checks, unchecked = read_checks(run, Known(begun.parameters))
        if why and not checks:
            unchecked = [Missing(what="the check", why=why)]
        begun.night.checks[:], begun.night.unchecked[:] = checks, unchecked
        begun.night.write(begun.run)


def train_all(begun: Begun) -> None:
    """Train every point that has no complete run.

    A point that fails is reported and kept in night.json with the reason; the others go on. Raises
    Interrupted, and FileError where nothing can be written any more.
    """
    night = begun.night
    for point in begun.missing():
        if point.label in night.failed:  # it has no prediction
            say(f"not run: {point.label}: {night.failed[point.label]}")
            continue
        why = _train(begun, point)
        if why:
            say(f"failed: {point.label}: {why}")
            night.failed[point.label] = why
            night.write(begun.run)


def _train(begun: Begun, point: NightPoint) -> str:
    """Train one point; returns why it failed, or nothing."""
    night = begun.night
    job = TrainingJob(
        model=point.model.name,
        division=point.division,
        settings=Settings(
            backend=backend_on(
                begun.parameters.device_kind, (library_of(begun.parameters).library,)
            ),
            own=point.model.own,
            execution=point.execution,
            optimizer=point.optimizer,
            iterations=night.iterations,
            seed=night.seed,
            hang_s=night.hang_s,
            variables=begun.parameters.variables,
        ),
        fingerprint=begun.cluster.fingerprint,
    )
    try:
        with steps_in(begun.run / NIGHT_LOG_FILE):
            train(point.path(begun.run), job, begun.launcher)
    except RanksEnded as error:
        return error.reason
    except (MeasurementError, MachineError, InputError) as error:
        return str(error)
    return ""


@contextmanager
def steps_in(log: Path) -> Iterator[None]:
    """Where stderr is no terminal, output of the steps goes to a file: a mail of cron is short."""
    if sys.stderr.isatty():
        yield
        return
    with os.fdopen(open_own(log, append=True), "a") as stream, redirect_stderr(stream):
        yield


def measured(begun: Begun) -> bool:
    """The check and the trainings; False where somebody stopped them.

    After SIGTERM a second one is ignored: a batch system sends several, and the partial report, which
    is quick, comes first.
    """
    try:
        check(begun)
        train_all(begun)
    except (Interrupted, KeyboardInterrupt):
        INTERRUPTS.ignore(SIGTERM)
        say("stopped: interrupted")  # the step's own advice names another verb
        return False
    return True


@contextmanager
def report_first() -> Iterator[None]:
    """In the block, which makes the report, SIGTERM and the first Ctrl-C only print a message.

    The second Ctrl-C ends it: a remote history may not answer. After the block both are ignored: only
    the end of the process follows, and its exit code says what was found.
    """
    before = INTERRUPTS.hold_back("interrupted: the report comes first, a moment")
    try:
        yield
    except BaseException:
        INTERRUPTS.put_back(before)
        raise
    INTERRUPTS.ignore(*SIGNALS)
