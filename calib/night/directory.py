"""A night's run directory, new or unfinished."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import date
from itertools import count
from pathlib import Path

from calib import __version__
from calib.driver.lock import only_night
from calib.fitting.parameters.file import Parameters
from calib.foundation.errors import FileError, InputError
from calib.foundation.files import ensure_directory, read_bytes, write_json, write_whole
from calib.foundation.run_files import (
    CALIBRATED_ON,
    CLUSTER_FILE,
    DOCTOR_FILE,
    NIGHT_FILE,
    PARAMETERS_FILE,
    REQUEST_FILE,
)
from calib.microbench.records.cluster import Cluster
from calib.microbench.records.manifest import utc_now
from calib.night.machine import (
    doctored,
    probed,
    ranks_in,
    refuse_other_device,
    refuse_other_machine,
    refuse_other_parameters,
)
from calib.night.options import Begun, NightOptions
from calib.night.points import NightPoint, of_calibration, points_of
from calib.night.steps import plan_check, predict
from calib.planning.request import Request
from calib.reports.night import Night
from calib.reports.scoring.accuracy import Missing
from calib.rundir import directory_name
from calib.training.models.specs import keep_models

FRESH = "cluster.now.json"


@contextmanager
def night_of(options: NightOptions) -> Iterator[Begun]:
    """A new night, or the unfinished one of --output; no other runs on this host meanwhile.

    Raises InputError, FileError or MachineError, with nothing left behind: no calibration, one of other
    hardware, a plan that cannot be trained, a night that is complete.
    """
    # os.path: Path.exists raises where a name is too long
    if options.output is not None and os.path.exists(options.output / NIGHT_FILE):
        with only_night(f"night {options.output}"):
            yield _gone_on_with(options, options.output)
        return
    known = _calibration(options)
    request, base = _requests(options, known)
    ranks = options.ranks or ranks_in(known)
    parameters = Parameters.read(options.calibration / PARAMETERS_FILE)
    points, left_out = points_of(request, ranks, options.launcher, parameters)
    runs = ensure_directory(options.calibration.resolve().parent)
    with only_night(f"night of {options.calibration}"):
        findings = doctored(ranks, options.launcher, request.device)
        there = options.output is not None and os.path.exists(options.output)
        run = _new_directory(options, runs, known)
        try:
            begun = _begin(run, options, known, request, base, points, left_out)
            write_json(run / DOCTOR_FILE, [finding.model_dump() for finding in findings])
        except BaseException:
            if not (run / NIGHT_FILE).exists():  # all in it was made by this call, a moment ago
                shutil.rmtree(run, ignore_errors=True)
                if there:
                    ensure_directory(run)
            raise
        begun.said[:0] = [
            *(f"{f.name}: {f.found}; {f.advice}" for f in findings if f.verdict != "ok"),
            *(f"not planned: {each.line}" for each in left_out),
        ]
        yield begun


def _calibration(options: NightOptions) -> Cluster:
    """The machine of the calibration. Raises where there is no finished one."""
    known = options.calibration
    if not os.path.isdir(known):
        raise FileError(
            f"there is no calibration {known} here; `make calibrate` makes one, --calibration RUN "
            "names another"
        )
    if (known / NIGHT_FILE).exists():
        raise InputError(f"{known} is a night; --calibration names the run it was calibrated by")
    if not (known / PARAMETERS_FILE).exists():
        raise FileError(
            f"{known} holds no {PARAMETERS_FILE}: it is no finished calibration; `make calibrate` "
            "goes on with it"
        )
    return Cluster.read(known / CLUSTER_FILE)


def _requests(options: NightOptions, cluster: Cluster) -> tuple[Request, Request]:
    """What is to be trained, and the request that the calibration measured."""
    known = options.calibration
    own = known / REQUEST_FILE
    if options.plan is not None:
        asked = Request.read(options.plan)
        return asked, Request.read(own) if own.exists() else asked
    if not own.exists():
        raise FileError(
            f"{known} holds no {REQUEST_FILE} that says what to train; name one with --plan "
            "(`calib plan -o plan.toml` writes it)"
        )
    base = Request.read(own)
    return of_calibration(base, options.ranks or ranks_in(cluster)), base


def _new_directory(options: NightOptions, runs: Path, known: Cluster) -> Path:
    """A new directory: that of --output, or <date>-<cluster>-night beside the runs."""
    if options.output is not None:
        if os.path.isdir(options.output) and any(options.output.iterdir()):
            raise InputError(f"{options.output} is there and holds no night; choose another -o")
        return ensure_directory(options.output)
    base = f"{date.today().isoformat()}-{directory_name(options.name or known.name)}-night"
    for number in count(1):
        run = near(runs / (base if number == 1 else f"{base}-{number}"))
        try:
            run.mkdir()
        except FileExistsError:
            continue
        except OSError as error:
            raise FileError(f"cannot create the directory {run}: {error.strerror}") from error
        break
    return run


def near(path: Path) -> Path:
    """The path relative to the working directory, where it is below; shorter for people."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def _begin(
    run: Path,
    options: NightOptions,
    calibrated_on: Cluster,
    request: Request,
    base: Request,
    points: list[NightPoint],
    left_out: list[Missing],
) -> Begun:
    """Fill the directory of a new night; with night.json, which comes last, the night has begun."""
    known = options.calibration
    cluster = probed(run / CLUSTER_FILE, calibrated_on, options.launcher, options.name)
    refuse_other_machine(cluster, calibrated_on, known)
    calibrated_on.write(run / CALIBRATED_ON)
    write_whole(run / PARAMETERS_FILE, read_bytes(known / PARAMETERS_FILE, "parameter file"))
    parameters = Parameters.read(run / PARAMETERS_FILE)
    refuse_other_parameters(parameters, calibrated_on, known / PARAMETERS_FILE)
    refuse_other_device(request, parameters, known / PARAMETERS_FILE)
    keep_models(run, [point.model for point in points])
    request.write(run / REQUEST_FILE)
    unchecked = plan_check(run, options, request, base, points, parameters, cluster)
    night = Night(
        id=uuid.uuid4().hex,
        started=utc_now(),
        program_version=__version__,
        calibration=str(known.resolve()),
        planned=[point.planned for point in points],
        unplanned=left_out,
        unchecked=unchecked,
        **asdict(options.settled),
    )
    night.failed.update(predict(run, points, parameters))
    night.write(run)
    said = [f"not made: {each.line}" for each in unchecked]
    return Begun(run, night, points, parameters, cluster, calibrated_on, said, options.launcher)


def _gone_on_with(options: NightOptions, run: Path) -> Begun:
    """Go on with the night of --output. Raises InputError where it is whole or differs."""
    night = Night.read(ensure_directory(run))
    options = options.going_on(run, night)
    calibrated_on, cluster = Cluster.read(run / CALIBRATED_ON), Cluster.read(run / CLUSTER_FILE)
    ranks = options.ranks or ranks_in(calibrated_on)
    request = Request.read(options.plan or run / REQUEST_FILE)
    parameters = Parameters.read(run / PARAMETERS_FILE)
    points, _ = points_of(request, ranks, options.launcher, parameters)
    if [point.planned for point in points] != night.planned:
        raise InputError(
            f"{run} was begun with another plan; leave --plan out to go on, or choose another -o"
        )
    begun = Begun(run, night, points, parameters, cluster, calibrated_on, [], options.launcher)
    if not begun.missing():
        raise InputError(
            f"{run} is complete: nothing is missing; `calib report {run}` reports it, another -o "
            "begins a new one"
        )
    doctored(ranks, options.launcher, request.device)
    now = probed(run / FRESH, cluster, options.launcher, options.name)
    (run / FRESH).unlink(missing_ok=True)
    if now.fingerprint != cluster.fingerprint:
        raise InputError(
            f"{run} was begun on another machine or with other versions ({cluster.fingerprint}, now "
            f"{now.fingerprint}); choose another -o"
        )
    night.failed.clear()
    night.failed.update(predict(run, points, parameters))
    begun.night = night.model_copy(update={"finished": "", **asdict(options.settled)})
    begun.night.write(run)
    return begun
