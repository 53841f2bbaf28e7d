"""Run directories: one for everything of a calibration; `latest` names the newest."""

from __future__ import annotations

import os
import re
from datetime import date
from pathlib import Path

from calib.foundation.errors import FileError
from calib.foundation.files import ensure_directory, no_link
from calib.foundation.run_files import HISTORY_FILE, PARAMETERS_FILE, REPORT_JSON, TRAINING

RUNS = Path("runs")
LATEST_PARAMETERS = RUNS / "latest" / PARAMETERS_FILE


def directory_name(cluster: str) -> str:
    """The name of a cluster as part of a directory's."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", cluster).strip(".-") or "cluster"


def history_beside(run: Path) -> str:
    """The default history of a run directory. Raises FileError where it is a link."""
    path = run.resolve().parent / HISTORY_FILE
    if path.is_symlink():
        raise FileError(f"{path} is a link; --history names the history that is to be written")
    return str(path)


def default_run(cluster: str, today: date) -> Path:
    """runs/<date>-<cluster>: the unfinished one of today to go on with, else a new one (-2, -3)."""
    base = f"{today.isoformat()}-{directory_name(cluster)}"
    number = 1
    while True:
        run = RUNS / (base if number == 1 else f"{base}-{number}")
        if not (run / REPORT_JSON).exists():
            return run
        number += 1


def link_latest(run: Path) -> None:
    """Point `latest` beside `run` at it, if the file system has links."""
    run = run.resolve()  # -o runs/latest names the run behind the link
    link = run.parent / "latest"
    temporary = run.parent / f".latest.{os.getpid()}"
    try:
        temporary.symlink_to(run.name)
        if link.is_dir() and not link.is_symlink():
            temporary.unlink()  # a real directory of that name is the user's
            return
        temporary.replace(link)
    except OSError:
        temporary.unlink(missing_ok=True)


def training_path(run: Path, model: str, strategy: str, p: int, *more: str) -> Path:
    """The file of a point's training run; `more` tells apart points that have all else in common."""
    name = "-".join([model, strategy, f"p{p}", *filter(None, more)])
    return run / TRAINING / f"{name}.jsonl"


def existing(run: Path) -> Path:
    """A run directory that is there. Raises FileError."""
    if not os.path.isdir(run):  # is_dir() raises where the name is too long
        raise FileError(f"run directory {run} does not exist; `calib calibrate` makes one")
    return run


def training_runs(run: Path, or_none: bool = False) -> list[Path]:
    """All training runs of a run directory. Raises FileError when there is none, unless `or_none`."""
    paths = sorted(path for path in (existing(run) / TRAINING).glob("*.jsonl") if path.is_file())
    if not paths and not or_none:
        raise FileError(f"{run} holds no training runs; run `calib train` or `calib calibrate`")
    return paths


def prepare_training(path: Path) -> None:
    """Create the directory of a training run. Raises FileError, also for training/ that is a link."""
    parent = path.absolute().parent
    ensure_directory(no_link(parent) if parent.name == TRAINING else parent)
