"""Score one run directory, and make its entry of the history."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from hashlib import sha256
from pathlib import Path

from calib.fitting.merging.merge import across_note
from calib.fitting.parameters.file import Parameters, Signed, read_signed
from calib.foundation.errors import FileError
from calib.foundation.files import read_bytes
from calib.foundation.run_files import (
    CALIBRATED_ON,
    CLUSTER_FILE,
    NIGHT_FILE,
    PARAMETERS_FILE,
    PREDICTIONS_FILE,
)
from calib.microbench.records.cluster import Cluster
from calib.oracle.costs.machine import Machine
from calib.predicting.file import predictions_of
from calib.reports.figures.machine_speed import Watched
from calib.reports.history.records import Entry
from calib.reports.night import Night
from calib.reports.scoring.accuracy import Accuracy, Missing
from calib.reports.scoring.pairing import doubts, name_of, run_id, score_runs
from calib.rundir import training_runs
from calib.training.run.lines import RunHeader
from calib.training.run.record import TrainingRun


@dataclass(frozen=True)
class ScoredRun:
    """What a run directory holds for a report. `night` is None unless it is of a nightly run.

    `missing` are trainings; a night says itself which cases of its check are missing. `calibrated_on`
    is the machine as it was calibrated: a night's may have had other versions then. `watched` are looks
    at the machine during the trainings.
    """

    path: Path
    parameters: Parameters
    cluster: Cluster
    calibrated_on: Cluster
    night: Night | None
    headers: list[RunHeader]
    accuracies: list[Accuracy]
    missing: list[Missing]
    entry: Entry
    notes: list[str] = field(default_factory=list)
    watched: list[Watched] = field(default_factory=list)


def scored(run: Path, parameters_file: Path | None = None) -> ScoredRun:
    """Read and score a run directory; only complete runs have a score.

    `parameters_file` replaces a parameters.json that is missing. Raises FileError where the directory
    has nothing to score, and for damaged files.
    """
    night = Night.read(run) if (run / NIGHT_FILE).exists() else None
    paths = training_runs(run, or_none=night is not None)
    source = _parameters_file(run, parameters_file)
    content = _Content(sha256(read_bytes(source, "parameter file")).hexdigest(), source)
    signed, machine = _parameters(content)
    parameters = signed.parameters
    cluster, before = Cluster.read(run / CLUSTER_FILE), run / CALIBRATED_ON
    calibrated_on = (
        Cluster.read(before) if before.exists() else cluster
    )  # of a night, it may differ
    runs, missing, notes = [], [], []
    failed, seen = _failed(night), set()
    for path in paths:
        try:
            item = TrainingRun.read(path)
        except FileError as error:  # killed before the first line was whole
            missing.append(failed.get(path.name) or Missing(what=path.name, why=str(error)))
        else:
            if path.name in failed and not item.complete:
                missing.append(failed[path.name])
                continue
            if run_id(item.header) in seen:
                notes.append(f"{path}: the same training as another file here; counted once")
                continue
            seen.add(run_id(item.header))
            runs.append(item)
            if not item.header.cluster_fingerprint:
                notes.append(f"{path}: the machine of this run is not known")
    predicted = predictions_of(
        run, replace(signed, path=source), machine, runs, nightly=night is not None
    )
    notes += predicted.notes
    if parameters.provenance.merged and (across := across_note(parameters)):
        notes.append(f"{content.path}: {across}")
    calibrated = parameters.provenance.cluster_fingerprint
    known = calibrated_on.fingerprint == calibrated and calibrated_on.machine == cluster.machine
    accuracies, unscored = score_runs(
        predicted.projections,
        runs,
        calibrated,
        {cluster.fingerprint} if known else (),
        parameters.device_kind,
        parameters.speed,
    )
    there = {accuracy.run_id for accuracy in accuracies}
    notes += [line for item in runs if run_id(item.header) in there for line in doubts(item)]
    missing += [
        *predicted.missing,
        *unscored,
        *_not_there(night, paths),
        *(night.unplanned if night else []),
    ]
    if night is not None and not night.finished:
        notes.append(f"{run}: this night has no end: it was stopped or killed, or is still running")
    headers = [item.header for item in runs]
    trainings = len(paths) - sum(len(of.launch_s) - 1 for of in accuracies)
    entry = _entry(
        run, night, cluster, parameters, content.digest, trainings, headers, accuracies, missing
    )
    watched = [
        Watched(name_of(item), item.header.p, item.end.looks, training=True)
        for item in runs
        if item.end is not None and item.end.looks
    ]
    return ScoredRun(
        run,
        parameters,
        cluster,
        calibrated_on,
        night,
        headers,
        accuracies,
        missing,
        entry,
        notes,
        watched,
    )


def _parameters_file(run: Path, given: Path | None) -> Path:
    own = run / PARAMETERS_FILE
    if own.exists():
        return own
    if given is not None:
        return given
    predicted = (run / PREDICTIONS_FILE).exists()
    lost = f", so its {PREDICTIONS_FILE} cannot be made again" if predicted else ""
    raise FileError(
        f"{run} holds no {PARAMETERS_FILE} to predict with{lost}; `calib fit {run}` makes one of its "
        "samples, --parameters FILE takes another's"
    )


@dataclass(frozen=True)
class _Content:
    """A file by its content: the nights of a year mostly share parameters."""

    digest: str
    path: Path = field(compare=False)


@lru_cache(maxsize=4)
def _parameters(content: _Content) -> tuple[Signed, Machine]:
    signed = read_signed(content.path)
    return signed, Machine(signed.parameters)


def _failed(night: Night | None) -> dict[str, Missing]:
    """The trainings of a night that failed, by the name of their file."""
    if night is None:
        return {}
    return {
        Path(point.file).name: Missing(what=point.label, why=night.failed[point.label])
        for point in night.planned
        if point.label in night.failed
    }


def _not_there(night: Night | None, paths: Sequence[Path]) -> list[Missing]:
    """The trainings that a night planned but has no file of."""
    if night is None:
        return []
    there = {path.name for path in paths}
    return [
        Missing(what=point.label, why=night.failed.get(point.label, "was not run"))
        for point in night.planned
        if Path(point.file).name not in there
    ]


def _entry(
    run: Path,
    night: Night | None,
    cluster: Cluster,
    parameters: Parameters,
    digest: str,
    trainings: int,
    headers: Sequence[RunHeader],
    accuracies: list[Accuracy],
    missing: list[Missing],
) -> Entry:
    starts = sorted(head.started for head in headers if head.started)
    started = night.started if night else next(iter(starts), parameters.provenance.measured_from)
    return Entry(
        id=night.id if night else _identity(run, headers, started),
        run=run.resolve().name,
        started=started,
        nightly=night is not None,
        cluster_name=cluster.name,
        cluster_fingerprint=cluster.fingerprint,
        machine=cluster.history(parameters.device_kind),
        program_version=(night.program_version if night else "")
        or parameters.provenance.program_version,
        parameters_id=digest[:16],
        versions=cluster.versions,
        planned=len(night.planned) if night else trainings,
        accuracies=accuracies,
        checks=night.checks if night else [],
        missing=[*missing, *(night.unchecked if night else [])],
    )


def _identity(run: Path, headers: Sequence[RunHeader], started: str) -> str:
    """The id of the run directory in a history: its first training's, so that a copy has the same."""
    if not headers:
        return sha256(f"{run.resolve().name} {started}".encode(errors="replace")).hexdigest()[:16]
    return run_id(min(headers, key=lambda head: (head.started, head.model_dump_json())))
