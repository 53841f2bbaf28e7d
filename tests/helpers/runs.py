"""Whole runs made by hand: two kinds of cases, and rows whose medians and intervals are known."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.helpers.rows import as_samples, rows_of

from calib.fitting.measured_run import MeasuredRun
from calib.foundation.files import write_whole
from calib.foundation.layers import LayerShape
from calib.foundation.run_files import CLUSTER_FILE, PLAN_FILE, SAMPLES_FILE
from calib.microbench.cases import Case, CollectiveCase, LayerCase, Plan
from calib.microbench.records.cluster import Cluster, Device, Host, Level
from calib.microbench.records.manifest import CaseEnd, Manifest
from calib.microbench.records.samples import Sample, write_table


def linear(n: int, m: int) -> LayerShape:
    """A linear layer from n items to m."""
    return LayerShape(
        kind="linear", input_shapes=((n,),), output_shape=(m,), parameter_shapes=((m, n), (m,))
    )


LAYER = LayerCase(ranks=2, batch=8, layer=linear(4, 3))
MESSAGES = [
    CollectiveCase(ranks=2, group_size=2, operation="allreduce", nbytes=8 * 4**k) for k in range(30)
]


def cluster(kernel: str = "Linux 6.1", name: str = "one") -> Cluster:
    cpu = Device(kind="cpu", name="Some CPU", count=2, memory_bytes=2**34)
    return Cluster(
        name=name,
        hosts=[Host(name=name, kernel=kernel, devices=[cpu])],
        levels=[Level(name="node", members=2, link="shared memory")],
    )


def new_manifest(**fields: Any) -> Manifest:
    """The manifest of a run in which nothing was measured yet, but for `fields`."""
    about = {"program_version": "0", "cluster_name": "c", "cluster_fingerprint": "f"}
    return Manifest(**{**about, "seed": 0, "target_half_width": 0.025, **fields})


def end(case_id: str, **changes: Any) -> CaseEnd:
    """The manifest's line of a case that was measured as planned, but for `changes`."""
    content: dict[str, Any] = {
        "case_id": case_id,
        "launch": 0,
        "label": "",
        "purpose": "",
        "repetitions": 8,
        "half_width": 0.01,
        "stopped_by": "interval",
        "elapsed_s": 1.0,
    }
    return CaseEnd(**content | changes)


def run(rows: list[Sample], of: Cluster | None = None) -> MeasuredRun:
    of = of or cluster()
    cases: tuple[Case, ...] = (LAYER, *MESSAGES)
    ends = [end(case.id, label=case.label) for case in cases]
    manifest = new_manifest(cluster_name=of.name, cluster_fingerprint=of.fingerprint, cases=ends)
    return MeasuredRun(
        as_samples(rows), Plan(cases=cases, budget_seconds=1.0), of, manifest, sha256="ab"
    )


def write_content(path: Path, content: MeasuredRun) -> Path:
    """A run directory as `calib measure` leaves it."""
    write_whole(path / PLAN_FILE, content.plan.model_dump_json())
    content.cluster.write(path / CLUSTER_FILE)
    content.manifest.write(path)
    write_table(path / SAMPLES_FILE, content.samples.table)
    return path


def write_run(path: Path, rows: list[Sample], of: Cluster | None = None) -> Path:
    """A run directory of these rows."""
    return write_content(path, run(rows, of))


def around(case: Case, operation: str, seconds: float, launch: int = 0) -> list[Sample]:
    """Eight repetitions of 0.96 to 1.04 times `seconds`: their 95% interval is all of that."""
    factors = [0.96, 0.97, 0.98, 0.99, 1.01, 1.02, 1.03, 1.04]
    return rows_of(case, operation, [[seconds * f] * 2 for f in factors], launch=launch)


def directories(tmp_path: Path, *runs: Sequence[Sample]) -> list[Path]:
    return [write_run(tmp_path / str(n), list(rows)) for n, rows in enumerate(runs)]
