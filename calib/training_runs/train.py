"""Training under a launcher: the driver's part of a run, and a rank's."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from calib.driver.listen import Event
from calib.driver.ranks import RanksEnded, default_ranks, emit, join_ranks, run_ranks
from calib.foundation.errors import FileError, InputError, MeasurementError
from calib.oracle.division import Division
from calib.rundir import prepare_training
from calib.terminal.printing import say
from calib.terminal.progress import Bar
from calib.training.run.record import TrainingRun
from calib.training_runs.options import Settings, as_plain, division_arguments, from_plain
from calib.training_runs.plan import print_found, show_planned
from calib.training_runs.runs import Asked, slug, stamp, whole_run
from calib.training_runs.table import summarize

USUAL = Settings()


def trained(
    asked: Asked, runs: Sequence[tuple[Division, Path]], quiet: bool = False
) -> Iterator[tuple[TrainingRun, Path]]:
    """Every run, one after the other. Of several, one that fails is said and left out."""
    for division, path in runs:
        try:
            run = train(
                path,
                asked.model,
                division,
                asked.settings,
                asked.launcher,
                asked.cluster,
                asked.plan.path if asked.plan else None,
            )
        except (MeasurementError, RanksEnded) as error:
            if len(runs) == 1:
                raise
            say(f"failed: {asked.model} {slug(division)}: {error}")
        else:
            if not quiet:
                summarize(run, path)
                show_planned(asked.plan, run)
            yield run, path


def train(
    path: Path,
    model: str,
    division: Division,
    settings: Settings = USUAL,
    launcher: str = "local",
    fingerprint: str = "",
    plan: Path | None = None,
) -> TrainingRun:
    """Start the ranks, wait for them, and read what they wrote, over what `path` held before.

    `fingerprint` is of the cluster, where it is known; `plan` a searched plan.json, which `division`
    is of. Raises what `run_ranks` does, and MeasurementError where they ended too early and did not
    say why.
    """
    p = division.p
    if launcher == "local" and p > default_ranks():
        say(f"{p} ranks on {default_ranks()} cores: oversubscribed, the run will be marked")
    prepare_training(path)
    arguments = [
        "train",
        "--model",
        model,
        *settings.arguments(),
        *(["--plan", str(plan.absolute())] if plan else division_arguments(division)),
        "-o",
        str(path.absolute()),
        *(["--cluster", fingerprint] if fingerprint else []),
    ]
    with Bar(f"train {model} {slug(division)} p={p}", settings.iterations + 2) as bar:

        def on_event(event: Event) -> None:
            bar.update(event["done"], f"loss {event['loss']:.4g}", event["left_s"])

        before, log = stamp(path), path.absolute().parent / "ranks.log"

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

        run_ranks(launcher, p, arguments, log, on_event, kept, hang_s=settings.hang_s)
    if not written():
        raise MeasurementError(f"the ranks ended before they had measured anything; see {log}")
    return whole_run(path, f"; see {log}")


def train_as_rank(asked: Asked, as_json: bool = False) -> None:
    """SPMD: one rank of the runs, which rank 0 lays out and, launched by a person, prints."""
    communicator = join_ranks()
    if communicator.size != asked.p:
        raise InputError(f"-p {asked.p}, but the launcher started {communicator.size} ranks")
    emit(
        {
            "event": "here",
            "rank": communicator.rank,
            "pid": os.getpid(),
            "host": socket.gethostname(),
        }
    )
    plain: list[list[Any]] = []
    reasons: list[str] = []
    found = []
    if communicator.rank == 0:
        runs, reasons = asked.runs()
        plain = [[as_plain(division), str(path)] for division, path in runs]
    # late: it imports PyTorch, for which the driver has no use
    from calib.training_runs.rank import run_as_rank

    for content, name in communicator.broadcast_object(plain):
        path = Path(name)
        run = run_as_rank(communicator, asked, from_plain(content), path, as_json)
        if run is not None:
            found.append((run, path))
    if found and as_json:
        print_found(asked.plan, found, reasons, asked.several)
