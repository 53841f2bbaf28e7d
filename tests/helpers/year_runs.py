"""The year of `tests/helpers/year.py` as records, and as run directories of `calib nightly`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from tests.helpers import year as plan
from tests.helpers.divided import divided
from tests.helpers.year import (
    ABSENT,
    APART,
    KILLED,
    PHASES,
    POINTS,
    SHARED,
    STRANGER,
    TOGETHER,
    WRONG,
)
from tests.reports.records import parameters

from calib.fitting.parameters.signature import with_signature
from calib.foundation.environment import Environment
from calib.foundation.files import sha256_of, write_json
from calib.foundation.records import Estimate
from calib.foundation.run_files import (
    CALIBRATED_ON,
    CLUSTER_FILE,
    PARAMETERS_FILE,
    PREDICTIONS_FILE,
    TRAINING,
)
from calib.microbench.records.cluster import Cluster, Device, Host, Level
from calib.night.options import Settled
from calib.oracle.predicted import Predicted
from calib.oracle.projection import PhaseTime, Projection
from calib.reports.night import Check, Night, PlannedPoint
from calib.reports.scoring.accuracy import CheckKind
from calib.training.run.lines import RUN_PHASES, Iteration, RunEnd, RunHeader
from calib.training.run.record import TrainingRun

if TYPE_CHECKING:
    from pydantic import BaseModel


BATCH_PER_PE = 4
PACKING = 0.6  # of pack, the rest of it is unpack
WAITING = 0.2  # of what it computes, a rank that is not critical waits instead
WARM_UP = 3.0  # times as long
TOLD_APART = 5e-3  # relative half width of a check's interval


@dataclass(frozen=True)
class YearNight:
    """One night. `run` names its directory; `runs` are those that left a file."""

    number: int
    id: str
    run: str
    started: str
    cluster: Cluster
    parameters_id: str
    projections: list[Projection]
    runs: list[TrainingRun]
    checks: list[Check]
    planned: list[PlannedPoint]
    failed: dict[str, str]


def nights(numbers: Sequence[int] | None = None) -> Iterator[YearNight]:
    """The nights of the year that have a run directory, or some of them."""
    for number in plan.year().nights if numbers is None else numbers:
        yield night(number)


def night(number: int) -> YearNight:
    """One night with its records."""
    states = plan.year().states[number]
    runs = _runs(number)
    day = plan.started(number)[:10]
    return YearNight(
        number=number,
        id=f"{number:032x}",
        run=f"{day}-nightly",
        started=plan.started(number),
        cluster=cluster(number),
        parameters_id=parameters_id(number),
        projections=projections(number >= plan.REPLACED.night),
        runs=runs,
        checks=checks(number),
        planned=[planned(i) for i in range(plan.NUMBER)],
        failed={planned(i).label: "ended with 1" for i, x in enumerate(states) if x == ABSENT},
    )


def cluster(number: int) -> Cluster:
    """The machine as it is that night; the first of the year is the one that was calibrated."""
    since = max((n for n in (*plan.UPDATES, *plan.DRIVERS) if n <= number), default=0)
    return _cluster(since)


@lru_cache(maxsize=8)
def _cluster(number: int) -> Cluster:
    versions, driver = dict(plan.VERSIONS), plan.DRIVER
    for at, update in plan.UPDATES.items():
        versions |= update if at <= number else {}
    for at, update_of_driver in plan.DRIVERS.items():
        driver = update_of_driver if at <= number else driver
    device = Device(kind="cuda", name="Some GPU", count=1, memory_bytes=2**36, driver=driver)
    host = Host(name="one", kernel="Linux 6.1", devices=[device] * 4, versions=versions)
    levels = [Level(name="node", members=4, link="shared memory")]
    return Cluster(name="one", hosts=[host], levels=levels)


@lru_cache(maxsize=8)
def _fingerprint(number: int) -> str:
    return cluster(number).fingerprint


@lru_cache(maxsize=64)
def planned(i: int) -> PlannedPoint:
    """The plan of one of POINTS."""
    point, head = POINTS[i], headers()[i]
    how = f"{point.strategy} ({head.layout})" if head.layout else point.strategy
    return PlannedPoint(
        model=point.model,
        division=head.division,
        label=f"{point.model} {how} p={point.p}",
        file=f"{TRAINING}/{point.file}",
    )


@lru_cache(maxsize=1)
def headers() -> list[RunHeader]:
    """Of the runs of POINTS, before anything of a night is known."""
    return [
        RunHeader(
            model=point.model,
            optimizer="momentum",
            execution="float32",
            seed=0,
            iterations=len(APART),
            warmup=1,
            library="torch_mpi",
            hosts=["one"] * point.p,
            environment=Environment(ranks=point.p, threads=1, cores=point.p),
            gradient_difference=2e-7,
            started="",
            **divided(
                {
                    "strategy": point.strategy,
                    "p": point.p,
                    "batch_per_rank": BATCH_PER_PE,
                    "oversubscribed": False,
                    **point.more,
                }
            ),
        )
        for point in POINTS
    ]


@lru_cache(maxsize=2)
def projections(replaced: bool) -> list[Projection]:
    """What the parameter file predicts, before and after it was replaced."""
    year = plan.year()
    seconds = year.predicted[plan.REPLACED.night if replaced else 0]
    return [
        _projection(head, seconds[i].tolist(), float(year.margins[i]), int(year.peaks[i]))
        for i, head in enumerate(headers())
    ]


def _projection(head: RunHeader, seconds: list[float], margin: float, peak: int) -> Projection:
    total, peak_bytes = _time(sum(seconds), margin), (1 + plan.MEMORY_ERROR) * peak
    return Projection(
        model=head.model,
        division=head.division,
        optimizer=head.optimizer,
        total=total,
        phases={name: _time(each, margin) for name, each in zip(PHASES, seconds, strict=True)},
        bytes_per_rank=2 * peak,
        bytes_by_part={"weights": 2 * peak},
        peak_bytes=Estimate(value=peak_bytes, low=0.8 * peak_bytes, high=1.2 * peak_bytes),
    )


def _time(seconds: float, margin: float) -> PhaseTime:
    low, high = seconds * (1 - margin), seconds * (1 + margin)
    return PhaseTime(value=seconds, low=low, high=high, basis="measured" if seconds else "exact")


def checks(number: int) -> list[Check]:
    """The short calibration check of a night."""
    return [
        Check(
            kind=cast("CheckKind", kind),
            what=what,
            case=case,
            expected=_estimate(expected),
            measured=_estimate(measured),
        )
        for (kind, what, case, expected), measured in zip(
            plan.CHECKS, plan.year().checks[number].tolist(), strict=True
        )
    ]


def _estimate(value: float) -> Estimate:
    return Estimate(value=value, low=value * (1 - TOLD_APART), high=value * (1 + TOLD_APART))


def _runs(number: int) -> list[TrainingRun]:
    """The trainings of a night that left a file. Nothing of them is validated: there are 21,900."""
    year = plan.year()
    critical, others = _run_phases(year.measured[number])
    runs = []
    for i, state in enumerate(year.states[number]):
        if state == ABSENT:
            continue
        of: dict[str, object] = {
            "started": plan.started(number, i),
            "cluster_fingerprint": _fingerprint(number),
            "versions": cluster(number).hosts[0].versions,
        }
        of |= {"gradient_difference": 3e-3} if state == WRONG else {}
        of |= {"cluster_fingerprint": "f" * 16} if state == STRANGER else {}
        iterations = _iterations(critical[i], others[i], number + i, POINTS[i].p)
        runs.append(
            TrainingRun.model_construct(
                header=headers()[i].model_copy(update=of),
                iterations=iterations[: 2 + i % 6] if state == KILLED else iterations,
                end=None if state == KILLED else _end(i),
            )
        )
    return runs


Rows = list[list[list[float]]]  # seconds [point][iteration][phase of RUN_PHASES]


def _run_phases(measured: plan.Floats) -> tuple[Rows, Rows]:
    """Of [point, phase of PHASES]: seconds on the critical rank, and on each of the others.

    The others compute less, and wait for the critical rank as long as it takes. The first iteration
    is the warm-up.
    """
    columns = {phase: measured[:, i] for i, phase in enumerate(PHASES)}
    columns |= {"pack": PACKING * columns["pack"], "unpack": (1 - PACKING) * columns["pack"]}
    medians = np.stack([columns[phase] for phase in RUN_PHASES], axis=1)
    shared = np.isin(RUN_PHASES, SHARED)
    steps = 1 + np.where(shared, TOGETHER[:, None], APART[:, None])
    critical = medians[:, None, :] * np.concatenate([np.full((1, len(shared)), WARM_UP), steps])
    others = np.where(shared, critical, (1 - WAITING) * critical)
    first = np.argmax(shared & (medians > 0), axis=1)  # of the phases in which they may wait
    others[np.arange(len(medians)), :, first] += WAITING * critical[:, :, ~shared].sum(axis=2)
    return critical.tolist(), others.tolist()


def _iterations(
    critical: list[list[float]], others: list[list[float]], turn: int, p: int
) -> list[Iteration]:
    """Iterations in an order, and with critical ranks, that `turn` tells."""
    n = len(critical) - 1
    order = [0, *(1 + (turn + k) % n for k in range(n))]
    made = []
    for k, row in enumerate(order):
        # of 170,000 iterations, none is made from its fields
        one = copy(_iteration(k))
        one.__dict__["seconds"] = _of_ranks(critical[row], others[row], (turn + k) % p, p)
        made.append(one)
    return made


@lru_cache(maxsize=16)
def _iteration(k: int) -> Iteration:
    seconds = {phase: [0.0] for phase in RUN_PHASES}
    return Iteration(index=k, warmup=k == 0, first=k == 0, seconds=seconds, loss=1.0)


def _of_ranks(
    own: list[float], others: list[float], critical: int, p: int
) -> dict[str, list[float]]:
    of = {}
    for phase, seconds, other in zip(RUN_PHASES, own, others, strict=True):
        each = [other] * p
        each[critical] = seconds
        of[phase] = each
    return of


@lru_cache(maxsize=64)
def _end(i: int) -> RunEnd:
    peak, p = int(plan.year().peaks[i]), POINTS[i].p
    others = [peak - 4096] * (p - 1)
    return RunEnd(
        peak_rss_bytes=[2**28] * p,
        peak_live_bytes=[*others, peak],
        wall_seconds=1.0,
        stopped="iterations",
    )


@lru_cache(maxsize=1)
def _parameter_files() -> tuple[dict[str, Any], dict[str, Any]]:
    """Before and after the replacement: of the machine as it was calibrated, either time."""
    content = parameters("one", list(plan.MODELS)).model_dump()
    content["provenance"]["cluster_fingerprint"] = _fingerprint(0)
    later = json.loads(json.dumps(content))
    later["provenance"]["seed"] += 1
    return with_signature(content), with_signature(later)


@lru_cache(maxsize=2)
def _parameters_id(replaced: bool) -> str:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / PARAMETERS_FILE
        write_json(path, _parameter_files()[replaced])
        return sha256_of(path)[:16]


def parameters_id(number: int) -> str:
    """16 hex digits of the file that predicts that night."""
    return _parameters_id(number >= plan.REPLACED.night)


def write(of: YearNight, parent: Path) -> Path:
    """The run directory of a night, as `calib nightly` leaves it before the report."""
    run = parent / of.run
    (run / TRAINING).mkdir(parents=True)
    of.cluster.write(run / CLUSTER_FILE)
    cluster(0).write(run / CALIBRATED_ON)
    write_json(run / PARAMETERS_FILE, _parameter_files()[of.number >= plan.REPLACED.night])
    Predicted(projections=tuple(of.projections)).write(run / PREDICTIONS_FILE)
    Night(
        id=of.id,
        started=of.started,
        finished=of.started,
        program_version="0.1.0",
        calibration="runs/calibration",
        planned=of.planned,
        failed=of.failed,
        checks=of.checks,
        **asdict(Settled()),
    ).write(run)
    there = [i for i, state in enumerate(plan.year().states[of.number]) if state != ABSENT]
    for i, each in zip(there, of.runs, strict=True):
        (run / of.planned[i].file).write_text(run_lines(each))
    return run


def run_lines(run: TrainingRun) -> str:
    """The lines of run.jsonl; of a run that was killed, half of one more."""
    records: list[BaseModel] = [run.header, *run.iterations]
    lines = [json.dumps(each.model_dump()) + "\n" for each in records]
    if run.end is None:
        return "".join(lines) + lines[-1][: len(lines[-1]) // 2]
    return "".join(lines) + json.dumps(run.end.model_dump()) + "\n"
