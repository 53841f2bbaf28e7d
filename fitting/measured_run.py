"""A run directory as it was measured: its samples, plan, cluster and manifest."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from calib.fitting.outliers.check import ClusterCheck
from calib.foundation.errors import FileError
from calib.foundation.files import sha256_of
from calib.foundation.run_files import CLUSTER_CHECK_FILE, CLUSTER_FILE, SAMPLES_FILE
from calib.microbench.cases import Case, Plan, read_plan
from calib.microbench.records.cluster import Cluster
from calib.microbench.records.manifest import Manifest
from calib.microbench.records.parts import consolidate
from calib.microbench.records.samples import Samples, read_samples


@dataclass(frozen=True)
class MeasuredRun:
    """What a run directory holds for fitting."""

    samples: Samples
    plan: Plan | None  # imported logs have none
    cluster: Cluster
    manifest: Manifest
    sha256: str
    unlike: tuple[str, ...] = ()  # who of its nodes is not like the others

    @property
    def cases(self) -> tuple[Case, ...]:
        """What was planned to be measured."""
        return self.plan.cases if self.plan else ()


def read_run(run: Path) -> MeasuredRun:
    """Read a run directory, finished or interrupted. Raises FileError."""
    if os.path.isfile(run):
        raise FileError(f"run directory {run} does not exist: it is a file", wants="run of logs")
    if not os.path.isdir(run):  # is_dir() raises where the name is too long
        raise FileError(f"run directory {run} does not exist", wants="run")
    consolidate(run)
    samples = read_samples(run)
    manifest = Manifest.read(run)
    return MeasuredRun(
        samples=samples,
        plan=None if manifest.imported else read_plan(run),
        cluster=Cluster.read(run / CLUSTER_FILE),
        manifest=manifest,
        sha256=sha256_of(run / SAMPLES_FILE),
        unlike=_unlike(run / CLUSTER_CHECK_FILE),
    )


def _unlike(path: Path) -> tuple[str, ...]:
    """The culprits of a run's check, if there was one."""
    if not path.exists():
        return ()
    return tuple(f"{each.kind} {each.name}" for each in ClusterCheck.read(path).culprits)
