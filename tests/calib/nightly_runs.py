"""A calibration made by hand, for nights: every number is chosen, none is measured.

Its parameters hold every layer, list of tensors and allreduce that its plan has, and nothing else.
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from tests.helpers import filled
from tests.reports.records import run as training_run

from calib.driver.lock import LOCKS_VARIABLE
from calib.fitting.parameters.collectives import CollectivePoint
from calib.fitting.parameters.file import LayerTime, Parameters, read_signed
from calib.foundation.run_files import (
    CALIBRATED_ON,
    CLUSTER_FILE,
    PARAMETERS_FILE,
    PREDICTIONS_FILE,
)
from calib.microbench.cases import Case, CollectiveCase, LayerCase, TensorsCase
from calib.microbench.probe import probe
from calib.microbench.records.cluster import Cluster, Level
from calib.night.options import Begun, NightOptions, Settled
from calib.night.points import NightPoint, of_calibration, points_of
from calib.oracle.costs.machine import Machine
from calib.oracle.predict import project
from calib.oracle.predicted import Predicted, predicted_of
from calib.planning.plan import draft, specs_of
from calib.planning.request import QUICK, Request, request_of
from calib.reports.night import Night
from calib.training.models.specs import spec
from calib.training.run.record import TrainingRun

MODEL = "cosmoflow-mini"
ITERATION_S = 0.02  # of all layers together, half of it forward
STARTED = "2026-11-22T01:00:00+00:00"
BEFORE = "2026-11-03T09:57:00+00:00"  # any training by hand


def here(members: int = 1) -> Cluster:
    """This machine, as so many ranks see it."""
    found = probe(name="here")
    node = Level(name="node", members=members, link="shared memory")
    return found.model_copy(update={"levels": [node]})


def request(
    models: tuple[str, ...] = (MODEL,), p: tuple[int, ...] = (1,), **more: object
) -> Request:
    """What the calibration was asked for."""
    return request_of(QUICK, models=models, p=p, ranks=max(p), **more)


def cases_of(asked: Request, cluster: Cluster) -> tuple[Case, ...]:
    return draft(asked, cluster, specs_of(asked)).plan.cases


def seconds_of(case: Case, count: int) -> float:
    """What the parameters say that a case takes: another number for every case."""
    share = 0.5 + int(case.id[:4], 16) / 2**16  # 0.5 to 1.5
    return share * ITERATION_S / (2 * count)


def parameters_of(asked: Request, cluster: Cluster) -> Parameters:
    """Every plain case of the plan, with the seconds of `seconds_of`; +-5%."""
    cases = cases_of(asked, cluster)
    layers = [c for c in cases if isinstance(c, LayerCase) and c.passes == "whole"]
    times = [
        LayerTime(
            key=case.key,
            kind=case.layer.kind,
            batch=case.batch,
            active_ranks=case.ranks,
            forward_s=filled.near(seconds_of(case, len(layers))),
            backward_s=filled.near(2 * seconds_of(case, len(layers))),
            n=24,
        )
        for case in layers
    ]
    loops = []
    every = [case for case in cases if isinstance(case, TensorsCase)]
    for ranks, execution in sorted({(case.ranks, case.execution) for case in every}):
        mine = [c for c in every if (c.ranks, c.execution) == (ranks, execution)]
        for operation, of in (("update", "update"), ("pack", "pack"), ("unpack", "pack")):
            lists = [c for c in mine if c.operation == of]
            measured = {c.key: filled.near(seconds_of(c, 10)) for c in lists}
            if measured:
                about = {"operation": operation, "device": asked.device, "active_ranks": ranks}
                loops.append(filled.loop(**about, execution=execution, measured=measured))
    sizes = sorted(
        {
            c.nbytes
            for c in cases
            if isinstance(c, CollectiveCase) and c.operation == "allreduce" and c.group_size == 2
        }
    )
    points = [
        CollectivePoint(nbytes=m, seconds=filled.near(filled.seconds(m)), n=20) for m in sizes
    ]
    sent = {"library": asked.libraries[0], "device": asked.device, "points": points}
    fits = [filled.collective(2, **sent)] if points else []
    content = filled.filled(
        device_kind=asked.device,
        ranks_per_node=cluster.ranks_per_node,
        layers=times,
        tensor_loops=loops,
        collectives=fits,
        structural=[],
        contention=[],
        overlap=[],
        partitions=[],
        composition=[],
        memory=[],
    )
    provenance = content.provenance.model_copy(
        update={"cluster_name": cluster.name, "cluster_fingerprint": cluster.fingerprint}
    )
    return content.model_copy(update={"provenance": provenance})


def calibration(path: Path, asked: Request | None = None, cluster: Cluster | None = None) -> Path:
    """A run directory as `calib calibrate` leaves it, without samples and trainings."""
    asked, cluster = asked or request(), cluster or here()
    path.mkdir(parents=True)
    cluster.write(path / CLUSTER_FILE)
    asked.write(path / "plan.toml")
    parameters_of(asked, cluster).write(path / PARAMETERS_FILE)
    return path


def options(run: Path, **changes: object) -> NightOptions:
    """Those of a quick night."""
    plain = NightOptions(run, None, None, 6, 1.0, None, "local", 0, 20.0, None)
    return replace(plain, **changes)


def own_lock(monkeypatch: pytest.MonkeyPatch, directory: Path) -> None:
    """Nights of this test wait for no other's: tests run beside each other, and beside real nights."""
    directory.mkdir(exist_ok=True)
    monkeypatch.setenv(LOCKS_VARIABLE, str(directory))


def as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nights begin without starting ranks: the machine is fit, and is the one that was calibrated."""

    def probed(path: Path, like: Cluster, *_: object) -> Cluster:
        like.write(path)
        return like

    monkeypatch.setattr("calib.night.directory.doctored", lambda *_: [])
    monkeypatch.setattr("calib.night.directory.probed", probed)


def known_points(asked: Request, ranks: int = 1) -> list[NightPoint]:
    return points_of(of_calibration(asked, ranks), ranks, "local", filled.filled())[0]


def trained(run: Path, point: NightPoint, seconds: float = 0.025, **header: object) -> TrainingRun:
    """A training of a point that took `seconds` an iteration, as its file in a night."""
    of = point.division
    made = training_run(
        [seconds * (1 + k / 1000) for k in range(8)],
        model=point.model.name,
        strategy=of.strategy,
        p=of.p,
        batch_per_rank=of.local_batch,
        optimizer=point.optimizer,
        cluster_fingerprint=Cluster.read(run / CLUSTER_FILE).fingerprint,
        **header,
    )
    write_run(point.path(run), made)
    return made


def predicted(run: Path, points: list[NightPoint], made: str = BEFORE) -> Predicted:
    """predictions.json of a run directory, as a calibration or a night writes it."""
    source = read_signed(run / PARAMETERS_FILE)
    machine = Machine(source.parameters)
    of = predicted_of(
        [project(x.model, x.division, machine, optimizer=x.optimizer) for x in points],
        source.sha256,
        spec,
        "0.1.0",
        made,
    )
    of.write(run / PREDICTIONS_FILE)
    return of


def write_run(path: Path, made: TrainingRun) -> None:
    """A run.jsonl, line by line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    records = [made.header, *made.iterations, *([made.end] if made.end else [])]
    path.write_text("".join(record.model_dump_json() + "\n" for record in records))


DEFAULTS = Settled()


def begun_by_hand(run: Path, of: Path, asked: Request, settled: Settled = DEFAULTS) -> Begun:
    """A night that has begun, with nothing measured: its directory as `night_of` leaves it."""
    run.mkdir()
    cluster = Cluster.read(of / CLUSTER_FILE)
    cluster.write(run / CLUSTER_FILE)
    cluster.write(run / CALIBRATED_ON)
    parameters = Parameters.read(of / PARAMETERS_FILE)
    parameters.write(run / PARAMETERS_FILE)
    wanted = of_calibration(asked, cluster.ranks_per_node)
    wanted.write(run / "plan.toml")
    points = known_points(asked, cluster.ranks_per_node)
    night = Night(
        id="0123456789abcdef",
        started=STARTED,
        calibration=str(of.resolve()),
        planned=[point.planned for point in points],
        **asdict(settled),
    )
    night.write(run)
    return Begun(run, night, points, parameters, cluster, cluster, [])


def content(path: Path) -> object:
    return json.loads(path.read_text())
