"""Logs of collectives -> Parameters, imported and fitted in a temporary folder."""

from __future__ import annotations

import glob
import tempfile
from collections.abc import Sequence
from pathlib import Path

from calib import __version__
from calib.fitting.parameters.file import Parameters
from calib.foundation.errors import FileError
from calib.importing.logs import read_all
from calib.microbench.importers.machine import cluster_of, write_run
from calib.microbench.importers.said import Flags
from calib.microbench.records.cluster import Cluster


def parameters_of(logs: Sequence[Path], cluster: Cluster | None = None) -> Parameters:
    """The laws of logs of one machine: files, folders of .txt, .log and .out files, or patterns with *.

    `cluster` is the machine, where more is known of it than the logs tell. Raises FileError for a log
    that gives no row.
    """
    # late: scikit-learn, for which only trainings with logs have a use
    from calib.fitting.fit import fit_runs

    found = read_all(files_of(logs), Flags(), keep_going=False)
    imported = [each for _, each in found]
    with tempfile.TemporaryDirectory(prefix="calib-replay-") as folder:
        run = Path(folder) / "run"
        records = [record for record, _ in found]
        machine = cluster or cluster_of(imported, "replayed")
        write_run(run, records, imported, machine, __version__)
        return fit_runs([run])


def files_of(paths: Sequence[Path]) -> list[Path]:
    """The logs that these name. Raises FileError for a folder or pattern without any."""
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            mine = [p for p in sorted(path.iterdir()) if p.suffix in (".txt", ".log", ".out")]
        elif any(sign in str(path) for sign in "*?["):
            mine = [Path(name) for name in sorted(glob.glob(str(path)))]
        else:
            mine = [path]
        if not mine:
            raise FileError(f"{path}: no log there")
        found += mine
    return list(dict.fromkeys(found))
