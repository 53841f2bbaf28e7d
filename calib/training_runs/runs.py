"""The trainings of one `calib train`: one strategy or several, and their files."""

from __future__ import annotations

import os
import platform
import socket
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from importlib import metadata
from itertools import count
from pathlib import Path

from calib.driver.defaults import ranks_per_node
from calib.foundation.division import Division, traits_of
from calib.foundation.errors import FileError, InputError, MeasurementError
from calib.foundation.files import destination
from calib.foundation.run_files import CLUSTER_FILE, PARAMETERS_FILE, TRAINING
from calib.microbench.control import Control
from calib.microbench.probe import PACKAGES
from calib.microbench.records.cluster import Cluster, Host
from calib.oracle.model.spec import ModelSpec
from calib.oracle.template import DivisionTemplate
from calib.terminal.printing import say
from calib.training.job import Settings, TrainingJob
from calib.training.models import entry
from calib.training.run.record import TrainingRun
from calib.training.teams import BACKENDS
from calib.training_runs.options import divided_layers, require_trained, trained_division
from calib.training_runs.plan import PlanFile
from calib.training_runs.stages import Balance

RUN_FILE = Path("run.jsonl")
RUNS_DIRECTORY = Path("runs/training")


@dataclass(frozen=True)
class TrainingRequest:
    """What the options ask for. `batch` is the global one; a `plan` says all of the division.

    `templates` are those of `strategy`, which is one, a list, or "all".
    """

    model: str
    strategy: str
    templates: Sequence[DivisionTemplate]
    p: int
    batch: int
    settings: Settings
    output: Path | None
    launcher: str
    plan: PlanFile | None = None

    @property
    def several(self) -> bool:
        """Whether more than one strategy was named."""
        return self.strategy.strip() == "all" or "," in self.strategy

    def runs(self) -> tuple[list[tuple[TrainingJob, Path]], list[str]]:
        """Every training and its file, and why others cannot be trained, which is printed too.

        No file of another run is overwritten. Raises InputError with the reason where nothing can be
        trained, and FileError where the file that is asked for exists.
        """
        divisions, reasons = self._divisions()
        for reason in reasons if divisions else ():
            say(f"not run: {reason}")
        if not divisions:
            raise InputError(reasons[0])
        plan = self.plan.digest if self.plan else ""
        found: dict[Path, TrainingJob] = {}
        for division in divisions:
            found[self._path(division, found)] = TrainingJob(
                model=self.model, division=division, settings=self.settings, plan=plan
            )
        return [(job, path) for path, job in found.items()], reasons

    def _divisions(self) -> tuple[list[Division], list[str]]:
        about = entry(self.model, self.settings.own)
        if self.plan is not None:
            division = self.plan.division(self.model, self.settings.own)
            require_trained(division, self.settings, about, self._layers(division.strategy))
            return [division], []
        _, device = BACKENDS[self.settings.backend]
        node, found, reasons = ranks_per_node(self.launcher, device), [], []
        for template in self.templates:
            strategy = template.strategy
            if self.strategy.strip() == "all" and traits_of(strategy).parallel != (self.p > 1):
                continue  # on one rank every strategy is serial
            try:
                layers = self._layers(strategy)
                division = trained_division(
                    template, self.p, self.batch, node, about, layers, self.settings
                )
            except InputError as error:
                named = str(error).startswith(strategy) or not self.several
                words = template.division(self.p, self.batch, node).words
                reasons.append(str(error) if named else f"{words}: {error}")
                continue
            if layers is not None and division.traits.stages:
                run_as = layers.run_as(self.settings.execution)
                division, line = self._balance.cut(run_as, division)
                if line:
                    say(line)
            found.append(division)
        return found, reasons

    @cached_property
    def _balance(self) -> Balance:
        return Balance.by(self.output, BACKENDS[self.settings.backend].device)

    def _layers(self, strategy: str) -> ModelSpec | None:
        return divided_layers(self.model, self.settings.own, strategy, self.p)

    def _path(self, division: Division, others: Collection[Path]) -> Path:
        """The file of a division, beside the files of `others`."""
        where = self.output or (RUNS_DIRECTORY if self.several else RUN_FILE)
        if not os.path.isdir(where):
            if not self.several:
                if _taken(where):
                    raise FileError(f"{where} exists; choose another with -o")
                return destination(where)
            if where.suffix == RUN_FILE.suffix or os.path.exists(where):
                raise InputError(
                    f"-o {where}: several runs need a directory, and this is a file's name"
                )
        inside = where / TRAINING if (where / PARAMETERS_FILE).exists() else where
        stem = f"{self.model}-{division.slug}-p{division.p}"
        names = (f"{stem}{'' if number == 1 else f'-{number}'}.jsonl" for number in count(1))
        return next(
            x for x in (inside / name for name in names) if x not in others and not _taken(x)
        )


def _taken(path: Path) -> bool:
    """Whether writing to `path` would fail or lose a run; one without timed iterations is no loss."""
    if stamp(path) is None or not os.path.isfile(path):
        return os.path.isdir(path)
    with suppress(FileError):
        return bool(TrainingRun.read(path).timed)
    return True


def stamp(path: Path) -> tuple[int, ...] | None:
    """What changes when a file is written; None where it is missing or empty."""
    try:
        of = path.stat()
    except OSError:
        return None
    return (of.st_mtime_ns, of.st_size, of.st_ino) if of.st_size else None


def whole_run(path: Path, hint: str = "") -> TrainingRun:
    """The run that ranks have written. Raises MeasurementError where it is cut short."""
    run = TrainingRun.read(path)
    if not run.complete:
        raise MeasurementError(
            f"the ranks ended after {len(run.timed)} of {run.header.iterations} iterations without "
            f"saying why{hint}"
        )
    return run


def machine_of(control: Control, known: str, path: Path) -> str:
    """SPMD: the fingerprint of the cluster that all ranks are on, where it is known; else "".

    Rank 0 reads what the run directory around a run's file says of the calibrated machine. A rank is on
    it if it is on a host of the same name, kernel and packages.
    """
    if known:
        return known
    beside = _cluster_beside(path) if control.rank == 0 else None
    told = control.broadcast_object(None if beside is None else beside.model_dump(mode="json"))
    if told is None:
        return ""
    cluster = Cluster.model_validate(told)
    everyone = control.allgather_object(any(_is_here(host) for host in cluster.hosts))
    return cluster.fingerprint if all(everyone) else ""


def _cluster_beside(path: Path) -> Cluster | None:
    known = path.absolute().parent.parent / CLUSTER_FILE
    if path.absolute().parent.name == TRAINING and known.is_file():
        with suppress(FileError):
            return Cluster.read(known)
    return None


def _is_here(host: Host) -> bool:
    """Whether a probed host is this one, by what can be told without MPI: this is not a rank."""
    found = {}
    for package in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    kernel = f"{platform.system()} {platform.release()}"
    same = {name: version for name, version in host.versions.items() if name in PACKAGES} == found
    return (host.name, host.kernel) == (socket.gethostname(), kernel) and same
