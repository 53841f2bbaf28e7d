"""Training under a launcher: the driver's part of a run, and a rank's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from calib.driver.defaults import default_ranks
from calib.driver.listen import RankEvent
from calib.driver.ranks import RanksEnded, join_ranks, run_ranks
from calib.foundation.errors import FileError, InputError, MeasurementError
from calib.foundation.garbage import loaded
from calib.foundation.run_files import LOG_FILE
from calib.microbench.communicators.mpi import MpiCommunicator
from calib.rundir import prepare_training
from calib.terminal.printing import say
from calib.terminal.progress import Bar
from calib.training.job import JOB_FILE, TrainingJob
from calib.training.run.record import TrainingRun
from calib.training.teams import BACKENDS
from calib.training_runs.plan import print_found, show_planned
from calib.training_runs.runs import TrainingRequest, stamp, whole_run
from calib.training_runs.table import summarize


def trained(
    asked: TrainingRequest, runs: Sequence[tuple[TrainingJob, Path]], quiet: bool = False
) -> Iterator[tuple[TrainingRun, Path]]:
    """Every run, one after the other. Where there are several, a failed one is reported and skipped."""
    for job, path in runs:
        try:
            run = train(path, job, asked.launcher)
        except (MeasurementError, RanksEnded) as error:
            if len(runs) == 1:
                raise
            say(f"failed: {job.model} {job.division.slug}: {error}")
        else:
            if not quiet:
                summarize(run, path)
                show_planned(asked.plan, run)
            yield run, path


def train(path: Path, job: TrainingJob, launcher: str = "local") -> TrainingRun:
    """Start the ranks, wait for them, and read what they wrote.

    Parameters
    ----------
    path
        The run.jsonl; what it held before is lost.
    job
        What is trained, and how.
    launcher
        local, slurm, or a template with {n}.

    Raises
    ------
    RanksEnded
        A rank failed, or could not be started.
    MeasurementError
        The ranks ended too early and did not say why.
    """
    p, settings = job.division.p, job.settings
    _, device = BACKENDS[settings.backend]
    if launcher == "local" and p > (most := default_ranks(device=device)):
        units = "GPUs" if device == "cuda" else "cores"
        say(f"{p} ranks on {most} {units}: oversubscribed, the run will be marked")
    prepare_training(path)
    log = path.absolute().parent / LOG_FILE
    told = log.with_name(JOB_FILE)
    job.write(told)
    arguments = ["train", "--job", str(told), "-o", str(path.absolute())]
    title = f"train {job.model} {job.division.slug} p={p}"
    with Bar(title, settings.iterations + 2) as bar:

        def on_event(event: RankEvent) -> None:
            bar.update(event["done"], f"loss {event['loss']:.4g}", event["left_s"])

        before = stamp(path)

        def written() -> bool:
            """Whether the ranks have measured anything; an older file is not theirs."""
            if stamp(path) not in (None, before):
                with suppress(FileError):
                    return bool(TrainingRun.read(path).iterations)
            return False

        def kept() -> str:
            there = written()
            return (
                f"the iterations so far are kept in {path}" if there else "nothing was measured yet"
            )

        run_ranks(
            launcher,
            p,
            arguments,
            log,
            on_event,
            kept,
            hang_s=settings.hang_s,
            variables=settings.variables,
        )
    if not written():
        raise MeasurementError(f"the ranks ended before they had measured anything; see {log}")
    return whole_run(path, f"; see {log}")


def train_as_rank(asked: TrainingRequest, as_json: bool = False) -> None:
    """SPMD: one rank of a person's own launch; rank 0 lays the runs out, and prints them."""
    communicator = _joined(asked.p)
    runs: list[tuple[TrainingJob, Path]] = []
    reasons: list[str] = []
    if communicator.rank == 0:
        runs, reasons = asked.runs()
    run_as_rank = _rank_program()
    found = []
    told = [[job.model_dump(mode="json"), str(path)] for job, path in runs]
    for content, name in communicator.broadcast_object(told):
        path = Path(name)
        run_as_rank(communicator, TrainingJob.model_validate(content), path, quiet=as_json)
        if communicator.rank == 0:
            run = whole_run(path)
            found.append((run, path))
            if not as_json:
                summarize(run, path)
                show_planned(asked.plan, run)
    if found and as_json:
        print_found(asked.plan, found, reasons, asked.several)


def train_job(told: Path, path: Path) -> None:
    """SPMD: one rank of a driver's launch; rank 0 reads what they are to do."""
    communicator = join_ranks()
    text = TrainingJob.read(told).model_dump_json() if communicator.rank == 0 else ""
    job = TrainingJob.model_validate_json(communicator.broadcast_object(text))
    _are(communicator, job.division.p)
    _rank_program()(communicator, job, path)


def _rank_program() -> Callable[..., None]:
    """What a rank runs. It imports PyTorch, for which the driver has no use."""
    loaded("torch")
    loaded("torch._dynamo")  # torch would import it with the first optimizer
    from calib.training_runs.rank import run_as_rank

    return run_as_rank


def _joined(p: int) -> MpiCommunicator:
    """The ranks of this launch, which must be p."""
    return _are(join_ranks(), p)


def _are(communicator: MpiCommunicator, p: int) -> MpiCommunicator:
    """The ranks, which must be p; each says where it is."""
    if communicator.size != p:
        raise InputError(f"-p {p}, but the launcher started {communicator.size} ranks")
    return communicator
